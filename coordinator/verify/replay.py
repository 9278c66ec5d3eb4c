"""Replays a run's log into an empty database: the engine's ``step`` folds it from the plan, and ``records.write``
writes the records of each event, as it did in the coordinator.

Each event must have an effect, as each event that the runtime appends has one: it changes the state, or is recorded.
One that the engine refuses was not appended by it. After the second such event, or one that cannot be read, applied or
stored, the replay says nothing any more about what follows, and stops.

Every table that has rows of a run is held against that database: row by row, column by column. A new table or column is
compared without a change here. What the log does not determine is not compared:

====================  ================================================================================================
events                they are the log; their links are followed (``chains.py``)
messages              the log has their digests alone; which may be stored is in ``secure.py``
run_names             no log says which name is taken; what a run is called is in its row
runs.seq              the log's length is counted where the log is read (invariant 8)
runs.fence            a commit that another replica took over raises it too; it has bounds (``run.py``)
runs.refusals         counts those of no event too; their chain holds it
runs: plan, init,     the replay begins from them: link 0 of the log has hashed the plan's digest and the others, the
origin, created_at,   seed gives the draws, and the first event repeats the roles
roles, selection_seed
checkpoints.bytes     of version 0: in no event; its blob has so many (invariant 5)
refusals, audit       ``number``, ``link`` and signatures: the store gives them, and their chains hold them
refusals              of the kinds in ``_UNLOGGED``: they change no state, so that no event tells of them; their chain
                      holds them, and ``rounds.py`` that each is of somebody who took part
audit                 other actions than those in ``_LOGGED`` are requests of operators; the audit's chain holds them
====================  ================================================================================================

A snapshot is taken where a transaction ended, which no event says: it is compared with the state after the event that
it names. It is read first, as recovery reads it: a field that it leaves out, since an older version wrote it, has the
field's default. One in an older format is not compared, since recovery folds the log in its place. All other bodies are
compared as they are stored: a new key is written into the body of a round only where it says something.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine import state as states
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.runtime import records
from coordinator.runtime.run_creation import first_version
from coordinator.store.declared import TABLES, Declared
from coordinator.store.memory import MemoryStore
from coordinator.store.port import (
    TERMINAL,
    AuditRow,
    CheckpointRow,
    ContributionRow,
    DeviceRow,
    EventRow,
    Reader,
    RefusalRow,
    RoundRow,
    RunRow,
    StoreError,
)
from coordinator.verify.draws import Draws
from coordinator.verify.kinds import ABSENT, difference, filled, in_bodies
from coordinator.verify.violation import RunViolation

_MOST_REFUSED = 2
"""Refused events after which the replay stops."""


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
        self.draws = Draws(plan)
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
        self.draws.add(event, before.suspicion)
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


_NOT_REPLAYED = ("events", "messages", "run_names")
_NOT_DETERMINED: dict[type, tuple[str, ...]] = {RunRow: ("seq", "fence", "refusals")}
_UNLOGGED = ("late", "stale", "duplicate", "withdrawn", "invalid-update", "not-selected", "lease-lost")
_LOGGED = ("advance", "unbar")
_PLACES: dict[type, tuple[str, ...]] = {RefusalRow: ("round", "device"), AuditRow: ("action",)}
"""What tells the rows of a table apart whose key is only a number."""
_OF_ENDED_ROUNDS = (RoundRow, CheckpointRow, ContributionRow, RefusalRow)
"""What does not change after the end of its round."""


def differing_tables(reader: Reader, replay: Replay, rounds: Sequence[RoundRow]) -> Iterator[RunViolation]:
    """What differs. ``rounds``: the stored rows of rounds, as far as they can be read. Where the log could not be
    followed to its end, only the rounds that had ended by then are compared."""
    ended = {row.round for row in replay.store.of_run(RoundRow, replay.run) if row.status in TERMINAL}
    for about in TABLES.values():
        of: Any = about.row
        if "run" not in about.names or about.name in _NOT_REPLAYED:
            continue
        if not replay.whole and of not in _OF_ENDED_ROUNDS:
            continue
        expected: list[Any] = replay.store.of_run(of, replay.run)
        stored: Sequence[Any] = rounds if of is RoundRow else reader.of_run(of, replay.run)
        if of is RunRow:
            stored = [_as_read(row, expected[0]) for row in stored]
        if not replay.whole:
            expected = [row for row in expected if row.round in ended]
            stored = [row for row in stored if row.round in ended]
        yield from _Comparison(about, replay).findings(expected, stored)


def _as_read(row: RunRow, gives: RunRow) -> RunRow:
    """The stored row, with the fields that its snapshot leaves out; with the snapshot of ``gives`` in place of one in
    an older format."""
    if row.snapshot is None or gives.snapshot is None:
        return row
    try:
        read = states.from_json(row.snapshot)
    except ValueError:
        return row
    if read is not None:
        return replace(row, snapshot=filled(row.snapshot, states.to_json(read)))
    older = range(1, cast("int", gives.snapshot["format"]))
    return replace(row, snapshot=gives.snapshot) if row.snapshot.get("format") in older else row


class _Comparison:
    """Of one table."""

    def __init__(self, about: Declared, replay: Replay) -> None:
        self._about = about
        self._replay = replay
        self._columns = [
            one.name for one in fields(about.row) if one.compare and one.name not in _NOT_DETERMINED.get(about.row, ())
        ]
        self._place = _PLACES.get(about.row) or tuple(name for name in about.key if name != "run")

    def findings(self, expected: Sequence[Any], stored: Sequence[Any]) -> Iterator[RunViolation]:
        """Rows that are missing, in excess, stored twice, or differ."""
        left: dict[Hashable, list[Any]] = {}
        for row in stored:
            left.setdefault(self._place_of(row), []).append(row)
        unequal = []
        for row in expected:
            among = left.get(self._place_of(row), ())
            same = next((at for at, one in enumerate(among) if not self._differences(row, one)), None)
            if same is None:
                unequal.append(row)
            else:
                del left[self._place_of(row)][same]
        for row in unequal:
            among = [one for one in left.get(self._place_of(row), ()) if not _is_unlogged(one)]
            if among:
                left[self._place_of(row)].remove(among[0])
                yield self._finding(row, row, "; ".join(self._differences(row, among[0])))
            else:
                yield self._finding(row, row, "the row is not stored, and the log gives it")
        wanted = {*map(self._place_of, expected)}
        for place, rows in left.items():
            for row in rows:
                if not _is_unlogged(row):
                    twice = "is stored twice" if place in wanted else "is stored, and the log does not give it"
                    yield self._finding(row, None, f"the row {twice}")

    def _place_of(self, row: Any) -> Hashable:
        return tuple(getattr(row, name) for name in self._place)

    def _differences(self, expected: Any, stored: Any) -> list[str]:
        found: list[str] = []
        for name in self._columns:
            gives, has = getattr(expected, name), getattr(stored, name)
            if isinstance(gives, dict) and isinstance(has, dict):
                found += in_bodies(name, gives, has)
            elif gives != has:
                found.append(difference(name, gives, has))
        return found

    def _finding(self, row: Any, expected: Any, what: str) -> RunViolation:
        place = "".join(f", {name} {getattr(row, name)}" for name in self._place)
        return RunViolation("rows", self._round_of(row, expected), f"{self._about.name}{place}: {what}")

    def _round_of(self, row: Any, expected: Any) -> int:
        """The round that the row names, or during which the log gives it; else the latest one."""
        named = getattr(row, "round", ABSENT)
        if named is ABSENT:
            return self._replay.round_at.get(getattr(expected, "at", None), self._replay.round_number)  # type: ignore[arg-type]
        return named if isinstance(named, int) else 1


def _is_unlogged(row: Any) -> bool:
    """Whether the log does not give such a row."""
    match row:
        case RefusalRow():
            return row.kind in _UNLOGGED
        case AuditRow():
            return row.action not in _LOGGED
        case _:
            return False
