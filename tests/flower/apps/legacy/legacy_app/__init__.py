"""An app of the older API: a NumPyClient and a strategy that the server makes."""
