"""``make mutate``: samples are repeatable, mutations change their file, and a mutation that tests miss survives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import mutate
from tests.packaging.conftest import ROOT


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    every = mutate.mutations(ROOT / "client_sdk" / "chance.py")
    assert len(every) == len(set(every)) > 5
    assert mutate.sample(every, 4, 1) == mutate.sample(list(reversed(every)), 4, 1)
    assert mutate.sample(every, 4, 1) != mutate.sample(every, 4, 2)
    assert len(mutate.sample(every, 10**6, 1)) == len(every)


def test_every_mutation_changes_its_file() -> None:
    file = ROOT / "client_sdk" / "chance.py"
    source = file.read_text()
    changed = [mutation.of(source) for mutation in mutate.mutations(file)]
    assert source not in changed
    assert all(len(text.splitlines()) == len(source.splitlines()) for text in changed)


def test_a_file_is_tested_by_its_room_and_by_tests_of_its_name() -> None:
    assert mutate.tests_of("coordinator/engine/plan.py")[0] == "tests/coordinator/engine"
    assert "tests/coordinator/test_verify.py" in mutate.tests_of("coordinator/verify.py") or (
        mutate.tests_of("coordinator/verify.py")[0] == "tests/coordinator"
    )
    assert mutate.tests_of("client_sdk/learners.py")[0] == "tests/client_sdk"


def test_a_room_that_is_not_there_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/mutate.py", "nowhere"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("There is no room nowhere;")


@pytest.mark.slow
def test_a_mutation_that_tests_notice_has_not_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client_sdk").mkdir()
    (tmp_path / "client_sdk" / "__init__.py").touch()
    (tmp_path / "tests" / "client_sdk").mkdir(parents=True)
    (tmp_path / "client_sdk" / "sums.py").write_text(
        "def add(a, b):\n    return a + b\n\n\ndef unused():\n    return 1 + 2\n"
    )
    (tmp_path / "tests" / "client_sdk" / "test_sums.py").write_text(
        "from client_sdk.sums import add\n\n\ndef test_add():\n    assert add(2, 1) == 3\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    service\n    soak\n")
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "FOLDER", tmp_path / ".mutate")
    copy = mutate.Copy(tmp_path / ".mutate" / "copy")
    found = [
        copy.verdict(mutation, 1.0)
        for mutation in mutate.mutations(tmp_path / "client_sdk")
        if mutation.operator == "ReplaceBinaryOperator_Add_Sub"
    ]
    assert [(one["outcome"], one["survived"]) for one in found] == [("failed", False), ("passed", True)]
    assert found[0]["diff"][1:] == ["-    return a + b", "+    return a - b"]
    assert "a + b" in (copy.folder / "client_sdk" / "sums.py").read_text(), "the mutation is taken back"
