"""Reads and fills sockets in small pieces, so that memory stays small however many devices send at the same time.

An event loop passes up to 256 KiB at a time to a protocol, and uvicorn buffers them for each connection until the
application reads them. Here all connections of a loop read through one buffer of 32 KiB, whose content is passed on at
once, and no more is read from a connection while the application has not read its body.
"""

from __future__ import annotations

import asyncio
from typing import cast

from coordinator.service.sockets.protocol import BoundedHttp

_BUFFER = memoryview(bytearray(32 * 1024))
"""Shared by all connections: it is filled and emptied within one step of the event loop, and a process has one loop."""
_UNSENT = 16 * 1024
"""Bytes of an answer that are buffered for a slow receiver before the sender waits."""


class SmallReads(asyncio.BufferedProtocol):
    """The HTTP protocol of one connection behind a small shared buffer."""

    def __init__(self, http: BoundedHttp) -> None:
        self._http = http
        self.connection_lost = http.connection_lost  # type: ignore[method-assign]
        self.pause_writing = http.pause_writing  # type: ignore[method-assign]
        self.resume_writing = http.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=_UNSENT)
        self._http.connection_made(cast("asyncio.Transport", transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        http = self._http
        http.data_received(bytes(_BUFFER[:nbytes]))
        cycle = http.cycle
        if cycle is not None and cycle.more_body and cycle.body and not cycle.response_complete:
            http.flow.pause_reading()  # until the application reads more

    def eof_received(self) -> None:
        self._http.eof_received()
