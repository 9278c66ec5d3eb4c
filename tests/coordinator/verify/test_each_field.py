"""Each field of each table that a log or a chain gives, changed in its first row; each first row deleted; each doubled.
``verify`` must name all of them, whatever columns these tables get.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.datafolder import DATABASE_FILE
from coordinator.store import open_store
from tests.coordinator.verify.history import Doctor, doctored, play, violations

pytestmark = pytest.mark.whole

TABLES = ("rounds", "checkpoints", "contributions", "refusals", "claims", "metrics", "events", "audit", "audit_head")


ORDER_ONLY = ("refusals", "number")
"""Says only in which order the rows come, which the chain of refusals holds."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    play(folder, retention=5)
    return folder


def _columns() -> list[tuple[str, str]]:
    """(table, column) of a new database."""
    with tempfile.TemporaryDirectory() as folder:
        open_store(f"sqlite:///{folder}/{DATABASE_FILE}").close()
        with sqlite3.connect(f"{folder}/{DATABASE_FILE}") as database:
            return [(table, row[1]) for table in TABLES for row in database.execute(f"PRAGMA table_info({table})")]


def _other(value: object) -> object:
    """A value of the same kind, or of the kind that the column may have too."""
    match value:
        case None:
            return 1
        case str():
            return f"{value[:-1]}{'0' if value[-1:] != '0' else '1'}"
        case int() | float():
            return value + 1
        case _:
            raise AssertionError(value)


@pytest.mark.parametrize(("table", "column"), [field for field in _columns() if field != ORDER_ONLY])
def test_a_field_that_was_changed_is_named(history: Path, table: str, column: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(history, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.lift(table)
        row, value = doctor.database.execute(f'SELECT rowid, "{column}" FROM {table} LIMIT 1').fetchone()
        doctor.sql(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', _other(value), row)
    assert violations(folder)


def _deleted(doctor: Doctor, table: str) -> None:
    doctor.sql(f"DELETE FROM {table} WHERE rowid = (SELECT rowid FROM {table} LIMIT 1)")


def _doubled(doctor: Doctor, table: str) -> None:
    doctor.sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 1")


@pytest.mark.parametrize(
    ("table", "change"),
    [*((table, _deleted) for table in TABLES), *((table, _doubled) for table in TABLES if table != "audit_head")],
)
def test_a_row_that_was_deleted_or_doubled_is_named(
    history: Path, table: str, change: Callable[[Doctor, str], None], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(history, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.lift(table)
        change(doctor, table)
    assert violations(folder)
