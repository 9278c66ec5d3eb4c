"""A run's log as server-sent events: each event once, in order, resumable at any of them.

``id`` is the event's sequence number, ``event`` its kind, ``data`` the whole EventView. A client that lost the
connection sends ``Last-Event-ID`` (browsers do it by themselves) and gets what followed. The stream ends when the run
has ended and everything was sent, and when the caller's key is revoked or has expired; a request for events after the
end gets 204, at which a browser's EventSource stops. Between events comments prevent proxies from closing an idle
connection.

FastAPI frames the events (``fastapi.sse``). Its generator routes are not used: they fix status and headers before
the endpoint runs, and pass each event alone through two queues, at 72 us of CPU where a page of events takes 3 us
for each.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from fastapi import Header, Query, Request
from fastapi.routing import APIRoute
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from client_sdk.protocol.names import Route, RunId
from client_sdk.protocol.operators import EventView
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access import Operator
from coordinator.requests import Permission, identify
from coordinator.runtime import log_context
from coordinator.service.core import Service
from coordinator.service.declaring import declared, security
from coordinator.service.route import bearer

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

_PAGE = 500
HEARTBEAT_S = 15.0
RECONNECT_MS = 2000
_BREATH_S = 0.05
"""Seconds between two reads of a stream, at least: a busy run wakes its streams for every report."""

_MOST = 2**63 - 1
"""The largest sequence number of a store."""

After = Annotated[int | None, Query(ge=0, le=_MOST, description="events with a sequence number above this")]
LastId = Annotated[str | None, Header(alias="Last-Event-ID", description="the same, as browsers send it; it wins")]
Follow = Annotated[bool, Query(description="false: end at the newest event")]


def stream_routes(service: Service) -> list[APIRoute]:
    """The one route of events."""

    async def events(
        request: Request, run: RunId, after: After = None, follow: Follow = True, last_event_id: LastId = None
    ) -> Response:
        """Events of a run as a stream, from the first, or after the last one that the client has; ends when the run has
        ended."""
        log_context.known(run=run)
        if last_event_id is not None and (not last_event_id.isascii() or not last_event_id.isdigit()):
            raise problem("invalid-request", f"Last-Event-ID must be a whole number, not {last_event_id[:40]!r}.")
        credentials = bearer(request, Permission.VIEWER)
        start = after or 0
        if last_event_id is not None:
            start = int(last_event_id) if len(last_event_id) < len(str(_MOST)) else _MOST
        page = await service.work(read, service.coordinator, credentials, run, start)
        if not page.events and page.ended and follow:
            return Response(status_code=204)
        service.stream_slots.reserve(page.who, 1)
        frames = _events(service, credentials, run, start, follow)
        return SlottedStream(frames, partial(service.stream_slots.release, page.who, 1))

    route = APIRoute(
        Route.EVENTS,
        events,
        methods=["GET"],
        summary="Follow a run's events",
        tags=["runs"],
        response_class=StreamingResponse,
        openapi_extra=security(Permission.VIEWER),
        responses={
            200: {
                "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/EventView"}}},
                "description": "the events",
            },
            204: {"description": "the run has ended and nothing follows"},
        },
    )
    return [declared(route, Permission.VIEWER)]


class Page(NamedTuple):
    events: list[EventView]
    ended: bool
    """Whether the run had ended before the page was read."""
    valid_s: float
    """How long the caller's credentials are still valid, in seconds."""
    who: str
    """The operator."""


def read(coordinator: Coordinator, credentials: str, run: str, after: int) -> Page:
    """Returns the next page of events. ProblemError where the caller may not read them, or no longer."""
    caller = identify(coordinator, Permission.VIEWER, credentials, run=run)
    who, expires_at = (caller.id, caller.expires_at) if isinstance(caller, Operator) else ("", None)
    valid_s = math.inf if expires_at is None else max(0.0, expires_at - coordinator.core.clock.now())
    ended = coordinator.operators.run(run).over
    return Page(coordinator.operators.events(run, after, _PAGE), ended, valid_s, who)


async def _events(service: Service, credentials: str, run: str, after: int, follow: bool) -> AsyncIterator[bytes]:
    """The frames. The stream ends when the caller's key is revoked or has expired: the next request says why."""
    key = f"run:{run}"
    loop = asyncio.get_running_loop()
    wait_s = min(HEARTBEAT_S, service.settings.reread_s)
    spoke = loop.time()
    yield format_sse_event(retry=RECONNECT_MS)
    while True:
        seen = service.signals.version(key)
        try:
            page, ended, valid_s, _ = await service.work(read, service.coordinator, credentials, run, after)
        except ProblemError:
            return
        if page:
            after = page[-1].seq
            spoke = loop.time()
            yield b"".join(map(frame, page))
        if len(page) == _PAGE:
            continue
        if ended or not follow or service.stopping:
            return
        if loop.time() - spoke >= HEARTBEAT_S:
            spoke = loop.time()
            yield KEEPALIVE_COMMENT
        if await service.signals.async_wait(key, seen, min(wait_s, valid_s)):
            await asyncio.sleep(_BREATH_S)


def frame(event: EventView) -> bytes:
    """Returns the frame of one event. Its JSON is ASCII: the framing breaks data wherever ``str.splitlines`` does, also
    at U+2028 and U+0085, which a text of a device may contain.
    """
    return format_sse_event(data_str=event.model_dump_json(ensure_ascii=True), event=event.kind, id=str(event.seq))


class SlottedStream(EventSourceResponse):
    """A stream of events that has a slot, taken before the answer begins. ``over`` is called when the answer is over,
    however it ended: also where the reader went before its first byte."""

    def __init__(self, frames: AsyncIterator[bytes], over: Callable[[], None]) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()
