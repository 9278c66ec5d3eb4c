"""What each selected device of a round did, and the leases of a datacenter round with its workers' heartbeats: folded
from the events of that round alone.

Events of rounds are logged in the order of the rounds, so the first event of a round is found by halving: some twenty
small reads in a log of a million events. Times are of no use here, since clocks may fall. The fold of a round that was
shown lately is kept, so a round that is followed costs what is new in its log.

Nothing of this is written on a device's way. Rounds joined are counted from ``contributions``, since a counter would be
a second truth; a device's class is its label before the first ``/``, and nothing depends on it. Secure rounds have no
lanes: what may be said of them is said in counts.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from client_sdk.protocol.insight import LANES_SHOWN, Lane, LaneBucket, LaneEnd, LanesView
from client_sdk.protocol.problems import problem
from client_sdk.protocol.workers import (
    LEASES_SHOWN,
    POINTS_SHOWN,
    LeaseBegin,
    LeaseOutcome,
    LeaseRecord,
    LeasesView,
    TrainingPoint,
)
from coordinator.engine.rounds import KINDS
from coordinator.engine.state import RunState
from coordinator.runtime.core import Core, no_plan
from coordinator.runtime.views import first_refusals
from coordinator.store.port import EventRow, Reader, RefusalRow, RoundRow

_LATER = frozenset({"Discarded"})
"""Kinds of events that name a round which ended before."""
_PAGE = 1000
_PROBE = 8


def round_of(row: EventRow) -> int | None:
    """The round under way when the event was logged, where the event says it."""
    found = row.body.get("round")
    return found if isinstance(found, int) and row.kind not in _LATER else None


def events_of_round(reader: Reader, run: str, round: int, after: int | None = None) -> Iterator[EventRow]:
    """The events that name this round, in order. ``after``: only those with a higher sequence number; None: all."""
    seq = before_round(reader, run, round) if after is None else after
    while page := reader.events(run, seq, _PAGE):
        for row in page:
            number = round_of(row)
            if number == round:
                yield row
            elif number is not None and number > round:
                return
        seq = page[-1].seq


def before_round(reader: Reader, run: str, round: int) -> int:
    """A sequence number such that no event of this round or a later one is at or before it, and none of an earlier
    round after it."""
    low, high = 0, reader.head(run)
    while low < high:
        middle = (low + high) // 2
        found = _first_after(reader, run, middle, high)
        if found is None or found[1] >= round:
            high = middle
        else:
            low = found[0]
    return low


def _first_after(reader: Reader, run: str, seq: int, until: int) -> tuple[int, int] | None:
    """(sequence number, round) of the first event after ``seq``, and not after ``until``, that names its round."""
    limit = _PROBE
    while seq < until and (page := reader.events(run, seq, limit)):
        for row in page:
            number = round_of(row)
            if number is not None:
                return (row.seq, number) if row.seq <= until else None
        seq, limit = page[-1].seq, _PAGE
    return None


_KEPT = 8
"""Rounds whose folds are kept."""
_BUCKETS = 120
_SECURE = (
    "This round is secure: the coordinator sees which messages came, and nothing of a single device's work. The counts "
    "of each exchange are in the round's view."
)
_GOES_ON = "it had not reported when the round closed: while its place lasts, it reports to a later one"
_DROPPED = {
    "training": "it was training when the round closed",
    "waiting": "it had not begun to train when the round closed",
}


@dataclass(slots=True)
class _Part:
    """A device's part in a round, as far as the log tells it."""

    started_at: float | None = None
    reported_at: float | None = None
    left_at: float | None = None
    end: LaneEnd = "waiting"
    reason: str = ""
    bytes: int | None = None
    seconds: tuple[float, float, float] | None = None
    selected_at: float = 0.0


@dataclass(slots=True)
class _Fold:
    """What the log says of one round up to ``seq``."""

    seq: int | None = None
    complete: bool = False
    """Whether the round had ended when its events were read."""
    goes_on: bool = False
    """Whether it is a buffered round, in which devices are drawn again and again, and train on after it."""
    parts: dict[str, _Part] = field(default_factory=dict)

    def add(self, row: EventRow) -> None:
        self.seq = row.seq
        body = cast("dict[str, Any]", row.body)
        if row.kind == "Drawn":
            drawn = {device: _Part(selected_at=row.at) for device, _ in body["cohort"]}
            self.parts = {**self.parts, **drawn} if self.goes_on else drawn
            return
        part = self.parts.get(body.get("device", ""))
        if part is None:
            return
        match row.kind:
            case "Started":
                part.started_at = row.at
                part.end = "training"
            case "Reported":
                part.reported_at, part.end, part.bytes = row.at, "reported", body["bytes"]
                fetch_s, train_s, encode_s = body["seconds"]
                part.seconds = (fetch_s, train_s, encode_s)
            case "UpdateLost":
                self.parts[body["device"]] = _Part(selected_at=part.selected_at)
            case "Withdrew":
                part.left_at, part.end, part.reason = row.at, "withdrawn", body["reason"]
            case "UpdateRefused":
                part.left_at, part.end, part.reason = row.at, "refused", body["reason"]
            case _:
                pass


