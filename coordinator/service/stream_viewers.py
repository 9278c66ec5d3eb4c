"""The stream of all runs: what the viewers of one scope are sent, the viewers, and the one task that serves them.

::

    RunBoard   the views of runs, read anew where something may have changed; shared by all scopes
    Feed       one scope: its newest state, a snapshot of it, and the frames of the last two minutes, each made and
               encoded once for all viewers of the scope
    Viewers    who views: while there are any, the task looks each second for what has changed, once for each distinct
               scope, and wakes those who wait; it also looks whether credentials still hold

A feed belongs to the event loop; only ``news`` may be called in a thread, one at a time.

A viewer pulls what follows its position at its own pace, so a slow one delays nobody and needs no queue; who is further
behind than the feed gets a snapshot. A merge patch cannot say null, so absent is null. The events of all runs in one
stream were rejected: a page would get 900 events a round to show counts, and would repeat the engine to know them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fastapi import Request
from fastapi.routing import APIRoute
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import Response, StreamingResponse

from client_sdk.extensions import installed_version
from client_sdk.protocol.live import Json, LiveSystem, difference, without_nulls
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access import Operator
from coordinator.requests import Permission, identify
from coordinator.requests.access import LOGINS
from coordinator.service.core import Service
from coordinator.service.declaring import declared, security
from coordinator.service.errors import log
from coordinator.service.route import bearer
from coordinator.service.stream import HEARTBEAT_S, RECONNECT_MS, Follow, LastId, SlottedStream
from coordinator.store.port import StoreError

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

RECENT = 200
"""Of runs that have ended so many are sent, the newest: others are asked for."""
RING = 120
"""Frames that a feed keeps: a viewer that is further behind gets a snapshot."""
_STALE_S = 5.0
"""Seconds after which the view of a run that goes on is read again: a part of it changes without an event."""
_OVER_S = 60.0
"""Seconds after which the view of a run that has ended is read again."""

Scope = tuple[str, ...]
"""The scopes of an operator's grants, sorted; ``("*",)``: everything."""


class _Kept(NamedTuple):
    view: Json
    seq: int
    version: int
    at: float
    over: bool


