"""The same plan, seed and devices, simulated and deployed, commit the same digests.

Deployed: a coordinator's process and a process for each device, over HTTP. Simulated: ``simulate()`` with the ids that
the devices were given, since batches are shuffled by them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.tensors import to_bytes
from simulation import History, simulate
from simulation.engines import EngineName
from tests.coordinator.service.conftest import Server

SIZES = (5, 23, 40)
ROUNDS = 2
LEARNER = """
from torch import nn
from client_sdk.learning import Learner

learner = Learner(
    model=lambda: nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 3)),
    loss=nn.functional.cross_entropy,
    version="1",
)
"""
PLAN: dict[str, Any] = {
    "name": "both-ways",
    "task": {
        "learner": "both_ways:learner",
        "epochs": 2,
        "batch_size": 8,
        "learning_rate": 0.2,
        "mu": 0.01,
        "codec": "float16@1",
        "seed": 11,
    },
    "cohort": {"select": len(SIZES), "goal": len(SIZES), "quorum": 1.0, "collect_s": 120},
    "aggregation": {"weight_cap": 30, "clip_norm": 0.5, "server_learning_rate": 1.5},
    "finish": {"rounds": ROUNDS},
}


OPTIMIZED: dict[str, Any] = {
    **PLAN,
    "name": "optimized",
    "task": {**PLAN["task"], "codec": "stochastic8@1"},
    "aggregation": {
        "weight_cap": 30,
        "server_optimizer": "fedadam",
        "server_optimizer_parameters": {"tau": 0.01},
        "server_learning_rate": 0.05,
    },
    "schedule": {"learning_rate": {"last": 0.5}, "mu": {"shape": "linear"}, "server_learning_rate": {"warmup": 1}},
}
"""What draws at the device, what the server remembers from round to round, and rates that change."""

SHARED: dict[str, Any] = {
    **PLAN,
    "name": "shared",
    "task": {**PLAN["task"], "codec": "sampled-half-rotated@1"},
}
"""What all devices of a round draw alike, from the plan and the round."""

FEW_BITS: dict[str, Any] = {
    **PLAN,
    "name": "few-bits",
    "task": {**PLAN["task"], "codec": "eden1@1"},
}
"""What each device draws and rotates by itself."""

ENTROPY: dict[str, Any] = {
    **PLAN,
    "name": "entropy",
    "task": {**PLAN["task"], "codec": "entropy2@1"},
}
"""What is coded in as few bytes as it needs, in a body of fixed length."""

BY_LOSS: dict[str, Any] = {
    **PLAN,
    "name": "by-loss",
    "cohort": {"select": 2, "goal": 2, "quorum": 1.0, "pool": 3, "collect_s": 120, "choose": "power-of-choice"},
    "aggregation": {"weighting": "equal"},
    "finish": {"rounds": 6},
}
"""Whom the coordinator draws by the losses of earlier rounds."""

BY_STRATEGY: dict[str, Any] = {
    **PLAN,
    "name": "by-strategy",
    "aggregation": {"weight_cap": 30, "server_optimizer": "lamb", "server_learning_rate": 0.05},
    "strategy": {"name": "fednova"},
}
"""What reads the devices' reports and their updates one by one, and a server optimizer that sees layers."""


CORRECTED: dict[str, Any] = {
    **PLAN,
    "name": "corrected",
    "aggregation": {"weighting": "equal", "server_optimizer": "fedadam", "server_learning_rate": 0.05},
    "strategy": {"name": "scaffold", "parameters": {"population": 3}},
    "finish": {"rounds": 3},
}
"""What devices keep from round to round, and tensors that travel both ways beside the model."""

FED_BACK: dict[str, Any] = {
    **PLAN,
    "name": "fed-back",
    "task": {**PLAN["task"], "codec": "sign@1"},
    "strategy": {"name": "error-feedback", "parameters": {"momentum": 0.5}},
    "finish": {"rounds": 3},
}
"""A codec that draws, and what it leaves out, which devices keep."""

PERSONAL: dict[str, Any] = {
    **PLAN,
    "name": "personal",
    "task": {**PLAN["task"], "averaged": ["!4.*"]},
    "strategy": {"name": "fedrep"},
    "finish": {"rounds": 3},
}
"""What devices keep to themselves."""


def shard(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    size = SIZES[number]
    x = rng.standard_normal((size, 6)).astype(np.float32)
    return x, ((x[:, 0] > 0) + number % 2).astype(np.int64)


PLANS = {
    "average": PLAN,
    "fedadam, stochastic8": OPTIMIZED,
    "sampled, rotated": SHARED,
    "eden, one bit": FEW_BITS,
    "entropy, two bits": ENTROPY,
    "fednova, lamb": BY_STRATEGY,
    "scaffold, fedadam": CORRECTED,
    "fedrep": PERSONAL,
    "sign, error feedback": FED_BACK,
}


def rounds_of(*plans: dict[str, Any]) -> int:
    return sum(int(plan["finish"]["rounds"]) for plan in plans)


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("learner")
    (folder / "both_ways.py").write_text(LEARNER)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield import_module("both_ways").learner


@dataclass
class Deployed:
    """What real processes did with the plans, one after another."""

    ids: dict[str, int]
    """Device id -> shard."""
    lines: dict[str, list[str]]
    """Plan -> the digests of its line."""
    counted: dict[str, list[list[tuple[str, int]]]]
    """Plan -> (device, weight) of each round."""


@pytest.fixture(scope="module")
def deployed(learner: Any, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    folder = tmp_path_factory.mktemp("deployed")
    (folder / "both_ways.py").write_text(LEARNER)
    server, devices = Server.start(folder / "coordinator"), []
    try:
        with OperatorClient(server.url) as operator:
            first = operator.upload_checkpoint(to_bytes(learner.initial(3)))
            runs = {name: operator.create_run(plan, first, "a test").run for name, plan in PLANS.items()}
            for number in range(len(SIZES)):
                devices.append(start_device(folder, server, number, "--rounds", str(rounds_of(*PLANS.values()))))
            assert [device.wait(200) for device in devices] == [0] * len(SIZES)
            lines = {}
            for name, run in runs.items():
                for _ in operator.events(run):
                    pass
                lines[name] = [view.digest for view in operator.checkpoints(run)]
            ids = {view.device: int(view.label.rsplit("-", 1)[1]) for view in operator.devices()}
    finally:
        for device in devices:
            device.kill()
        server.stop()
    counted = {}
    for name, run in runs.items():
        with History.open(folder / "coordinator", run) as history:
            rounds = range(1, rounds_of(PLANS[name]) + 1)
            counted[name] = [contributions(history, number) for number in rounds]
    return Deployed(ids, lines, counted)


def start_device(folder: Path, server: Server, number: int, *options: str) -> subprocess.Popen[bytes]:
    """The process of a device with this shard."""
    x, y = shard(number)
    np.savez(folder / f"{number}.npz", x=x, y=y)
    command = [sys.executable, "-m", "client_sdk.cli", "device", "--coordinator", server.url]
    command += ["--token-file", server.token_file, "--learner", "both_ways:learner", "--data", f"{number}.npz"]
    command += ["--folder", f"device-{number}", "--label", f"shard-{number}", *options]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)


def contributions(history: History, round: int) -> list[tuple[str, int]]:
    return [(row.device, row.weight) for row in history._store.contributions(history.run, round)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_simulated_and_deployed_runs_commit_equal_digests(learner: Any, deployed: Deployed, name: str) -> None:
    line, counted, rounds = deployed.lines[name], deployed.counted[name], rounds_of(PLANS[name])
    assert len(line) == rounds + 1
    clients = {device: shard(number) for device, number in deployed.ids.items()}
    engines: list[EngineName] = ["serial", "processes"]
    for engine in engines:
        history = simulate(PLANS[name], learner, clients, init=learner.initial(3), engine=engine, progress=False)
        assert [view.digest for _, view in sorted(history.checkpoints.items())] == line
        assert [contributions(history, number) for number in range(1, rounds + 1)] == counted


@pytest.mark.slow
def test_simulated_and_deployed_runs_draw_the_same_devices_by_their_losses(
    learner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the coordinator's secret seed is: the simulation gets that of the deployed run."""
    (tmp_path / "both_ways.py").write_text(LEARNER)
    initial, rounds, devices = learner.initial(3), BY_LOSS["finish"]["rounds"], []
    server = Server.start(tmp_path / "coordinator")
    try:
        with OperatorClient(server.url) as operator:
            run = operator.create_run(BY_LOSS, operator.upload_checkpoint(to_bytes(initial)), "a test").run
            devices = [start_device(tmp_path, server, number) for number in range(len(SIZES))]
            for _ in operator.events(run):
                pass
            ids = {view.device: int(view.label.rsplit("-", 1)[1]) for view in operator.devices()}
    finally:
        for device in devices:
            device.kill()
        server.stop()
    with History.open(tmp_path / "coordinator") as history:
        counted = [contributions(history, number) for number in range(1, rounds + 1)]
        row = history._store.run(run)
        line = [found.digest for found in history._store.checkpoints(run)]
    assert row is not None
    assert len({tuple(device for device, _ in cohort) for cohort in counted}) > 1
    secret = (row.selection_seed << 1).to_bytes(8, "big")
    monkeypatch.setattr("simulation.virtual.simulation._entropy", lambda seed: lambda count: secret[:count])
    clients = {device: shard(number) for device, number in ids.items()}
    with simulate(BY_LOSS, learner, clients, init=initial, progress=False) as found:
        assert [contributions(found, number) for number in range(1, rounds + 1)] == counted
        assert [one.digest for one in found._store.checkpoints(found.run)] == line
