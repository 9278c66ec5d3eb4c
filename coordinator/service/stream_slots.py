"""Slots of event streams: so many at a time, of which one operator has a part, so that nobody who opens streams
without end takes those of others.

A place is taken before the answer begins, and given back when the answer is over, however it ended: also where the
reader went before its first byte.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from fastapi.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from client_sdk.protocol.problems import ProblemError, problem
from coordinator.service.limits.admission import InFlight

OF_ONE = 8
"""One operator has this part of all slots. The tabs of a browser share one stream."""
AGAIN_S = 30.0


def stream_slots(most: int, what: str) -> InFlight:
    """The slots of one kind of stream, by operator. ``what`` names it in a refusal, which is *busy*."""
    of_one = max(1, most // OF_ONE)

    def refused(of_all: bool) -> ProblemError:
        connected = f"{most} {what} are connected already."
        own = f"This operator has {of_one} {what} already, an eighth of all."
        return problem("busy", connected if of_all else own, retry_after_s=AGAIN_S)

    return InFlight(refused, each=of_one, total=most)


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
