"""Folds a run's log by the engine's ``step`` from the plan, and collects the rows that the events give.

Each event must have an effect, as each event that the runtime appends has one: it changes the state, or is recorded.
One that the engine refuses was not appended by it. After the second such event, or one that cannot be read, the fold
says nothing any more about what follows, and stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.runtime import records
from coordinator.store.port import EventRow, RunRow
from coordinator.verify.expected import ExpectedRows
from coordinator.verify.violation import RunViolation

_MOST_REFUSED = 2
"""Refused events after which the fold stops."""


@dataclass(frozen=True, slots=True)
class DrawnCohort:
    """What the log says of a draw."""

    round: int
    pool: str | None
    waiting: int
    cohort: tuple[tuple[str, int], ...]


class Replay:
    """``add`` takes the next event and yields what is wrong with it."""

    def __init__(self, row: RunRow, plan: Plan) -> None:
        self._row = row
        self.state: RunState = rounds.begin(row.run, plan, row.init)
        self.expected = ExpectedRows(row)
        self.at_snapshot: RunState | None = None
        """The state after the event that the stored snapshot names."""
        self.draws: list[DrawnCohort] = []
        self.examples: list[tuple[int, str, int]] = []
        """(round, device, examples) as selected and as reported."""
        self.leases: list[tuple[int, str]] = []
        """(round, worker)."""
        self.fences = 0
        """Commits that were made under a fence, or failed under one."""
        self.whole = True
        """False: the fold has stopped."""
        self._refused = 0

    @property
    def round_number(self) -> int:
        return self.state.round_number

    def add(self, row: EventRow) -> Iterator[RunViolation]:
        if not self.whole:
            return
        try:
            event = ev.from_json(row.kind, row.at, row.body)
        except (ValueError, TypeError) as error:
            self.whole = False
            yield RunViolation("log", self.round_number, f"event {row.seq} cannot be read: {_first_line(error)}")
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
        self.state = following
        self.expected.round_number = before.round_number or following.round_number
        records.write(self.expected, self._row.run, recorded)
        self._note(event)
        if row.seq == self._row.snapshot_seq:
            self.at_snapshot = following

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


def _round_of(event: Any, state: RunState) -> int:
    """The round that an event names, or during which it happened."""
    return getattr(event, "round", state.round_number)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
