"""A bug in the function that writes rows writes the same wrong rows when ``verify`` replays the log through it. The
checks that import neither ``step`` nor ``records`` name it all the same: each column of each table that the function
writes is wrong in turn, each value of a round's body, and the rows of each table are forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.runtime import records
from coordinator.store.port import Transaction
from coordinator.store.rows import (
    AuditRow,
    CheckpointRow,
    ClaimRow,
    ContributionRow,
    MarkRow,
    MetricRow,
    RefusalRow,
    RoundRow,
)
from tests.coordinator.databases import in_file
from tests.coordinator.secure_runs import check_in, exhausted, happens, says, secure_run, to_the_list
from tests.coordinator.verify import history, secure_history
from tests.coordinator.verify.history import violations
from tests.coordinator.world import World
from tests.rotating import DAY

pytestmark = pytest.mark.whole

Change = Callable[[Any], Any]
"""A row -> the row that is written in its place; None: none is."""


def acts(folder: Path) -> None:
    """A device is barred, and an owner lifts it; another run is exhausted, and its owner advances it."""
    store = in_file(folder / DATABASE_FILE)
    world = World(4, store=store, blobs=FileBlobs(folder / BLOBS_FOLDER))
    secure_run(world, name="barred")
    check_in(world)
    cohort = to_the_list(world, "barred")
    says(world, ev.Signed, *cohort, run="barred")
    says(world, ev.Revealed, *cohort[:3], run="barred")
    happens(world, ev.OpeningFailed, "barred", lost=(cohort[3],), reason="its shares give another secret")
    world.coordinator.operators.unbar("barred", cohort[3], "olga")
    world.coordinator.operators.stop("barred")
    secure_run(world, {"w": np.ones(4, np.float32)}, name="secret")
    exhausted(world)
    world.coordinator.operators.advance("secret", "olga")
    store.close()


PLAYS: dict[str, Callable[[Path], None]] = {
    "plain": partial(history.play, retention=5),
    "secure": secure_history.play,
    "acts": acts,
}
WRITTEN: dict[str, tuple[type, str]] = {
    "put_claims": (ClaimRow, "plain"),
    "insert_checkpoint": (CheckpointRow, "plain"),
    "insert_contributions": (ContributionRow, "plain"),
    "put_round": (RoundRow, "plain"),
    "insert_refusals": (RefusalRow, "plain"),
    "put_metrics": (MetricRow, "plain"),
    "insert_marks": (MarkRow, "secure"),
    "insert_audit": (AuditRow, "acts"),
}
"""What writes rows -> their table, and a history that has some."""
STORES = ("run", "number", "link", "signed_by", "signature")
"""What the store gives a row, or that names a run which is not there."""
STOPS = {
    *(("put_claims", name) for name in ("device", "round", "")),
    *(("insert_checkpoint", name) for name in ("version", "digest", "")),
    *(("put_round", name) for name in ("round", "kind", "status", "")),
}
"""(what writes, column; empty: all of it) with which the coordinator itself does not go on."""
UNSEEN = {"because", "exhausted", "secure.earlier", "secure.exchanges", "secure.excluded"}
"""Of a round's body: what it says in words of the engine, and the exchanges one by one."""


class WrongWriter:
    """Writes what ``change`` makes of the rows that one of its functions is given."""

    def __init__(self, tx: Transaction, function: str, change: Change) -> None:
        self._tx, self._function, self._change = tx, function, change

    def __getattr__(self, name: str) -> Any:
        write = getattr(self._tx, name)
        if name != self._function:
            return write

        def changed(rows: Iterable[Any]) -> None:
            several = name not in ("put_round", "insert_checkpoint")
            found = [row for one in (rows if several else [rows]) if (row := self._change(one)) is not None]
            for row in [found] if several else found:
                write(row)

        return changed


@contextmanager
def wrong(function: str, change: Change) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        write = records.write
        patch.setattr(records, "write", lambda tx, run, found: write(WrongWriter(tx, function, change), run, found))
        yield


