"""``quorate new`` writes a project whose test passes and whose commands work as they stand in its README."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from client_sdk.data import load_data
from coordinator.engine.plan import Plan
from tests.client_sdk.commands.run_cli import quorate
from tests.rotating import on_day

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_new_writes_a_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("new", str(tmp_path / "Credit-Risk"), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "credit_risk"
    assert {path.name for path in (tmp_path / "Credit-Risk").iterdir()} == set(document["files"])
    plan = Plan.from_toml(tmp_path / "Credit-Risk" / "plan.toml")
    assert (plan.name, plan.task.learner) == ("credit-risk", "credit_risk:learner")
    assert all("$" not in path.read_text() or path.name == "README.md" for path in (tmp_path / "Credit-Risk").iterdir())


@pytest.mark.parametrize(
    ("folder", "name"), [("Crédit Müller", "credit_muller"), ("Ünï", "uni"), ("my-proj 2", "my_proj_2")]
)
def test_the_modules_name_has_the_letters_of_the_folders(tmp_path: Path, folder: str, name: str) -> None:
    """It was ``n`` for a folder called Ünï."""
    assert quorate("new", str(tmp_path / folder)) == 0
    assert (tmp_path / folder / f"{name}.py").is_file()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("json", "A Python module json exists already"),
        ("simulation", "A Python module simulation exists already"),
        ("make-data", "A Python module make_data exists already"),
        ("3", "gives no name for a Python module"),
        ("class", "gives no name for a Python module"),
        ("full", "full exists and is not an empty folder"),
        ("file", "file exists and is not an empty folder"),
    ],
)
def test_new_overwrites_and_hides_nothing(
    tmp_path: Path, name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert quorate("new", str(tmp_path / name)) == 1
    assert sentence in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@on_day(0, of=2)
def test_a_new_project_works_as_its_readme_says(tmp_path: Path) -> None:
    folder = tmp_path / "wards"
    assert quorate("new", str(folder)) == 0
    first = re.findall(r"```\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[0]
    commands = [line.partition("#")[0].split() for line in first.strip().splitlines()]
    assert [words[:2] for words in commands] == [
        ["python", "-m"],
        ["python", "make_data.py"],
        ["quorate", "plan"],
        ["quorate", "simulate"],
    ]
    for words in commands:
        own = [sys.executable, *(["-m"] if words[0] == "quorate" else []), *words[words[0] == "python" :]]
        done = subprocess.run(own, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        if "pytest" in words:
            assert "2 passed" in done.stdout
    assert len(load_data(str(folder / "device4.npz")).train) == 100


def test_the_next_command_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("new", str(tmp_path / "my wards")) == 0
    assert f"Next: cd '{tmp_path / 'my wards'}'; python" in capsys.readouterr().out
