"""The benchmark of Flower runs: its rows are complete, other losses end it, and a run trains what the app says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import _flower_runs, flower
from benchmarks._flower_runs import Sample, simulations
from benchmarks._process_tree import Metered
from benchmarks.flower_app.flower_app import task
from benchmarks.harness import main
from tests.rotating import on_day


def fixed(cpu_s: float, loss: float = 2.0) -> Callable[[Path], Sample]:
    return lambda folder: Sample(seconds=2 * cpu_s, cpu_s=cpu_s, loss=loss)


def test_its_rows_are_complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_flower_runs, "simulations", lambda nodes: (fixed(1 + nodes / 100), fixed(10 + nodes / 100)))
    monkeypatch.setattr(_flower_runs, "our_deployment", fixed(3.0))
    monkeypatch.setattr(_flower_runs, "flowers_deployment", fixed(12.0))
    main("flower", flower.measure, ["--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["results"]}
    assert rows["flower_100_cpu_ratio"]["value"] == pytest.approx(2 / 11)
    assert (rows["flower_100_cpu_ratio"]["aim"], rows["flower_100_cpu_ratio"]["met"]) == (0.5, True)
    assert rows["flower_4_cpu_ratio"]["met"] is None
    assert rows["flower_deployed_cpu_ratio"]["value"] == pytest.approx(0.25)
    assert (rows["flower_4_s"]["value"], rows["flower_4_s"]["peer"]) == (pytest.approx(2.08), pytest.approx(20.08))
    assert rows["flower_per_message_ms"]["value"] == pytest.approx(1000 * 0.96 / 288)
    assert "load" in rows
    main("flower", flower.measure, ["--quick", "--json"])
    assert "flower_100_cpu_ratio" not in capsys.readouterr().out


def test_other_losses_are_never_reported() -> None:
    with pytest.raises(SystemExit, match="wrong results"):
        flower.beside(fixed(1.0), fixed(2.0, loss=2.0001), 1)


@pytest.mark.slow
def test_what_a_command_and_its_children_use_is_counted(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 1.0: pass"
    both = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {burn!r}])\n{burn}\nchild.wait()"
    with Metered() as metered:
        metered.run([sys.executable, "-c", both], tmp_path / "log")
        assert 1.5 < metered.cpu_s < 6
    with Metered() as metered, pytest.raises(SystemExit, match=r"ended with status 3:\nwhy"):
        metered.run([sys.executable, "-c", "print('why'); raise SystemExit(3)"], tmp_path / "log2")


@on_day(0, of=2)
def test_ours_trains_what_the_app_says(tmp_path: Path) -> None:
    ours, _ = simulations(2)
    sample = ours(tmp_path)
    model = task.initial()
    losses: list[float] = []
    for _ in range(3):
        trained = []
        for partition in range(2):
            mine = [array.copy() for array in model]
            losses.append(task.train(mine, partition))
            trained.append(mine)
        model = [(one + other) / 2 for one, other in zip(*trained, strict=True)]
    assert sample.loss == pytest.approx(sum(losses[-2:]) / 2, rel=1e-5)
    assert sample.cpu_s > 0
    assert not subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout
