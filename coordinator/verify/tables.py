"""Holds every table that has rows of a run against the database into which its log was replayed: row by row, column by
column. A new table or column is compared without a change here. What the log does not determine is not compared:

====================  ================================================================================================
events                they are the log; their links are followed (``chains.py``)
secure_messages       the log has their digests alone; which may be stored is in ``messages.py``
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

from coordinator.engine import state as states
from coordinator.store.declared import TABLES, Declared
from coordinator.store.port import (
    TERMINAL,
    AuditRow,
    CheckpointRow,
    ContributionRow,
    Reader,
    RefusalRow,
    RoundRow,
    RunRow,
)
from coordinator.verify.replay import Replay
from coordinator.verify.values import ABSENT, difference, filled, in_bodies
from coordinator.verify.violation import RunViolation

_NOT_REPLAYED = ("events", "secure_messages", "run_names")
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
