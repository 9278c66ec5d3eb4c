"""Accepts connections while there are file handles for them, and says so when there are none.

An event loop's own server does worse at the limit: asyncio's accepts in vain and logs a traceback for each, uvloop's
accepts and closes at once and logs nothing. Here new connections wait in the listening socket's queue, where they cost
no handle, and established ones go on.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

import structlog

from coordinator.service.limits import Admission, AdmittedConnection

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
