"""What a ``Coordinator`` is made of: run logs, the fleet, and what devices, operators and workers ask of it.

Synchronous and safe from any thread. No HTTP, no SQL.
"""
