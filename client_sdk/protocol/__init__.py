"""What devices, operators, workers and the coordinator send each other: messages, routes, names and refusals.

``names`` has the types, routes and constants that the other modules share; ``problems`` has the refusals (RFC 9457);
``wire`` the canonical bytes of what is signed, and the canonical text of plans.
"""