def named(play: Callable[[Path], None], folder: Path, function: str, change: Change) -> set[str]:
    """The invariants that ``verify`` names, but for what its replay through the same function names."""
    folder.mkdir(exist_ok=True)
    with wrong(function, change):
        play(folder)
        return {found.invariant for found in violations(folder)} - {"rows"}


def other(value: Any) -> Any:
    match value:
        case None:
            return 1
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}0"
        case dict():
            return {**value, "x": "0" * 64}
        case list():
            return value[:-1] if value else ["x"]
        case _:
            raise AssertionError(value)


def with_another(column: str) -> Change:
    return lambda row: replace(row, **{column: other(getattr(row, column))})


@pytest.mark.parametrize("name", PLAYS)
def test_an_honest_history_is_clean(name: str, tmp_path: Path) -> None:
    PLAYS[name](tmp_path)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    ("function", "column"),
    [
        (function, field.name)
        for function, (row, _) in WRITTEN.items()
        for field in fields(row)
        if field.name not in (*STORES, "body") and (function, field.name) not in STOPS
    ],
)
def test_a_column_that_is_written_wrong_is_named(function: str, column: str, tmp_path: Path) -> None:
    assert named(PLAYS[WRITTEN[function][1]], tmp_path, function, with_another(column))


@pytest.mark.parametrize("function", [function for function in WRITTEN if (function, "") not in STOPS])
def test_rows_that_are_not_written_are_named(function: str, tmp_path: Path) -> None:
    assert named(PLAYS[WRITTEN[function][1]], tmp_path, function, lambda row: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "secure"])
def test_a_value_in_a_rounds_body_that_is_written_wrong_is_named(name: str, tmp_path: Path) -> None:
    seen: set[tuple[str, ...]] = set()

    def look(row: RoundRow) -> RoundRow:
        seen.update(leaves(row.body))
        return row

    named(PLAYS[name], tmp_path / "honest", "put_round", look)
    assert len(seen) > 20
    missed = [
        ".".join(path)
        for path in sorted(seen)[DAY % 2 :: 2]  # the other half on the next day
        if not named(PLAYS[name], tmp_path / ".".join(path), "put_round", partial(with_another_leaf, path=path))
    ]
    assert set(missed) <= UNSEEN


def leaves(body: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in body.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def with_another_leaf(row: RoundRow, path: Sequence[str]) -> RoundRow:
    body = inside = json.loads(json.dumps(row.body))
    for key in path[:-1]:
        inside = inside.get(key) or {}
    if path[-1] in inside:
        inside[path[-1]] = other(inside[path[-1]])
    return replace(row, body=body)


def test_an_update_that_is_forgotten_is_named(tmp_path: Path) -> None:
    seen: set[int] = set()

    def first_of_each_round(row: ContributionRow) -> ContributionRow | None:
        again = row.round in seen
        seen.add(row.round)
        return row if again else None

    assert "3" in named(PLAYS["plain"], tmp_path, "insert_contributions", first_of_each_round)


def test_a_weight_in_a_secure_round_is_named(tmp_path: Path) -> None:
    assert "secure" in named(PLAYS["secure"], tmp_path, "insert_contributions", with_another("weight"))


@pytest.mark.parametrize(("was", "is_"), [("abandoned", "committed"), ("committed", "open"), ("abandoned", "open")])
def test_a_round_of_another_status_is_named(was: str, is_: str, tmp_path: Path) -> None:
    def change(row: RoundRow) -> RoundRow:
        return replace(row, status=is_) if row.status == was else row

    assert "4" in named(PLAYS["plain"], tmp_path, "put_round", change)


def test_an_assignment_that_ends_too_early_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the device of the round under way that trains ends with that of another one."""
    write = records.write

    def all_of_round_6(record: fx.Record) -> fx.Record:
        if isinstance(record, fx.Release) and record.round == 6 and record.devices is not None:
            return replace(record, devices=None)
        return record

    monkeypatch.setattr(
        records, "write", lambda tx, run, found: write(tx, run, [(at, all_of_round_6(one)) for at, one in found])
    )
    PLAYS["plain"](tmp_path)
    assert {found.invariant for found in violations(tmp_path)} == {"claims"}