class Lanes:
    """Safe from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._folds: OrderedDict[tuple[str, int], _Fold] = OrderedDict()

    def of_round(self, run: str, round: int, after: str = "", limit: int = LANES_SHOWN) -> LanesView:
        """The lanes of the devices whose ids sort after this one, at most ``limit``. ProblemError where there is no
        such round."""
        state = self._state(run)
        with self._core.store.reading() as reader:
            row = reader.round(run, round)
            if row is None:
                raise problem("unknown-round", f"run {run} has no round {round}")
            cohort = _cohort(row, state)
            if not KINDS[row.kind].single_updates:
                return LanesView(secure=_SECURE if KINDS[row.kind].masked else "", devices=len(cohort))
            with self._lock:
                fold = self._fold(reader, row)
                refused = first_refusals(reader.refusals(run, round))
                made = {
                    device: _lane(device, fold, row, refused.get(device)) for device in cohort if device in fold.parts
                }
            shown = [made[device] for device in sorted(made) if device > after][:limit]
            labels = reader.labels([lane.device for lane in shown])
        return LanesView(
            devices=len(cohort),
            ends=dict(Counter(lane.end for lane in made.values())),
            lanes=[lane.changed(label=labels.get(lane.device, "")) for lane in shown],
            buckets=_buckets(made, row) if len(made) > LANES_SHOWN else [],
        )

    def _state(self, run: str) -> RunState | None:
        """The newest state; None where the log cannot be read, so that rows alone count."""
        try:
            return self._core.log(run).catch_up()
        except ValueError as error:
            self._core.process.run_errors.note(run, error)
            return None

    def _fold(self, reader: Reader, round: RoundRow) -> _Fold:
        key = (round.run, round.round)
        since = cast("dict[str, int]", round.body.get("since") or {})
        carried = {device: _Part(selected_at=round.opened_at, end="training") for device in since}
        fold = self._folds.setdefault(key, _Fold(goes_on=round.kind == "buffered", parts=carried))
        self._folds.move_to_end(key)
        while len(self._folds) > _KEPT:
            self._folds.popitem(last=False)
        if not fold.complete:
            for row in events_of_round(reader, *key, fold.seq):
                fold.add(row)
            fold.complete = round.status != "open"
        return fold


def _cohort(row: RoundRow, state: RunState | None) -> list[str]:
    """The devices that were selected; none where the draw was too small for a round."""
    if state is not None and state.round is not None and state.round.number == row.round and row.status == "open":
        return sorted(state.round.members)
    return [str(device) for device in cast("list[object]", row.body.get("cohort") or [])]


def _lane(device: str, fold: _Fold, row: RoundRow, refused: RefusalRow | None) -> Lane:
    part = fold.parts[device]
    end = part.end
    ended_at, reason = part.reported_at or part.left_at, part.reason
    closed = row.closed_at is not None or row.status != "open"
    if end in ("waiting", "training"):
        if refused is not None:
            end, reason, ended_at = "late" if refused.kind == "late" else "refused", refused.reason, refused.at
        elif closed and fold.goes_on:
            reason = _GOES_ON
        elif closed:
            end, reason, ended_at = "dropped", _DROPPED[end], row.closed_at
    seconds = part.seconds or (None, None, None)
    return Lane(
        device=device,
        selected_at=part.selected_at,
        started_at=part.started_at,
        reported_at=part.reported_at,
        ended_at=ended_at,
        fetch_s=seconds[0],
        train_s=seconds[1],
        encode_s=seconds[2],
        bytes=part.bytes,
        end=end,
        reason=reason,
    )


def _buckets(lanes: Mapping[str, Lane], row: RoundRow) -> list[LaneBucket]:
    """Equal parts of the time from the selection to the last thing that happened."""
    begin = min(lane.selected_at for lane in lanes.values())
    times = [at for lane in lanes.values() for at in (lane.started_at, lane.ended_at) if at is not None]
    end = max([begin, *times, *([row.closed_at] if row.closed_at is not None else [])])
    edges = [begin + (end - begin) * part / _BUCKETS for part in range(1, _BUCKETS)]
    started: Counter[int] = Counter()
    ends: list[Counter[LaneEnd]] = [Counter() for _ in range(_BUCKETS)]
    for lane in lanes.values():
        if lane.started_at is not None:
            started[bisect_right(edges, lane.started_at)] += 1
        if lane.ended_at is not None:
            ends[bisect_right(edges, lane.ended_at)][lane.end] += 1
    bounds = [begin, *edges, end]
    return [
        LaneBucket(from_at=bounds[part], to_at=bounds[part + 1], started=started[part], ends=dict(ends[part]))
        for part in range(_BUCKETS)
    ]


# ------------------------------------------------------------ leases


@dataclass(slots=True)
class _LeaseFold:
    """What the log says of one round's leases."""

    leases: list[LeaseRecord] = field(default_factory=list)
    points: list[TrainingPoint] = field(default_factory=list)

    def add(self, row: EventRow) -> None:
        body = cast("dict[str, Any]", row.body)
        match row.kind:
            case "Leased":
                self._granted(row.at, body)
            case "Heartbeat":
                self._heard(row.at, body)
            case "LeaseEnded":
                self._end(row.at, "failed" if body["failed"] else "returned", body["reason"])
            case "Delivered":
                self._heard(row.at, {**body, "step": body["steps"]})
                self._end(row.at, "delivered")
            case "Tick":  # is logged where a deadline passed: in a round that a worker has, its lease's
                self._end(row.at, "silent", "no heartbeat came in time")
            case _:
                pass

    def _granted(self, at: float, body: dict[str, Any]) -> None:
        began: LeaseBegin = "first"
        if self.leases:
            before = self.leases[-1]
            if before.worker != body["worker"]:
                began = "taken-over"
            else:
                began = "restarted" if before.ended_at is None else "again"
            self._end(at, "replaced", "the worker was started again")
        self.leases.append(
            LeaseRecord(worker=body["worker"], attempt=body["attempt"], fence=body["fence"], began=began, granted_at=at)
        )

    def _heard(self, at: float, body: dict[str, Any]) -> None:
        metrics = dict(body.get("metrics") or {})
        self.points.append(TrainingPoint(at=at, attempt=body["attempt"], step=body["step"], metrics=metrics))
        if self.leases:
            self.leases[-1] = self.leases[-1].changed(step=body["step"])

    def _end(self, at: float, outcome: LeaseOutcome, reason: str = "") -> None:
        if self.leases and self.leases[-1].ended_at is None:
            self.leases[-1] = self.leases[-1].changed(ended_at=at, outcome=outcome, reason=reason)

    def close(self, row: RoundRow) -> None:
        """The round has ended: so has its last lease, by the round's end where nothing else came first."""
        if row.status == "open" or not self.leases or row.closed_at is None:
            return
        last = self.leases[-1]
        if last.ended_at is None or (last.outcome == "silent" and last.ended_at >= row.closed_at):
            self.leases[-1] = last.changed(ended_at=row.closed_at, outcome="over", reason=row.reason)


