"""Apps give the same numbers on Quorate as under Flower's own simulation, each in one of the layouts of pyproject.toml.

All five nodes take part, with fixed partition ids; ``random`` and numpy are seeded in both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import forks
from tests.rotating import DAY, in_parts, on_day

APPS = Path(__file__).parent / "apps"
ROOT = APPS.parents[2]
NAMES = ("strategies", "legacy", "queries")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """Each app's numbers under Flower's simulation, as they were when they were written down."""
    numbers: dict[str, Any] = json.loads((APPS.parent / "numbers.json").read_text())
    return numbers


def on_flower(folder: Path, *names: str) -> Any:
    """Return these apps' numbers under Flower's simulation, now: one process, one Ray.

    Ray gives up, and hangs, where the machine is too busy to start its processes within 30 s; so there are three tries.
    """
    command = [sys.executable, "-m", "tests.flower.reference", str(folder / "numbers.json")]
    command += [str(APPS / name) for name in names]
    for _ in range(3):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                if process.wait(280) == 0:
                    return json.loads((folder / "numbers.json").read_text())
            except subprocess.TimeoutExpired:
                for child in [*psutil.Process(process.pid).children(recursive=True), process]:
                    child.kill()
    raise AssertionError("Flower's simulation did not end in three tries; run the command by hand")


def on_quorate(name: str, folder: Path) -> tuple[Any, dict[str, float]]:
    """Return the app's numbers, and the last line of the command."""
    environment = {**os.environ, "NUMBERS": str(folder / "numbers.json")}
    words = ["flower", "run", str(APPS / name), "--simulation", "5", "--json"]
    done = forks.run(words, cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "numbers.json").read_text()), json.loads(done.stdout.splitlines()[-1])


def same(ours: Any, flowers: Any) -> None:
    """Hold the two structures against each other: numbers to a relative 1e-5, all else exactly."""
    if isinstance(flowers, dict):
        assert ours.keys() == flowers.keys()
        for key in flowers:
            same(ours[key], flowers[key])
    elif isinstance(flowers, list):
        assert len(ours) == len(flowers)
        for one, other in zip(ours, flowers, strict=True):
            same(one, other)
    elif isinstance(flowers, float):
        assert ours == pytest.approx(flowers, rel=1e-5, abs=1e-9)
    else:
        assert ours == flowers


@pytest.mark.parametrize(
    ("name", "totals"),
    in_parts(
        [
            ("strategies", {"rounds": 2, "replies": 100, "errors": 0}),
            ("legacy", {"rounds": 2, "replies": 20, "errors": 0}),
            ("queries", {"rounds": 4, "replies": 24, "errors": 1}),
        ],
        of=3,
    ),
)
def test_numbers_are_those_of_flowers_own_simulation(
    name: str, totals: dict[str, int], reference: dict[str, Any], tmp_path: Path
) -> None:
    numbers, last = on_quorate(name, tmp_path)
    same(numbers, reference[name])
    assert {key: last[key] for key in totals} == totals
    assert last.keys() == {"rounds", "replies", "errors", "seconds"}


@on_day(1, of=4)
def test_numbers_that_were_written_down_are_flowers(reference: dict[str, Any], tmp_path: Path) -> None:
    """Of another app each time; the soak tests compare all."""
    name = NAMES[DAY % len(NAMES)]
    same(on_flower(tmp_path, name), {name: reference[name]})


@pytest.mark.soak
def test_all_numbers_that_were_written_down_are_flowers(reference: dict[str, Any], tmp_path: Path) -> None:
    same(on_flower(tmp_path, *NAMES), reference)
