"""The benchmark of simulation: its rounds are the bare loop's, its rows are complete, and wrong models end it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import simulation
from benchmarks._rounds import Bare, Played, furthest
from benchmarks.harness import main
from client_sdk.update import Update
from simulation import Clients, partition
from simulation.learners import MnistMlp, MnistMlp200, mnist_mlp, mnist_mlp_200
from tests.rotating import on_day

torch.set_num_threads(1)


def few(count: int = 30) -> Clients:
    """Clients with two images each."""
    rng = np.random.default_rng(0)
    return partition((rng.random((2 * count, 28, 28), np.float32), np.arange(2 * count) % 10), count, by="iid")


@pytest.mark.slow
def test_the_bare_loop_trains_the_same_rounds() -> None:
    learner = mnist_mlp()
    clients = few()
    initial = learner.initial(0)
    with Played(learner, clients, 5) as ours:
        bare = Bare(MnistMlp, clients, ours, initial)
        for _ in range(3):
            ours.play()
            bare.play()
            assert furthest(ours.model(), bare.world) < 1e-6
        assert furthest(initial, bare.world) > 1e-3
        ours.play()
        assert furthest(ours.model(), bare.world) > 1e-4


@pytest.mark.slow
def test_another_model_is_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "furthest", lambda model, world: 1e-3)
    with pytest.raises(SystemExit, match="wrong results"):
        simulation.beside_bare(mnist_mlp_200(), MnistMlp200, few(), 2, 1)


def test_a_client_that_fails_ends_it() -> None:
    def broken(model: Any, data: Any, task: Any) -> Any:
        raise ValueError("no")

    with Played(broken, few(), 2, init={"w": np.zeros(3, np.float32)}) as ours, pytest.raises(SystemExit, match="no"):
        ours.play()


@on_day(1, of=2)
def test_peak_memory_is_this_process_s_own() -> None:
    """In a process of its own: the peak of this one is whatever earlier tests needed, and a child inherits it."""
    source = (
        "import numpy; from benchmarks import simulation; print(simulation.peak_bytes()); "
        "held = numpy.ones(2**30, numpy.int8); print(simulation.peak_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.PIPE)
    small, large = map(int, done.stdout.split())
    assert small < 2**30
    assert 2**29 < large - small < 2**30 + 2**29


@on_day(1, of=4)
def test_the_simulation_benchmark_reports_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "clients_of", few)
    monkeypatch.setattr(simulation, "child", lambda call: simulation.time.time() + 3 if "start" in call else 2.0**29)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    main("simulation", simulation.measure, ["--quick", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out.splitlines()[-1])["results"]}
    aims = {name: row["aim"] for name, row in rows.items() if row["aim"] is not None}
    assert aims == {
        "mlp_vs_bare": 0.63,
        "cnn_vs_bare": 0.88,
        "engine_ms_per_client": 0.3,
        "processes_2_speedup": 1.6,
        "cnn_processes_2_speedup": 1.9,
        "start_s": 5.0,
        "million_registered_gib": 1.0,
    }
    assert (rows["million_registered_gib"]["value"], rows["million_registered_gib"]["met"]) == (0.5, True)
    assert rows["start_s"]["value"] == pytest.approx(3.0, abs=0.5)
    for name in ("mlp_vs_bare", "cnn_vs_bare", "engine_ms_per_client", "quantized_vs_plain", "processes_2_speedup"):
        assert 0 < rows[f"{name}_q1"]["value"] <= rows[name]["value"] <= rows[f"{name}_q3"]["value"]
        assert rows[name]["met"] is None, "quick claims nothing"
    assert rows["mlp_vs_flower"]["value"] is None
    assert rows["mlp_vs_pfl_research"]["value"] is None


def test_a_round_that_is_abandoned_is_not_timed() -> None:
    """It costs next to nothing, so a mean with it would flatter us."""

    def diverging(model: Any, data: Any, task: Any) -> Update:
        return Update({"w": np.full(3, np.nan, np.float32)}, examples=1)

    first = {"w": np.zeros(3, np.float32)}
    with Played(diverging, few(), 2, init=first) as ours, pytest.raises(SystemExit, match="round 1 was not committed"):
        ours.play()
    assert not ours.cohorts
