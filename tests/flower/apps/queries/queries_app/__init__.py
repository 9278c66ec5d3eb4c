"""Queries with actions, nodes that remember, and a node that raises."""
