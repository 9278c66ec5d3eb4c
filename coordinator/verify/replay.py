"""Replays a run's log into an empty database: the engine's ``step`` folds it from the plan, and ``records.write``
writes the records of each event, as it did in the coordinator.

Each event must have an effect, as each event that the runtime appends has one: it changes the state, or is recorded.
One that the engine refuses was not appended by it. After the second such event, or one that cannot be read, applied or
stored, the replay says nothing any more about what follows, and stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine import state as states
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.runtime import records
from coordinator.runtime.run_creation import first_version
from coordinator.store.memory import MemoryStore
from coordinator.store.port import DeviceRow, EventRow, RunRow, StoreError
from coordinator.verify.violation import RunViolation

_MOST_REFUSED = 2
"""Refused events after which the replay stops."""


@dataclass(frozen=True, slots=True)
class DrawnCohort:
    """What the log says of a draw."""

    round: int
    pool: str | None
    waiting: int
    cohort: tuple[tuple[str, int], ...]


class Replay:
    """``add`` takes the next event and yields what is wrong with it; ``store`` has the rows that the events gave."""

    def __init__(self, row: RunRow, plan: Plan, size: int) -> None:
        """``size``: of the first version's blob, which is in no event. StoreError for a row that cannot be written."""
        self._row = row
        self.run = row.run
        self.state: RunState = rounds.begin(row.run, plan, row.init)
        self.store = MemoryStore()
        self.at_snapshot = self.state
        """The state after the event that the stored snapshot names; where there is none, the first one."""
        self.round_at: dict[float, int] = {}
        """Time of a score or of an owner's act, whose rows name no round -> the round in which it was recorded."""
        self.draws: list[DrawnCohort] = []
        self.examples: list[tuple[int, str, int]] = []
        """(round, device, examples) as selected and as reported."""
        self.leases: list[tuple[int, str]] = []
        """(round, worker)."""
        self.fences = 0
        """Commits that were made under a fence, or failed under one."""
        self.whole = True
        """False: the replay has stopped."""
        self._refused = 0
        begun = replace(row, name=plan.name, plan_digest=plan.digest)
        with self.store.transaction() as tx:
            tx.insert_run(replace(begun, seq=0, fence=0, snapshot_seq=0, snapshot=None, refusals=0))
            tx.insert_checkpoint(first_version(row, size))

    @property
    def round_number(self) -> int:
        return self.state.round_number

    def add(self, row: EventRow, event: ev.Event) -> Iterator[RunViolation]:
        """``event``: what the row says."""
        if not self.whole:
            return
        before = self.state
        try:
            following, effects = rounds.step(before, event)
        except Exception as error:  # noqa: BLE001 - the engine is total over what it wrote; this it did not write
            self.whole = False
            yield RunViolation("log", self.round_number, f"event {row.seq}, {row.kind}, cannot be applied: {error}")
            return
        against = next((effect for effect in effects if isinstance(effect, fx.Refused)), None)
        recorded = [(event.at, effect) for effect in effects if isinstance(effect, records.RECORDS)]
        if following is before and (against is not None or not recorded):
            self._refused += 1
            self.whole = self._refused < _MOST_REFUSED
            why = against.reason if against is not None else "it changes nothing"
            yield RunViolation("log", _round_of(event, before), f"event {row.seq}, {row.kind}, does not fit: {why}")
            return
        try:
            self._write(row, following, recorded)
        except StoreError as error:
            self.whole = False
            what = f"the rows of event {row.seq}, {row.kind}, cannot be stored: {error}"
            yield RunViolation("log", _round_of(event, before), what)
            return
        self.state = following
        if row.seq == self._row.snapshot_seq:
            self.at_snapshot = following
        if any(isinstance(record, fx.RecordMetrics | fx.RecordAudit) for _, record in recorded):
            self.round_at[event.at] = before.round_number or following.round_number
        self._note(event)

    def _write(self, row: EventRow, following: RunState, recorded: Sequence[tuple[float, fx.Record]]) -> None:
        is_snapshot = row.seq == self._row.snapshot_seq
        if not recorded and not is_snapshot:
            return
        with self.store.transaction(self.run) as tx:
            for device in {name for _, claim in recorded if isinstance(claim, fx.Claim) for name in claim.devices}:
                if tx.device(device) is None:
                    tx.insert_device(_registered(device))
            records.write(tx, self.run, recorded)
            if is_snapshot:
                tx.snapshot(self.run, row.seq, states.to_json(following))

    def _note(self, event: ev.Event) -> None:
        if isinstance(event, ev.Drawn):
            self.draws.append(DrawnCohort(event.round, event.pool, event.waiting, event.cohort))
            self.examples += [(event.round, device, examples) for device, examples in event.cohort]
        elif isinstance(event, ev.Reported):
            self.examples.append((event.round, event.device, event.examples))
        elif isinstance(event, ev.Leased):
            self.leases.append((event.round, event.worker))
        elif isinstance(event, ev.Committed | ev.CommitFailed):
            self.fences += 1


def _registered(device: str) -> DeviceRow:
    """The row that an assignment needs: no log says how a device was registered."""
    return DeviceRow(device=device, key_id=None, certificate="", label="", examples_cap=0, enrolled_at=0.0)


def _round_of(event: Any, state: RunState) -> int:
    """The round that an event names, or during which it happened."""
    return getattr(event, "round", state.round_number)
