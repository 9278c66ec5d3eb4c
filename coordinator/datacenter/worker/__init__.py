"""A worker of a datacenter: its session as a generator of actions, and the client that drives it. Needs no torch."""
