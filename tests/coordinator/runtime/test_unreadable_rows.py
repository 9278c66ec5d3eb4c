"""A run whose own row somebody has damaged stops no other run: neither the start, nor deadlines, nor views."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from client_sdk.http.paging import every_page
from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.runtime.sweeping import sweep
from coordinator.store import open_store
from tests.coordinator.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Runs on one database; *second* selects."""
    made = World(8, store=open_store(f"sqlite:///{tmp_path / DATABASE_FILE}"), blobs=FileBlobs(tmp_path / BLOBS_FOLDER))
    for name in ("zeroth", "first", "second"):
        made.clock.at += 1
        made.create(name=name)
    return made


@pytest.mark.parametrize(
    "change",
    [
        "plan = '{'",
        "plan = '[]'",
        f"plan = '{'[' * 100_000}'",
        "snapshot = '[]'",
        "snapshot_seq = 'x'",
        "name = CAST(X'FF' AS TEXT)",
        "plan = CAST(X'FF' AS TEXT)",
        "seq = 9223372036854775807",
    ],
    ids=lambda change: change[:20],
)
def test_repro_another_run_starts_and_has_its_deadlines(world: World, tmp_path: Path, change: str) -> None:
    """The start ended with a traceback, or, where the row names events that are not there, never."""
    with sqlite3.connect(tmp_path / DATABASE_FILE) as connection:
        assert connection.execute(f"UPDATE runs SET {change} WHERE run = 'first'").rowcount == 1
    connection.close()
    coordinator = world.boot()
    sweep(coordinator.core)
    world.pass_time(11)
    assert coordinator.operators.round("second", 1).missed == 1
    shown = [view.run for view in coordinator.operators.runs()]
    assert "second" in shown
    assert [view.run for view in every_page(lambda after: coordinator.operators.runs(after=after, limit=1))] == shown
    assert coordinator.healthy()["runs"] == 3
    if not change.startswith("name"):
        assert "first" in coordinator.core.process.run_errors.all()
