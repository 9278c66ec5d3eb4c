"""How slowly a body may arrive. Without a bound, a few senders of one byte at a time could hold every slot for uploads.

Only time in which the coordinator waits for the sender counts: not the time in which the body waits for a slot, or for
the disk.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

from client_sdk.protocol.problems import problem
from coordinator.settings import Settings

_LENGTH_DIGITS = 18


class Pace:
    """The receipt of one body: of n bytes, within body_idle_s + n / body_rate_min seconds of waiting."""

    def __init__(self, settings: Settings) -> None:
        self._idle_s = settings.body_idle_s
        self._rate = settings.body_rate_min
        self._waited_s = 0.0
        self.received = 0
        """Bytes so far."""

    async def next(self, receive: Receive) -> Message:
        """Returns the body's next part, or the disconnection. ProblemError *truncated* where the sender is too slow."""
        clock = asyncio.get_running_loop().time
        began = clock()
        ahead_s = self.received / self._rate - self._waited_s
        try:
            async with asyncio.timeout(self._idle_s + min(ahead_s, 0.0)):
                message = await receive()
        except TimeoutError:
            slow = f"stopped, or came at less than {self._rate:g} bytes a second, after {self.received} bytes"
            raise problem("truncated", f"The body {slow}; send it again.") from None
        self._waited_s += clock() - began
        self.received += len(message.get("body", b""))
        return message


def content_length(header: str) -> int | None:
    """The number in a Content-Length header; None where it is none, or longer than any body."""
    return int(header) if header.isascii() and header.isdigit() and len(header) <= _LENGTH_DIGITS else None
