"""The same plan, seed and devices, simulated and deployed, commit the same digests.

Deployed: a coordinator's process and a process for each device, over HTTP. Simulated: ``simulate()`` with the ids that
the devices were given, since batches are shuffled by them.
"""

from __future__ import annotations

import subprocess
import sys
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


def shard(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    size = SIZES[number]
    x = rng.standard_normal((size, 6)).astype(np.float32)
    return x, ((x[:, 0] > 0) + number % 2).astype(np.int64)


def deploy(
    folder: Path, initial: bytes, plan: dict[str, Any]
) -> tuple[list[str], dict[str, int], list[list[tuple[str, int]]]]:
    """Real processes: (digests of the line, device id -> shard, (device, weight) of each round)."""
    server = Server.start(folder / "coordinator")
    devices = []
    try:
        with OperatorClient(server.url) as operator:
            run = operator.create_run(plan, operator.upload_checkpoint(initial), "a test").run
            for number in range(len(SIZES)):
                x, y = shard(number)
                np.savez(folder / f"{number}.npz", x=x, y=y)
                command = [sys.executable, "-m", "client_sdk.cli", "device", "--coordinator", server.url]
                command += [
                    "--token-file",
                    server.token_file,
                    "--learner",
                    "both_ways:learner",
                    "--data",
                    f"{number}.npz",
                ]
                command += ["--folder", f"device-{number}", "--label", f"shard-{number}", "--rounds", str(ROUNDS)]
                devices.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL))
            assert [device.wait(200) for device in devices] == [0] * len(SIZES)
            for _ in operator.events(run):
                pass
            line = [view.digest for view in operator.checkpoints(run)]
            ids = {view.device: int(view.label.rsplit("-", 1)[1]) for view in operator.devices()}
    finally:
        for device in devices:
            device.kill()
        server.stop()
    with History.open(folder / "coordinator") as history:
        counted = [contributions(history, number) for number in range(1, ROUNDS + 1)]
    return line, ids, counted


def contributions(history: History, round: int) -> list[tuple[str, int]]:
    return [(row.device, row.weight) for row in history._store.contributions(history.run, round)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [PLAN, OPTIMIZED, SHARED, FEW_BITS, ENTROPY],
    ids=["average", "fedadam, stochastic8", "sampled, rotated", "eden, one bit", "entropy, two bits"],
)
def test_simulated_and_deployed_runs_commit_equal_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any]
) -> None:
    (tmp_path / "both_ways.py").write_text(LEARNER)
    monkeypatch.syspath_prepend(str(tmp_path))
    from both_ways import learner  # type: ignore[import-not-found]

    initial = learner.initial(3)
    line, ids, counted = deploy(tmp_path, to_bytes(initial), plan)
    assert len(line) == ROUNDS + 1
    clients = {device: shard(number) for device, number in ids.items()}
    engines: list[EngineName] = ["serial", "processes"]
    for engine in engines:
        history = simulate(plan, learner, clients, init=initial, engine=engine, progress=False)
        assert [view.digest for _, view in sorted(history.checkpoints.items())] == line
        assert [contributions(history, number) for number in range(1, ROUNDS + 1)] == counted
