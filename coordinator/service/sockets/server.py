"""uvicorn's server over our connections: its lifespan, clock and shutdown are used, its sockets and signals are not."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import uvicorn
from fastapi import FastAPI

from coordinator.service.edge import STANDING
from coordinator.service.limits import AdmittedConnection
from coordinator.service.sockets.accepting import Acceptor
from coordinator.service.sockets.protocol import BoundedHttp
from coordinator.service.sockets.tls import TlsCertificate

if TYPE_CHECKING:
    from coordinator.service.serving import Serving

_BACKLOG = 4096
_GRACE_S = 5


_BUFFER = memoryview(bytearray(32 * 1024))
"""Shared by all connections: it is filled and emptied within one step of the event loop, and a process has one loop."""
_UNSENT = 16 * 1024
"""Bytes of an answer that are buffered for a slow receiver before the sender waits."""


class SmallReads(asyncio.BufferedProtocol):
    """The HTTP protocol of one connection behind a small shared buffer: sockets are read and filled in small pieces, so
    that memory stays small however many devices send at the same time.

    An event loop passes up to 256 KiB at a time to a protocol, and uvicorn buffers them for each connection until the
    application reads them. Here all connections of a loop read through one buffer of 32 KiB, whose content is passed on
    at once, and no more is read from a connection while the application has not read its body.
    """

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


class HttpServer(uvicorn.Server):
    """Serves one application on one listening socket, over TLS where there is a ``certificate``.

    The first SIGINT or SIGTERM stops after requests under way, the second at once; held requests are answered before.
    """

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        on_ready: Callable[[], None],
        certificate: TlsCertificate | None = None,
    ) -> None:
        self._service: Serving = app.state.service
        self._listener = listener
        self._on_ready = on_ready
        self._certificate = certificate
        self._limits = self._service.limits
        self._acceptor: Acceptor | None = None
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="on",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if self.started:
            connections = self.server_state.connections
            self._acceptor = Acceptor(
                self._listener,
                self._connect,
                lambda: len(connections),
                self._service.most_connections,
                self._service.admission,
                None if self._certificate is None else self._certificate.context,
                self._limits.head_s,
            )
            self._acceptor.start(_BACKLOG)
            self._on_ready()

    def _connect(self, admitted: AdmittedConnection) -> SmallReads:
        return SmallReads(
            BoundedHttp(
                self._limits,
                self._service.admission,
                admitted,
                self._service.meters.refused,
                STANDING,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        self._service.stop()
        await super().shutdown([self._listener])
        if self.force_exit:  # uvicorn skips this then, and the coordinator's threads would be interrupted
            await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _asked_to_stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
