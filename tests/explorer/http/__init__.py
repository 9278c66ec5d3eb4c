"""The real ASGI application of a replica in virtual time, without sockets, for some of the schedules.

``ServedApp`` is the HTTP side of one replica; ``VirtualLoop`` is the event loop on which its tasks run.
"""
