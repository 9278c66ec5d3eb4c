"""Messages between processes: JSON objects over a stream socket, each behind its length.

This file knows bytes and dicts. It has never heard of what is said, or of who is at the other end.
"""

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
    """One end. ``send`` waits until the other end takes it; ``receive`` waits for a message, ``arrived`` does not."""

    def __init__(self, end: socket.socket, at: memoryview | None = None) -> None:
        """``at``: memory that both ends see, for the number of the task under way."""
        self.socket = end
        self.at = at
        self.ended = False
        """Whether the other end is gone: nothing will arrive any more."""
        self._bytes = bytearray()
        self._messages: deque[JsonObject] = deque()

    def send(self, message: Mapping[str, Any]) -> None:
        """OSError where the other end is gone."""
        body = json.dumps(message, default=_plain, separators=(",", ":")).encode()
        self.socket.sendall(len(body).to_bytes(_LENGTH, "big") + body)

    def receive(self) -> JsonObject | None:
        """The next message; None when the other end is gone."""
        while not self._messages and not self.ended:
            self._read(0)
        return self._messages.popleft() if self._messages else None

    def arrived(self) -> JsonObject | None:
        """The next message, where it is already here; None: nothing, or nothing any more (``ended``)."""
        if not self._messages and not self.ended:
            self._read(socket.MSG_DONTWAIT)
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        """The other end learns of it at once, even where a copy of this end lives on in another process."""
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
    """numpy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")
