"""The parts of a ``Coordinator``: run logs, the fleet, and the requests of devices, operators and workers.

They are synchronous and safe from any thread. There is no HTTP and no SQL here.
"""