class RunBoard:
    """The views of all runs as JSON, of one coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._kept: dict[str, _Kept] = {}
        self._ended: set[str] = set()

    def sent(self, runs: Sequence[str], sees: Callable[[str], bool]) -> tuple[list[str], str]:
        """Of these runs, which are oldest first, those in scope that go on or are the newest ``RECENT`` that have
        ended; and the oldest of those that have ended where others did before it, else empty."""
        seen = [*filter(sees, runs)]
        ended = [*filter(self._has_ended, seen)]
        left = {*ended[:-RECENT]}
        return [run for run in seen if run not in left], ended[-RECENT] if left else ""

    def views(self, wanted: Iterable[str]) -> dict[str, Json]:
        """The views of these runs. A run that cannot be shown is left out, which is noted."""
        core = self._coordinator.core
        found: dict[str, Json] = {}
        for run in wanted:
            version, now = core.signals.version(f"run:{run}"), core.clock.now()
            kept = self._kept.get(run)
            if kept is None or not self._holds(run, kept, version, now):
                try:
                    view = self._coordinator.operators.run(run)
                except ValueError as error:
                    core.process.run_errors.note(run, error)
                    continue
                body = without_nulls(view.model_dump(mode="json"))
                kept = self._kept[run] = _Kept(body, view.seq, version, now, view.over)
            found[run] = kept.view
        return found

    def _has_ended(self, run: str) -> bool:
        if run not in self._ended:
            try:
                ended = self._coordinator.operators.over(run)
            except ValueError:  # it is noted where its view is made
                return False
            if not ended:
                return False
            self._ended.add(run)
        return True

    def _holds(self, run: str, kept: _Kept, version: int, now: float) -> bool:
        if version != kept.version or not 0 <= now - kept.at < (_OVER_S if kept.over else _STALE_S):
            return False
        return kept.over or self._coordinator.core.store.head(run) == kept.seq


class News(NamedTuple):
    """The newest state of a feed, and the frame that leads to it."""

    runs: dict[str, Json]
    older: str
    fleet: Json | None
    frame: bytes


class Feed:
    """``sees``: which runs are in scope; ``whole``: whether the scope is everything, so that the fleet is shown."""

    def __init__(self, sees: Callable[[str], bool], *, whole: bool) -> None:
        self.sees = sees
        self.whole = whole
        self.epoch = secrets.token_hex(4)
        self.number = 0
        """Of the newest frame; 0: there is no state yet."""
        self.viewers = 0
        self.current = False
        """Whether the state was looked at since there are viewers, and is looked at each second."""
        self.encoded = 0
        """Frames and snapshots that were encoded."""
        self._runs: dict[str, Json] = {}
        self._older = ""
        self._fleet: Json | None = None
        self._ring: deque[bytes] = deque(maxlen=RING)
        self._snapshot: tuple[int, bytes] = (0, b"")

    def news(self, runs: dict[str, Json], older: str, fleet: Json | None) -> News | None:
        """The next frame, where the newest state is another one than the feed's. It may be made in a thread, and is
        then given to ``take``. ``older``: see ``RunBoard.sent``."""
        changed = list(self._changes(runs, fleet))
        if self.number and not changed:
            return None
        return News(runs, older, fleet, self._framed("patch", changed, self.number + 1))

    def take(self, news: News) -> None:
        """Makes this the newest state."""
        self._runs, self._older, self._fleet = news.runs, news.older, news.fleet
        self._ring.append(news.frame)
        self.number += 1

    def after(self, position: int | None, viewers: int) -> bytes:
        """What a viewer at this position lacks; ``None``, or a position that is not kept: a snapshot. ``viewers``: of
        all scopes; of who does not see everything those of the same scope are counted."""
        if position is not None and self.number - len(self._ring) <= position <= self.number:
            return b"".join(islice(self._ring, len(self._ring) - (self.number - position), None))
        if self._snapshot[0] != self.number:
            system = LiveSystem(
                version=installed_version(), viewers=viewers if self.whole else self.viewers
            ).model_dump(mode="json")
            whole = {"runs": list(self._runs.values()), "older": self._older, "system": system}
            whole |= {} if self._fleet is None else {"fleet": self._fleet}
            self._snapshot = (self.number, self._framed("snapshot", [whole], self.number))
        return self._snapshot[1]

    def position_of(self, last_event_id: str | None) -> int | None:
        """The position that a viewer says it has; None: it is of another epoch, or none."""
        epoch, _, number = (last_event_id or "").partition("-")
        known = epoch == self.epoch and number.isascii() and number.isdigit() and len(number) < 16
        return int(number) if known else None

    def _changes(self, runs: dict[str, Json], fleet: Json | None) -> Iterable[Json]:
        for run, view in runs.items():
            before = self._runs.get(run, {})
            if before is not view and (patch := difference(before, view)):
                yield {"run": run, "patch": patch}
        if fleet is not None and fleet != self._fleet:
            yield {"fleet": fleet}

    def _framed(self, event: str, bodies: list[Json], number: int) -> bytes:
        """One event for each body; the last one has the id, so that a viewer who got some of them asks for all again.
        Their JSON is ASCII, as that of ``stream.frame``."""
        self.encoded += 1
        last = len(bodies) - 1
        return b"".join(
            format_sse_event(
                data_str=json.dumps(body, separators=(",", ":")),
                event=event,
                id=f"{self.epoch}-{number}" if place == last else None,
            )
            for place, body in enumerate(bodies)
        )


# ------------------------------------------------------------ viewers

TICK_S = 1.0
"""Seconds between two frames of a scope, at least."""
_FLEET_S = 5.0
"""Seconds for which the counts of the fleet are kept."""
_FEEDS = 64
"""Scopes that are remembered, with viewers or without."""


@dataclass(eq=False, slots=True)
class Viewer:
    who: str
    """The operator."""
    credentials: str
    scope: Scope
    feed: Feed
    expires_at: float | None
    position: int | None = None
    ended: bool = False


@dataclass(slots=True)
class _Fleet:
    at: float = float("-inf")
    counts: Json = field(default_factory=dict)


class Viewers:
    """Of one service. All methods but ``_looked`` and ``_checked`` belong to the event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._board = RunBoard(service.coordinator)
        self._feeds: OrderedDict[Scope, Feed] = OrderedDict()
        self._viewers: set[Viewer] = set()
        self._news: asyncio.Future[None] | None = None
        """Done when there may be something for a viewer."""
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._fleet = _Fleet()
        self._checked_at = 0.0
        self._logins = 0

    async def frames(self, viewer: Viewer, *, follow: bool) -> AsyncIterator[bytes]:
        """What one viewer is sent, from a snapshot or its position on; ends with its credentials, or with the
        service."""
        loop, spoke = asyncio.get_running_loop(), 0.0
        try:
            yield format_sse_event(retry=RECONNECT_MS)
            while True:
                news = self._next()
                feed, ahead = viewer.feed, viewer.feed.number
                if viewer.position != ahead:
                    piece = feed.after(viewer.position, len(self._viewers))
                    viewer.position, spoke = ahead, loop.time()
                    yield piece
                elif loop.time() - spoke >= HEARTBEAT_S:
                    spoke = loop.time()
                    yield KEEPALIVE_COMMENT
                if viewer.ended or not follow or self._service.stopping:
                    return
                if viewer.position == feed.number:
                    await asyncio.shield(news)
        finally:
            self.leave(viewer)

    async def join(self, credentials: str, last_event_id: str | None) -> Viewer:
        """One more viewer, with a feed that has a state. ProblemError where it may not view, or *busy*."""
        service = self._service
        operator = await service.work(self._identified, credentials)
        service.viewer_slots.reserve(operator.id, 1)
        scope = scope_of(operator)
        feed = self._feed(scope, operator)
        viewer = Viewer(operator.id, credentials, scope, feed, operator.expires_at, feed.position_of(last_event_id))
        self._viewers.add(viewer)
        feed.viewers += 1
        try:
            if not feed.current:
                await self._look([feed], anew=False)
        except BaseException:
            self.leave(viewer)
            raise
        if self._task is None:
            self._task = asyncio.create_task(self._serve())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Ends a viewer; of one that has left already, nothing."""
        if viewer in self._viewers:
            self._viewers.discard(viewer)
            self._service.viewer_slots.release(viewer.who, 1)
            viewer.feed.viewers -= 1
            viewer.feed.current &= viewer.feed.viewers > 0

    def _feed(self, scope: Scope, operator: Operator) -> Feed:
        feed = self._feeds.get(scope)
        if feed is None:
            feed = self._feeds[scope] = Feed(operator.sees, whole=operator.sees_everything)
            while len(self._feeds) > _FEEDS:
                self._feeds.popitem(last=False)
        self._feeds.move_to_end(scope)
        return feed

    def _next(self) -> asyncio.Future[None]:
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        return self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # ------------------------------------------------------------ the task

    async def _serve(self) -> None:
        """Until there is no viewer."""
        loop = asyncio.get_running_loop()
        beat = loop.time()
        try:
            while self._viewers and not self._service.stopping:
                await asyncio.sleep(TICK_S)
                try:
                    news = await self._look(list({viewer.feed for viewer in self._viewers}))
                    news |= await self._check(loop.time())
                except (StoreError, ProblemError) as error:
                    log.warning("the stream of all runs waits for the database", reason=str(error))
                    continue
                if loop.time() - beat >= HEARTBEAT_S:
                    beat, news = loop.time(), True
                if news:
                    self._wake()
        finally:
            self._task = None
            self._wake()
            if self._viewers and not self._service.stopping:
                self._task = asyncio.create_task(self._serve())

    async def _look(self, feeds: list[Feed], *, anew: bool = True) -> bool:
        """Whether one of the feeds has a new frame now. ``anew`` False: of those that are current, nothing is read:
        viewers that come at the same moment, as after a restart, look once for all of them."""
        async with self._looking:
            feeds = [feed for feed in feeds if anew or not feed.current]
            found = await self._service.work(self._looked, feeds) if feeds else []
            for feed, news in found:
                feed.take(news)
            for feed in feeds:
                feed.current = feed.viewers > 0
        return bool(found)

    def _looked(self, feeds: list[Feed]) -> list[tuple[Feed, News]]:
        runs = self._service.coordinator.core.store.runs_after("", 1 << 30)
        sent = [self._board.sent(runs, feed.sees) for feed in feeds]
        views = self._board.views({run for names, _ in sent for run in names})
        counts = self._counts() if any(feed.whole for feed in feeds) else None
        found = []
        for feed, (names, older) in zip(feeds, sent, strict=True):
            shown = {run: views[run] for run in names if run in views}
            news = feed.news(shown, older, counts if feed.whole else None)
            if news is not None:
                found.append((feed, news))
        return found

    def _counts(self) -> Json:
        now = self._service.coordinator.core.clock.now()
        if not 0 <= now - self._fleet.at < _FLEET_S:
            counts = self._service.coordinator.insight.fleet.counts()
            self._fleet = _Fleet(now, counts.model_dump(mode="json"))
        return self._fleet.counts

    async def _check(self, at: float) -> bool:
        """Marks the viewers whose credentials hold no longer. Whether there is one. Credentials are looked up where
        some were revoked in this process, and each ``reread_s`` for what other replicas did; that their time is over
        is seen at once."""
        now, logins = self._service.coordinator.core.clock.now(), self._service.signals.version(LOGINS)
        over = {viewer for viewer in self._viewers if viewer.expires_at is not None and viewer.expires_at <= now}
        if logins != self._logins or at - self._checked_at >= self._service.settings.reread_s:
            self._logins, self._checked_at = logins, at
            over |= await self._service.work(self._checked, list(self._viewers))
        for viewer in over:
            viewer.ended = True
        return bool(over)

    def _checked(self, viewers: Iterable[Viewer]) -> set[Viewer]:
        """The viewers that may not view any longer, or see other runs now."""
        scopes: dict[str, Scope | None] = {}
        for credentials in {viewer.credentials for viewer in viewers}:
            scopes[credentials] = None
            with contextlib.suppress(ProblemError):
                scopes[credentials] = scope_of(self._identified(credentials))
        return {viewer for viewer in viewers if scopes[viewer.credentials] != viewer.scope}

    def _identified(self, credentials: str) -> Operator:
        caller = identify(self._service.coordinator, Permission.VIEWER, credentials, scoped=True)
        if not isinstance(caller, Operator):
            raise problem("unauthenticated", "send an operator's API key")
        return caller


def scope_of(operator: Operator) -> Scope:
    """What distinguishes what an operator sees from what others see."""
    return ("*",) if operator.sees_everything else tuple(sorted({str(grant.scope) for grant in operator.grants}))


# ------------------------------------------------------------ the route

_SCHEMAS = [{"$ref": f"#/components/schemas/{name}"} for name in ("LiveSnapshot", "LivePatch")]


def live_routes(service: Service) -> list[APIRoute]:
    """The route of the stream of all runs: one snapshot, then what changes, for dashboards. It has a limit of its own,
    so that dashboards take no streams of a run's events from others."""
    viewers = Viewers(service)

    async def live(request: Request, follow: Follow = True, last_event_id: LastId = None) -> Response:
        """The runs in scope, and the fleet for those who see everything: first a `snapshot`, then a `patch` whenever
        something has changed, at most once a second. A viewer that comes back in time with its `Last-Event-ID` gets
        what it has missed."""
        viewer = await viewers.join(bearer(request, Permission.VIEWER), last_event_id)
        return SlottedStream(viewers.frames(viewer, follow=follow), partial(viewers.leave, viewer))

    route = APIRoute(
        Route.STREAM,
        live,
        methods=["GET"],
        summary="Follow all runs",
        tags=["runs"],
        response_class=StreamingResponse,
        openapi_extra=security(Permission.VIEWER),
        responses={
            200: {"content": {"text/event-stream": {"schema": {"oneOf": _SCHEMAS}}}, "description": "the frames"},
        },
    )
    return [declared(route, Permission.VIEWER, scoped=True)]
