"""``make mutate``: samples are repeatable, mutations change their file, each is held against the tests that execute it,
and a mutation that tests miss survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.mutation import calls, choice, places, trial
from scripts.mutation.calls import RecordedTest
from scripts.mutation.places import Mutation
from scripts.mutation.recorder import PACKAGES
from tests.packaging.conftest import ROOT

CHANCE = ROOT / "client_sdk" / "chance.py"
SUMS = """
from __future__ import annotations

MOST = 3
OTHER = 4
CONFIG = ConfigDict(frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    least: Annotated[int, Field(ge=0)] = 1

    def of(self, x: Literal[5], y: Array[6] = 0, *, z: int = 2) -> Array[7]:
        log.info("%s", 8)
        return x + y + MOST


if TYPE_CHECKING:
    COUNT = 9
"""


def sums(tmp_path: Path) -> Path:
    """A checkout with one file of the product."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    file = tmp_path / "client_sdk" / "sums.py"
    file.write_text(SUMS)
    return file


def changes(tmp_path: Path) -> dict[str, Mutation]:
    """The mutations of that file by the line that they make, without its spaces."""
    file = sums(tmp_path)
    return {
        line.replace(" ", ""): mutation
        for mutation in places.mutations(tmp_path, file)
        for line in set(mutation.of(SUMS).splitlines()) - set(SUMS.splitlines())
    }


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    every = places.mutations(ROOT, CHANCE)
    assert len(every) == len(set(every)) > 5
    assert places.sample(every, 4, 1) == places.sample(list(reversed(every)), 4, 1)
    assert places.sample(every, 4, 1) != places.sample(every, 4, 2)
    assert len(places.sample(every, 10**6, 1)) == len(every)


def test_every_mutation_changes_its_file() -> None:
    source = CHANCE.read_text()
    changed = [mutation.of(source) for mutation in places.mutations(ROOT, CHANCE)]
    assert source not in changed
    assert all(len(text.splitlines()) == len(source.splitlines()) for text in changed)


def test_what_nobody_can_see_by_construction_is_not_sampled(tmp_path: Path) -> None:
    found = changes(tmp_path)
    assert {"MOST=4", "returnx-y+MOST", "defof(self,x:Literal[6],y:Array[6]=0,*,z:int=2)->Array[7]:"} <= set(found)
    assert "least:Annotated[int,Field(ge=1)]=1" in found, "pydantic evaluates a call in an annotation"
    assert not [line for line in found if line.startswith(("@", "log.", "COUNT", "CONFIG"))]
    assert not [
        line
        for line in found
        if line.startswith("def") and not all(part in line for part in ("Array[6]", "Array[7]", ",*,"))
    ]


def test_a_mutation_is_held_against_the_tests_that_call_its_function(tmp_path: Path) -> None:
    found = changes(tmp_path)
    calling = frozenset({"client_sdk/sums.py Bounds.of"})
    every = [
        RecordedTest("tests/coordinator/test_far.py::test_slow", 9.0, calling),
        RecordedTest("tests/coordinator/test_far.py::test_quick", 1.0, calling),
        RecordedTest("tests/coordinator/test_near.py::test_whole", 0.5, calling),
        RecordedTest("tests/coordinator/test_near.py::test_beside", 0.5, frozenset()),
        RecordedTest("tests/coordinator/test_too_slow.py::test_it", 90.0, calling),
        RecordedTest("tests/client_sdk/test_other.py::test_it", 1.0, frozenset()),
    ]
    far = ["tests/coordinator/test_far.py::test_quick", "tests/coordinator/test_far.py::test_slow"]
    body = choice.chosen(found["returnx-y+MOST"], every, tmp_path)
    assert body == ["tests/coordinator/test_near.py", *far]
    constant = choice.chosen(found["MOST=4"], every, tmp_path)
    assert constant == ["tests/client_sdk/test_other.py", "tests/coordinator/test_near.py", *far], "and its room's"
    assert choice.chosen(found["OTHER=5"], every, tmp_path) == ["tests/client_sdk/test_other.py"]


@pytest.mark.parametrize(
    ("test", "file", "belongs"),
    [
        ("tests/coordinator/engine/test_rounds.py", "coordinator/engine/plan.py", True),
        ("tests/coordinator/engine/test_rounds.py", "coordinator/engine/aggregation/rules.py", True),
        ("tests/client_sdk/test_chance.py", "client_sdk/codecs/port.py", True),
        ("tests/client_sdk/test_stochastic8.py", "client_sdk/codecs/stochastic8.py", True),
        ("tests/client_sdk/test_codecs.py", "client_sdk/tensors/floats.py", False),
    ],
)
def test_tests_of_a_room_have_its_path_or_its_name(test: str, file: str, belongs: bool) -> None:
    folders = {"tests/client_sdk", "tests/client_sdk/tensors", "tests/coordinator/engine"}
    assert choice.of_the_room(test, file, folders) is belongs


def test_a_room_that_is_not_there_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.mutation", "nowhere"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("There is no room nowhere;")


@pytest.mark.slow
def test_a_mutation_that_tests_notice_has_not_survived(tmp_path: Path) -> None:
    (tmp_path / "client_sdk").mkdir()
    (tmp_path / "client_sdk" / "__init__.py").touch()
    (tmp_path / "tests" / "client_sdk").mkdir(parents=True)
    (tmp_path / "client_sdk" / "sums.py").write_text(
        "def add(a, b):\n    return a + b\n\n\ndef unused():\n    return 1 + 2\n"
    )
    test = tmp_path / "tests" / "client_sdk" / "test_sums.py"
    test.write_text("from client_sdk.sums import add\n\n\ndef test_add():\n    assert add(2, 1) == 3\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    service\n    soak\n")
    store = tmp_path / ".mutate"
    copy = trial.Copy(tmp_path, store / "copy")
    mutations = [
        mutation
        for mutation in places.mutations(tmp_path, tmp_path / "client_sdk")
        if mutation.operator == "ReplaceBinaryOperator_Add_Sub"
    ]
    found = [copy.verdict(mutation, ["tests/client_sdk"], 60) for mutation in mutations]
    assert [(one.outcome, one.survived) for one in found] == [("failed", False), ("passed", True)]
    assert found[0].noticed_by == "tests/client_sdk/test_sums.py::test_add"
    assert found[0].diff[1:] == ["-    return a + b", "+    return a - b"]
    assert "a + b" in (copy.folder / "client_sdk" / "sums.py").read_text(), "the mutation is taken back"

    for verdict in found:
        trial.store(store, replace(verdict, seconds=0.0))
        trial.store(store, verdict)
    assert trial.stored(store) == {verdict.mutation: verdict for verdict in found}, "the last one counts"

    def digests() -> list[str]:
        return [
            trial.digest_of(tmp_path, mutation, verdict.outcome, verdict.noticed_by)
            for mutation, verdict in zip(mutations, found, strict=True)
        ]

    assert digests() == [verdict.digest for verdict in found]
    (tmp_path / "client_sdk" / "new.py").write_text("NEW = 1\n")
    assert digests() == [found[0].digest, digests()[1]] != [verdict.digest for verdict in found]
    test.write_text(test.read_text() + "\n")
    assert digests()[0] != found[0].digest, "the test that noticed it is another one"


@pytest.mark.slow
def test_the_recorder_names_what_each_test_calls_through_fixtures_and_threads_too(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_chance.py").write_text(
        "import threading, pytest\nfrom client_sdk import chance\n\n\n"
        "@pytest.fixture(scope='module')\ndef word(): return chance.sha256_word(b'a')\n\n\n"
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_first(word, n): assert n == 1 or chance.unit(word) < 1\n\n\n"
        "def test_second(word): threading.Thread(target=chance.above_zero, args=(word,)).start()\n\n\n"
        "def test_fails(): assert False\n"
    )
    written = tmp_path / "calls.json"
    recorder = ["-p", "scripts.mutation.recorder", "--calls", str(written)]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *recorder, "test_chance.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    found = json.loads(written.read_text())
    assert {name: test["passed"] for name, test in found.items()} == {
        "test_chance.py::test_first": True,
        "test_chance.py::test_second": True,
        "test_chance.py::test_fails": False,
    }
    fixture = {"client_sdk/chance.py sha256_word", "client_sdk/chance.py sha256_bytes"}
    assert set(found["test_chance.py::test_first"]["calls"]) == fixture | {"client_sdk/chance.py unit"}
    assert set(found["test_chance.py::test_second"]["calls"]) == fixture | {"client_sdk/chance.py above_zero"}
    assert found["test_chance.py::test_fails"]["calls"] == []


def test_repro_a_file_of_tests_that_changes_while_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is not stored, since nobody knows of which text it is: the next call records it again."""
    folder = tmp_path / "tests" / "client_sdk"
    folder.mkdir(parents=True)
    still, changing = folder / "test_still.py", folder / "test_changing.py"
    for file in (still, changing):
        file.write_text("def test_one(): pass\n")
    runs: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        names = [part for part in command if part.endswith(".py")]
        runs.append(names)
        if len(runs) == 1:
            changing.write_text("def test_two(): pass\n")
        found = {f"{name}::test_one": {"seconds": 0.1, "calls": [], "passed": True} for name in names}
        Path(command[command.index("--calls") + 1]).write_text(json.dumps(found))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    both = {"tests/client_sdk/test_still.py::test_one", "tests/client_sdk/test_changing.py::test_one"}
    assert {test.name for test in calls.recorded(tmp_path, tmp_path / "calls")} == both
    assert {test.name for test in calls.recorded(tmp_path, tmp_path / "calls")} == both
    assert runs[1] == ["tests/client_sdk/test_changing.py"]
