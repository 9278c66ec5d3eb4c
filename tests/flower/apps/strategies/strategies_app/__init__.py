"""An app of the message API: five strategies one after another."""
