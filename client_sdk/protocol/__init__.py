"""What devices, operators, workers and the coordinator send each other: messages, routes, names and refusals.

``names`` is the vocabulary that the others share; ``problems`` are the refusals (RFC 9457).
"""
