"""A bug in the function that writes rows writes the same wrong rows when ``verify`` replays the log through it. The
checks that import neither ``step`` nor ``records`` name it all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.engine import effects as fx
from coordinator.runtime import records
from tests.coordinator.verify.history import play, violations

Record = fx.Record
Bug = Callable[[Record], Record | None]


def refusals_are_forgotten(record: Record) -> Record | None:
    return None if isinstance(record, fx.RecordRefusal) and record.kind == "abandoned" else record


def refusals_name_no_update(record: Record) -> Record:
    return replace(record, digest=None) if isinstance(record, fx.RecordRefusal) else record


def the_optimizers_state_is_forgotten(record: Record) -> Record:
    return replace(record, named_tensors={}) if isinstance(record, fx.RecordCheckpoint) else record


def weights_are_one_too_many(record: Record) -> Record:
    if not isinstance(record, fx.RecordCheckpoint):
        return record
    return replace(record, contributions=tuple(replace(item, weight=item.weight + 1) for item in record.contributions))


def the_last_update_is_forgotten(record: Record) -> Record:
    return (
        replace(record, contributions=record.contributions[:-1]) if isinstance(record, fx.RecordCheckpoint) else record
    )


def abandoned_rounds_are_called_committed(record: Record) -> Record:
    if isinstance(record, fx.RecordRound) and record.status == "abandoned":
        return replace(record, status="committed")
    return record


def rounds_end_a_second_later(record: Record) -> Record:
    if isinstance(record, fx.RecordRound) and record.status == "committed" and record.closed_at is not None:
        return replace(record, closed_at=record.closed_at + 1)
    return record


def cohorts_are_drawn_a_second_later(record: Record) -> Record:
    if isinstance(record, fx.RecordRound) and record.collecting_at is not None:
        return replace(record, collecting_at=record.collecting_at + 1)
    return record


def refusals_have_no_reason(record: Record) -> Record:
    return replace(record, reason="") if isinstance(record, fx.RecordRefusal) else record


def refusals_are_of_another_kind(record: Record) -> Record:
    if isinstance(record, fx.RecordRefusal) and record.kind == "abandoned":
        return replace(record, kind="late")
    return record


def origins_name_another_round(record: Record) -> Record:
    return replace(record, origin="round 7") if isinstance(record, fx.RecordCheckpoint) else record


def assignments_last_longer(record: Record) -> Record:
    return replace(record, until=record.until + 1) if isinstance(record, fx.Claim) else record


def assignments_end_too_early(record: Record) -> Record:
    """That of the device of the round under way that trains ends with that of another one."""
    if isinstance(record, fx.Release) and record.round == 6 and record.devices is not None:
        return replace(record, devices=None)
    return record


def scores_are_higher(record: Record) -> Record:
    if not isinstance(record, fx.RecordMetrics):
        return record
    return replace(record, metrics={name: value + 0.01 for name, value in record.metrics.items()})


def scores_are_forgotten(record: Record) -> Record | None:
    return None if isinstance(record, fx.RecordMetrics) else record


BUGS: dict[Bug, set[str]] = {
    refusals_are_forgotten: {"3"},
    refusals_name_no_update: {"3"},
    the_optimizers_state_is_forgotten: {"4"},
    weights_are_one_too_many: {"evidence"},
    the_last_update_is_forgotten: {"3"},
    abandoned_rounds_are_called_committed: {"4"},
    rounds_end_a_second_later: {"4"},
    cohorts_are_drawn_a_second_later: {"4"},
    refusals_have_no_reason: {"3"},
    refusals_are_of_another_kind: {"3"},
    origins_name_another_round: {"4"},
    assignments_last_longer: {"deadline"},
    assignments_end_too_early: {"claims"},
    scores_are_higher: {"score"},
    scores_are_forgotten: {"score"},
}
"""A bug, and the invariants that must name it."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_the_function_that_writes_rows_is_named(
    bug: Bug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = records.write

    def wrong(tx: records.RowWriter, run: str, found: Sequence[tuple[float, Record]]) -> None:
        write(tx, run, [(at, changed) for at, record in found if (changed := bug(record)) is not None])

    monkeypatch.setattr(records, "write", wrong)
    play(tmp_path, retention=5)
    named = {found.invariant for found in violations(tmp_path)}
    assert named >= BUGS[bug]
    assert "rows" not in named, "the replay has the same bug"


def test_refusals_that_are_written_with_another_time_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = records.write

    def wrong(tx: records.RowWriter, run: str, found: Sequence[tuple[float, Record]]) -> None:
        write(tx, run, [(at + isinstance(record, fx.RecordRefusal), record) for at, record in found])

    monkeypatch.setattr(records, "write", wrong)
    play(tmp_path, retention=5)
    found = {(one.invariant, one.round) for one in violations(tmp_path)}
    assert ("3", 2) in found
    assert "rows" not in {invariant for invariant, _ in found}
