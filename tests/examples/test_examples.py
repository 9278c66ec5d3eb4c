"""The examples run as they are, on a small setting, in a folder of their own; and they stay short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.datasets import DataUnavailable, load
from tests.rotating import on_day

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example: str, folder: Path, data: str, rounds: int) -> str:
    """What the example prints."""
    try:
        load(data)
    except DataUnavailable as error:
        pytest.skip(str(error))
    environment = os.environ | {"ROUNDS": str(rounds), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / example], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_is_short() -> None:
    lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in EXAMPLES.glob("simulate_*.py")}
    few = {"simulate_image.py", "simulate_tabular.py", "simulate_text.py"}
    assert lines.keys() == few | {"simulate_clusters.py", "simulate_hierarchy.py"}
    assert all(lines[name] < 60 for name in few)
    assert max(lines.values()) < 100


@on_day(0, of=5)
@pytest.mark.service
def test_images(tmp_path: Path) -> None:
    message = run("simulate_image.py", tmp_path, "fashion-mnist", rounds=2)
    assert "200 clients, 48,000 training examples" in message
    assert "2 of 2 rounds committed, finished" in message
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"who-holds-what.svg", "fashion.png", "fashion.safetensors"}


@on_day(1, of=5)
@pytest.mark.service
def test_text(tmp_path: Path) -> None:
    message = run("simulate_text.py", tmp_path, "shakespeare-unrolled", rounds=1)
    assert "435 roles" in message
    assert "1 of 1 rounds committed, finished" in message
    assert "of the next characters are right" in message
    assert (tmp_path / "shakespeare.png").stat().st_size > 1000


@on_day(2, of=5)
@pytest.mark.service
def test_tables(tmp_path: Path) -> None:
    message = run("simulate_tabular.py", tmp_path, "adult", rounds=2)
    assert "2 of 2 rounds committed, finished" in message
    scores = {line.split()[0]: line.split()[1] for line in message.splitlines() if line.endswith("%")}
    assert len(scores) == 15, "every occupation has a score of its own"
    assert float(scores["other-service"].rstrip("%")) > 80
    assert (tmp_path / "income.csv").read_text("utf-8").startswith("version,source,name,value")


@on_day(3, of=5)
@pytest.mark.service
def test_clusters(tmp_path: Path) -> None:
    message = run("simulate_clusters.py", tmp_path, "mnist", rounds=6)
    one, two = (float(found) for found in re.findall(r": ([\d.]+)% of clients' own", message))
    assert two > one + 10
    chosen = sorted(re.findall(r"of 20 clients \w+, (\d+) choose model 0 and (\d+) choose model 1", message))
    assert chosen == [("0", "20"), ("20", "0")], "each group has found a model of its own"


@on_day(4, of=5)
@pytest.mark.service
def test_a_hierarchy(tmp_path: Path) -> None:
    message = run("simulate_hierarchy.py", tmp_path, "mnist", rounds=2)
    assert "the sum of five partial sums has the bits of the sum of forty updates: True" in message
    assert float(re.findall("the two models differ by (.*) at most", message)[0]) < 1e-6
    flat, edges, often = (float(found) for found in re.findall(r"updates a round: ([\d.]+)%", message))
    assert abs(flat - edges) < 0.1
    assert often > flat + 10
