"""Connections of peers, below ASGI: how many are accepted, how much and for how long is read, what is refused.

::

    listening socket -> Acceptor -> SmallReads -> BoundedHttp (uvicorn's httptools protocol) -> the ASGI application
                        how many    32 KiB at     heads, time, framing
                                    a time

What is refused here never reaches a route. The answer is a problem document all the same, and the connection closes.

uvicorn's h11 protocol has one of these limits, would need a subclass too, and costs more: 924 microseconds of CPU for
a check-in instead of 711. The acceptor is our own since at the limit of file handles asyncio logs a traceback for each
attempt, uvloop closes each new connection, and neither leaves a handle for the disk. A refusal waits until the
requests before it are answered, and ends with a half-close, whose rest is dropped for 5 s: closing a socket with
unread bytes resets it, and the peer could lose the answer. The time of a body is the application's
(``service/route.py``), since an upload that waits for a slot is not slow.
"""

from coordinator.service.sockets.server import HttpServer

__all__ = ["HttpServer"]
