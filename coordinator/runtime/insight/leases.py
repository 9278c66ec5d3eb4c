"""The leases of a datacenter round and its workers' heartbeats: folded from the events of that round alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

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
from coordinator.runtime.core import Core, no_plan
from coordinator.runtime.insight.rounds_in_log import before_round, round_of
from coordinator.store.port import EventRow, Reader, RoundRow

_PAGE = 1000


@dataclass(slots=True)
class _Fold:
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
            fold = _Fold()
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