class Leases:
    """Safe from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def of_round(self, run: str, round: int) -> LeasesView:
        """ProblemError where there is no such round. A round of devices has no leases."""
        with self._core.store.reading() as reader:
            row = reader.round(run, round)
            if row is None and reader.flower_run(run) is not None:
                raise no_plan(run, flower=True)
            if row is None:
                raise problem("unknown-round", f"run {run} has no round {round}")
            fold = _LeaseFold()
            if row.kind == "datacenter":
                for event in _events(reader, run, round):
                    fold.add(event)
                fold.close(row)
            shown = fold.leases[-LEASES_SHOWN:]
            labels = {name: found.label for name in {one.worker for one in shown} if (found := reader.worker(name))}
        return LeasesView(
            count=len(fold.leases),
            restarts=sum(lease.began == "restarted" for lease in fold.leases),
            leases=[lease.changed(label=labels.get(lease.worker, "")) for lease in shown],
            points=_thinned(fold.points),
        )


def _events(reader: Reader, run: str, round: int) -> Iterator[EventRow]:
    """The events from this round's first one up to the next round, those that name no round included."""
    seq = before_round(reader, run, round)
    while page := reader.events(run, seq, _PAGE):
        for row in page:
            if (round_of(row) or round) > round:
                return
            yield row
        seq = page[-1].seq


def _thinned(points: Sequence[TrainingPoint]) -> list[TrainingPoint]:
    """At most POINTS_SHOWN, at even distances, with the last one."""
    if len(points) <= POINTS_SHOWN:
        return list(points)
    last = len(points) - 1
    return [points[place * last // (POINTS_SHOWN - 1)] for place in range(POINTS_SHOWN)]
