"""Bytes to a server and what comes back, without an HTTP client that would mend them."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any

from client_sdk.protocol.names import PROBLEM_MEDIA_TYPE

PATIENCE_S = 20.0


@dataclass(frozen=True)
class RawAnswer:
    """One response, as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def kind(self) -> str:
        """The kind of a problem document; an assertion that it is one."""
        assert self.headers["content-type"] == PROBLEM_MEDIA_TYPE, self
        found = self.json()
        assert found["status"] == self.status
        assert found["detail"]
        return str(found["type"]).removeprefix("/problems/")


class RawConnection:
    """One connection to the server of a URL, from an address of this machine."""

    def __init__(self, url: str, source: str = "127.0.0.1") -> None:
        self.address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        self.socket = socket.create_connection(self.address, PATIENCE_S, source_address=(source, 0))
        self._unread = b""

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Whether all was sent; a server that closes may stop reading."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read(self) -> RawAnswer:
        """The next response."""
        while b"\r\n\r\n" not in self._unread:
            self._more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers["content-length"])
        while len(self._unread) < length:
            self._more()
        body, self._unread = self._unread[:length], self._unread[length:]
        return RawAnswer(int(first.split()[1]), headers, body)

    def closed(self) -> bool:
        """Whether the server closes now, without a further byte."""
        if self._unread:
            return False
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def drain(self, seconds: float, *, half_closed: bool) -> bytes:
        """All that the server sends until it closes, or is silent for so long. ``half_closed``: no more is sent."""
        received = bytearray(self._unread)
        self.socket.settimeout(seconds)
        try:
            if half_closed:
                self.socket.shutdown(socket.SHUT_WR)
            while part := self.socket.recv(65_536):
                received += part
        except OSError:  # silent, or closed by a reset
            pass
        return bytes(received)

    def _more(self) -> None:
        part = self.socket.recv(65_536)
        assert part, f"closed after {self._unread!r}"
        self._unread += part


def ask(url: str, data: bytes, source: str = "127.0.0.1") -> RawAnswer:
    """The first response to these bytes, on a connection of their own."""
    with RawConnection(url, source) as connection:
        connection.send(data)
        return connection.read()


def head(path: str = "/healthz", *lines: str, method: str = "GET") -> bytes:
    """A request's line and headers."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode("latin-1")
