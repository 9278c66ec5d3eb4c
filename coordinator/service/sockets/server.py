"""uvicorn's server over our connections: its lifespan, clock and shutdown are used, its sockets and signals are not.

Connections are accepted while there are file handles for them, and the log says so when there are none. An event loop's
own server does worse at the limit: asyncio's accepts in vain and logs a traceback for each, uvloop's accepts and closes
at once and logs nothing. Here new connections wait in the listening socket's queue, where they cost no handle, and
established ones go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import structlog
import uvicorn
from fastapi import FastAPI

from coordinator.limits import Admission, AdmittedConnection
from coordinator.service.edge import STANDING
from coordinator.service.sockets.protocol import BoundedHttp
from coordinator.service.sockets.tls import TlsCertificate

if TYPE_CHECKING:
    from coordinator.service.core import Serving

_NO_HANDLES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_AT_ONCE = 4
"""Connections accepted in one step of the event loop: more would delay the requests of those that are connected."""
_BREATH_S = 0.004
"""After a full step, seconds without accepting: 1,000 connections a second at most, a third of a core."""
_PAUSE_S = 0.25
_SHUT_S = 5.0
"""Seconds for the end of TLS on a connection that closes."""
_LOGGED_EVERY_S = 60.0

log = structlog.get_logger("coordinator.service")


class Acceptor:
    """Accepts for one listening socket. ``connect`` makes the protocol of a connection, ``connected`` counts them.
    ``tls`` gives the context of a new connection; None: plain HTTP. A handshake has ``handshake_s`` seconds."""

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[AdmittedConnection], asyncio.BaseProtocol],
        connected: Callable[[], int],
        most: int,
        admission: Admission,
        tls: Callable[[], ssl.SSLContext] | None = None,
        handshake_s: float = 20.0,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._connected = connected
        self._most = most
        self._admission = admission
        self._tls = tls
        self._handshake_s = handshake_s
        self._pause_s = pause_s
        self._opening: set[asyncio.Task[object]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._logged = float("-inf")
        self._loop = asyncio.get_running_loop()

    def start(self, backlog: int) -> None:
        """Accepts from now on, within the running event loop."""
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accepts no more. The listening socket stays open."""
        if self._paused is None:
            self._loop.remove_reader(self._listener)
        else:
            self._paused.cancel()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._open_now() >= self._most:
                self._pause(f"all {self._most} connections that the limit of file handles allows are open")
                return
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_HANDLES:
                    raise
                self._pause(f"{error.strerror} (errno {error.errno})")
                return
            admitted = self._admission.admit(peer[0])
            if admitted is None:
                connection.close()
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._open(connection, admitted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        self._rest(_BREATH_S)

    def _open_now(self) -> int:
        return self._connected() + len(self._opening)

    async def _open(self, connection: socket.socket, admitted: AdmittedConnection) -> None:
        """Makes the protocol of a connection, over TLS after the handshake. The protocol lets it go."""
        secure = None if self._tls is None else self._tls()
        times = {} if secure is None else {"ssl_handshake_timeout": self._handshake_s, "ssl_shutdown_timeout": _SHUT_S}
        try:
            await self._loop.connect_accepted_socket(lambda: self._connect(admitted), connection, ssl=secure, **times)
        except OSError:  # the peer has gone already, or speaks no TLS
            connection.close()
            admitted.refused()
            admitted.leave()
        except BaseException:
            admitted.leave()
            raise

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(seconds, self._resume)

    def _pause(self, reason: str) -> None:
        self._rest(self._pause_s)
        if self._loop.time() - self._logged >= _LOGGED_EVERY_S:
            self._logged = self._loop.time()
            log.warning(
                "new connections wait: no file handle is free for them; raise `ulimit -n`, or connect fewer devices",
                reason=reason,
                connections=self._open_now(),
            )

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._listener, self._accept)


# ------------------------------------------------------------ the server

_BACKLOG = 4096
_GRACE_S = 5


_BUFFER = memoryview(bytearray(120 * 1024))
"""Shared by all connections: it is filled and emptied within one step of the event loop, and a process has one loop.
A copy of it is below 128 KiB, from which on memory comes from the system, page by page, and goes back at once."""
_READ_MIN = 32 * 1024
_UNREAD = 16 * 1024 * 1024
"""Bytes that connections may have read for their application, before each reads only ``_READ_MIN`` at a time."""
_UNSENT = 16 * 1024
"""Bytes of an answer that are buffered for a slow receiver before the sender waits."""


class SmallReads(asyncio.BufferedProtocol):
    """The HTTP protocol of one connection behind a small shared buffer: sockets are read and filled in small pieces, so
    that memory stays small however many devices send at the same time.

    An event loop passes up to 256 KiB at a time to a protocol, and uvicorn buffers them for each connection until the
    application reads them. Here all connections of a loop read through one buffer, whose content is passed on at once,
    and no more is read from a connection while the application has not read its body. Few connections fill the buffer
    at each read, which takes a quarter less CPU of an upload than 32 KiB do; with more than 512 it is those 32 KiB.
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
        return _BUFFER[: max(_READ_MIN, _UNREAD // max(1, len(self._http.connections)))]

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
