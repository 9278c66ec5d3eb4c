"""What the viewers of one scope are sent: numbered frames, made and encoded once for all of them.

::

    RunBoard   the views of runs, read anew where something may have changed; shared by all scopes
    Feed       one scope: its newest state, a snapshot of it, and the frames of the last two minutes

A feed belongs to the event loop; only ``news`` may be called in a thread, one at a time.

A viewer pulls what follows its position, so a slow one delays nobody and needs no queue; who is further behind than
the feed gets a snapshot. A merge patch cannot say null, so absent is null. The events of all runs in one stream were
rejected: a page would get 900 events a round to show counts, and would repeat the engine to know them.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fastapi.sse import format_sse_event

from client_sdk.extensions import installed_version
from client_sdk.protocol.live import Json, LiveSystem, difference, without_nulls

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

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

    def views(self, wanted: Callable[[str], bool]) -> dict[str, Json]:
        """The views of those runs that are wanted, oldest first. A run that cannot be shown is left out, which is
        noted."""
        core = self._coordinator.core
        found: dict[str, Json] = {}
        for run in filter(wanted, self._coordinator.operators.run_ids()):
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

    def _holds(self, run: str, kept: _Kept, version: int, now: float) -> bool:
        if version != kept.version or not 0 <= now - kept.at < (_OVER_S if kept.over else _STALE_S):
            return False
        return kept.over or self._coordinator.core.store.head(run) == kept.seq


class News(NamedTuple):
    """The newest state of a feed, and the frame that leads to it."""

    runs: dict[str, Json]
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
        self._fleet: Json | None = None
        self._ring: deque[bytes] = deque(maxlen=RING)
        self._snapshot: tuple[int, bytes] = (0, b"")

    def news(self, runs: dict[str, Json], fleet: Json | None) -> News | None:
        """The next frame, where the newest state is another one than the feed's. It may be made in a thread, and is
        then given to ``take``."""
        changed = list(self._changes(runs, fleet))
        if self.number and not changed:
            return None
        return News(runs, fleet, self._framed("patch", changed, self.number + 1))

    def take(self, news: News) -> None:
        """Makes this the newest state."""
        self._runs, self._fleet = news.runs, news.fleet
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
            whole = {"runs": list(self._runs.values()), "system": system}
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
