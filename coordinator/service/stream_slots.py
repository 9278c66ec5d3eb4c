"""Slots of event streams: so many at a time, of which one operator has a part, so that nobody who opens streams
without end takes those of others.

A place is taken before the answer begins, and given back when the answer is over, however it ended: also where the
reader went before its first byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable

from fastapi.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from client_sdk.protocol.problems import problem

OF_ONE = 8
"""One operator has this part of all slots. The tabs of a browser share one stream."""
AGAIN_S = 30.0


class StreamSlots:
    """Of one kind of stream. ``what`` names it in a refusal. For the event loop only."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._of_one = max(1, most // OF_ONE)
        self._what = what
        self._taken: Counter[str] = Counter()

    def take(self, who: str) -> None:
        """ProblemError *busy* where all slots are taken, or this operator has its part of them."""
        if self._taken.total() >= self._most:
            raise problem("busy", f"{self._most} {self._what} are connected already.", retry_after_s=AGAIN_S)
        if self._taken[who] >= self._of_one:
            detail = f"{who} has {self._of_one} {self._what} already, an eighth of all."
            raise problem("busy", detail, retry_after_s=AGAIN_S)
        self._taken[who] += 1

    def give_back(self, who: str) -> None:
        self._taken[who] -= 1
        if self._taken[who] <= 0:
            del self._taken[who]


class SlottedStream(EventSourceResponse):
    """A stream of events that has a place: ``over`` is called when it has ended."""

    def __init__(self, frames: AsyncIterator[bytes], over: Callable[[], None]) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()
