"""Messages between processes: JSON objects over a stream socket, each behind its length."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

JsonObject = dict[str, Any]

_LENGTH = 4
_READ = 1 << 16


class Channel:
    """One end. ``send`` blocks until the other end reads; ``receive`` waits for a message, ``arrived`` does not."""

    def __init__(self, end: socket.socket, at: memoryview | None = None) -> None:
        """``at``: memory that both ends share, for the number of the task under way."""
        self.socket = end
        self.at = at
        self.ended = False
        """Whether the other end is closed: nothing will arrive any more."""
        self._bytes = bytearray()
        self._messages: deque[JsonObject] = deque()

    def send(self, message: Mapping[str, Any]) -> None:
        """OSError where the other end is closed."""
        body = json.dumps(message, default=_plain, separators=(",", ":")).encode()
        self.socket.sendall(len(body).to_bytes(_LENGTH, "big") + body)

    def receive(self) -> JsonObject | None:
        """Returns the next message; None where the other end is closed."""
        while not self._messages and not self.ended:
            self._read(0)
        return self._messages.popleft() if self._messages else None

    def arrived(self) -> JsonObject | None:
        """Returns the next message if it has arrived; None: nothing yet, or nothing any more (``ended``)."""
        if not self._messages and not self.ended:
            self._read(socket.MSG_DONTWAIT)
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        """Closes the channel for both ends at once, also where another process has a copy of this end."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()

    def _read(self, flags: int) -> None:
        try:
            part = self.socket.recv(_READ, flags)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.ended = not part
        self._bytes += part
        while len(self._bytes) >= _LENGTH:
            stop = _LENGTH + int.from_bytes(self._bytes[:_LENGTH], "big")
            if len(self._bytes) < stop:
                return
            self._messages.append(json.loads(self._bytes[_LENGTH:stop]))
            del self._bytes[:stop]


def _plain(value: Any) -> Any:
    """Converts numpy's numbers to Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")
