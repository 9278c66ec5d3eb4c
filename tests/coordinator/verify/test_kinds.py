"""A value of another kind than its column has is a violation: SQLite stores a text in a column of numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.coordinator.verify.history import doctored, play, violations


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    play(folder, retention=0)
    return folder


@pytest.mark.parametrize(
    ("table", "column", "value", "named"),
    [
        ("runs", "seq", "x", 6),
        ("runs", "selection_seed", 1e308, 6),
        ("runs", "snapshot", "[]", 6),
        ("runs", "created_at", b"\xff", 6),
        ("checkpoints", "round", "x", 6),
        ("checkpoints", "version", None, 1),
        ("checkpoints", "bytes", "x", 1),
        ("contributions", "device", b"\xff", 1),
        ("contributions", "round", "x", 1),
        ("refusals", "reason", b"\xff", 1),
        ("refusals", "link", None, 1),
        ("rounds", "round", "x", 6),
        ("rounds", "body", "[]", 1),
        ("rounds", "body", None, 1),
        ("devices", "examples_cap", "x", 6),
        ("devices", "examples_cap", None, 6),
    ],
)
def test_it_is_named(played: Path, tmp_path: Path, table: str, column: str, value: object, named: int) -> None:
    folder = Path(shutil.copytree(played, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.lift(table)
        smallest = f"SELECT min(rowid) FROM {table} WHERE {column} IS NOT NULL"
        doctor.sql(f"UPDATE {table} SET {column} = ? WHERE rowid = ({smallest})", value)
    found = violations(folder)
    assert {wrong.run for wrong in found} == {"marks"}
    assert named in {wrong.round for wrong in found}, found


def test_an_error_of_our_own_is_not_taken_for_one(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr("coordinator.verify.run.against_chains", broken)
    with pytest.raises(TypeError, match="a bug"):
        violations(played)
