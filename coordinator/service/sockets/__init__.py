"""Connections of peers, below ASGI: how many are accepted, how much and for how long is read, what is refused.

::

    listening socket -> Acceptor -> SmallReads -> BoundedHttp (uvicorn's httptools protocol) -> the ASGI application
                        how many    32 KiB at     heads, time, framing
                                    a time

What is refused here never reaches a route. The answer is a problem document all the same, and the connection closes.
"""

from coordinator.service.sockets.server import HttpServer

__all__ = ["HttpServer"]
