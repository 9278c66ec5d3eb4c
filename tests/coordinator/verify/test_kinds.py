"""A value of another kind than its column has is a violation: SQLite stores a text in a column of numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli import app
from tests.coordinator.verify.history import doctored, play, violations

DEEP = "[" * 100_000


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
        ("devices", "enrolled_at", "x", 2),
        ("workers", "created_at", "x", 3),
        ("runs", "plan", DEEP, 6),
        ("runs", "snapshot", DEEP, 6),
        ("rounds", "body", DEEP, 1),
        ("events", "body", DEEP, 1),
        ("rounds", "body", '{"a":' * 900 + "1" + "}" * 900, 1),
        ("events", "body", '{"a":' * 900 + "1" + "}" * 900, 1),
        ("rounds", "round", -(2**63), 1),
    ],
)
def test_it_is_named(played: Path, tmp_path: Path, table: str, column: str, value: object, named: int) -> None:
    folder = Path(shutil.copytree(played, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.lift(table)
        smallest = f"SELECT min(rowid) FROM {table} WHERE {column} IS NOT NULL"
        doctor.sql(f"UPDATE {table} SET {column} = ? WHERE rowid = ({smallest})", value)
    found = violations(folder)
    assert {wrong.run for wrong in found if wrong.invariant != "identity"} == {"marks"}
    assert named in {wrong.round for wrong in found}, found


@pytest.mark.parametrize(
    ("table", "column", "named"),
    [
        ("runs", "name", 6),
        ("runs", "plan", 6),
        ("events", "body", 1),
        ("contributions", "device", 1),
        ("refusals", "reason", 1),
        ("devices", "device", 6),
    ],
)
def test_repro_a_text_that_is_no_utf_8_is_named(
    played: Path, tmp_path: Path, table: str, column: str, named: int
) -> None:
    """The database refused to read it, and nothing of any run was checked."""
    folder = Path(shutil.copytree(played, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.lift(table)
        odd = f"CAST(X'FF' || CAST(max({column}) AS BLOB) AS TEXT)"
        greatest = doctor.one(f"SELECT max({column}) FROM {table}")
        smallest = doctor.one(f"SELECT min(rowid) FROM {table}")
        assert greatest
        doctor.sql(f"UPDATE {table} SET {column} = (SELECT {odd} FROM {table}) WHERE rowid = ?", smallest)
    result = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    assert result.exit_code == 1, result.output
    assert f'"run":"marks","round":{named},' in result.stdout


def test_repro_a_run_whose_name_is_no_utf_8_hides_no_other(played: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(played, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.lift("metrics")
        doctor.sql("INSERT INTO metrics VALUES (CAST(X'FF' AS TEXT), 3, 'evaluator', 'f1', 0.9, 50, 1e6)")
        doctor.sql("DELETE FROM contributions WHERE round = 4")
    result = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    assert '"invariant":"orphan"' in result.stdout
    assert '"run":"marks","round":4,' in result.stdout


def test_a_finding_is_one_line_of_bounded_length(played: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(played, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.sql("UPDATE rounds SET status = ? WHERE round = 4", "x\n\x1b[2Jall is well" + "x" * 100_000)
    found = violations(folder)
    assert found
    assert all(wrong.what.isprintable() and len(wrong.what) < 1000 for wrong in found)


def test_an_error_of_our_own_is_not_taken_for_one(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr("coordinator.verify.run.against_line", broken)
    with pytest.raises(TypeError, match="a bug"):
        violations(played)
