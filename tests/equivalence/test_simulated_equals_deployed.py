"""The same plan, seed and devices, simulated and deployed, commit the same digests.

Deployed: a coordinator's process and a process for each device, over HTTP. Simulated: ``simulate()`` with the ids that
the devices were given, since batches are shuffled by them. All plans run in one deployment, by the same devices,
and in the middle of that the coordinator is killed, and then a device.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import codecs
from client_sdk.device.storage import read_record
from client_sdk.http.operator import OperatorClient
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from coordinator.engine.aggregation.registry import SERVER_OPTIMIZERS
from coordinator.engine.aggregation.strategies import STRATEGIES
from coordinator.engine.plan import Plan
from simulation import History, simulate
from simulation.engines import EngineName
from simulation.virtual.secure_world import SimulatedAuthority
from tests.coordinator.service.conftest import Server
from tests.examples.page_package import installed_in
from tests.forks import ANY, Forked

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


TRUSTED: dict[str, Any] = {"weighting": "equal", "server_learning_rate": 0.05}
OTHERS = {
    "adaptive-mu": ({}, {"server_optimizer": "radam"}, {"codec": "stochastic2-rotated@1"}),
    "q-ffl": ({"q": 1.0}, {"server_optimizer": "fedavgm"}, {"codec": "entropy4@1"}),
    "feddyn": ({"population": 4}, {"server_optimizer": "fedyogi"}, {"codec": "eden4@1"}),
    "ditto": ({"lambda": 0.5}, {"server_optimizer": "lars"}, {"codec": "top-tenth@1"}),
    "fedper": ({}, {"rule": "krum", "rule_parameters": {"wrong": 0}, "partial": "refuse"}, {"averaged": ["!4.*"]}),
    "fedbn": ({}, {"server_optimizer": "fedadagrad"}, {"averaged": ["!1.*"], "codec": "sampled-quarter-unbiased@1"}),
    "clinic:patient": ({"warm": 2}, {"server_optimizer": "average"}, {"codec": "clinic:coarse@1"}),
    "clinic:thrifty": ({"part": 0.5}, {"rule": "clinic:modest", "rule_version": "1", "partial": "refuse"}, {}),
}
"""Strategies that are in no plan above, each with its parameters, and what else the plan has: also those of
docs/extending.md, of a package that is installed on both sides."""


def other(name: str) -> dict[str, Any]:
    parameters, aggregation, task = OTHERS[name]
    of_package = {"version": "1", "devices": name == "clinic:thrifty"} if ":" in name else {}
    return {
        **PLAN,
        "name": name.replace(":", "-"),
        "task": {**PLAN["task"], **task},
        "aggregation": {**TRUSTED, **aggregation},
        "strategy": {"name": name, "parameters": parameters, **of_package},
    }


SECURE: dict[str, Any] = {
    **PLAN,
    "name": "masked",
    "task": {**PLAN["task"], "codec": "float32@1"},
    "aggregation": {"weighting": "examples", "weight_cap": 40, "partial": "refuse"},
    "secure": {"max_norm": 10.0, "max_abs": 1.0, "q": 20, "minimum_cohort": 3, "exchange_s": 20},
    "finish": {"rounds": 1},
}
"""Batches in an order that each device draws from a secret of its own. After a round the models differ by what each
attempt rounded, and then the orders differ."""


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
    **{name: other(name) for name in OTHERS},
}
RUNS = {**PLANS, "by loss": BY_LOSS}
"""The cohorts of the last one are drawn by the coordinator's secret."""


def rounds_of(plan: dict[str, Any]) -> int:
    return int(plan["finish"]["rounds"])


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Also the package of docs/extending.md is installed, here and in all processes that are started."""
    folder = tmp_path_factory.mktemp("learner")
    (folder / "both_ways.py").write_text(LEARNER)
    installed_in(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        yield import_module("both_ways").learner
    sys.modules.pop("clinic", None)
    codecs._of_package.cache_clear()


@dataclass
class Deployed:
    """What real processes did with the plans, one after another."""

    ids: dict[str, int]
    """Device id -> shard."""
    lines: dict[str, list[str]]
    """Plan -> the digests of its line."""
    counted: dict[str, list[list[tuple[str, int]]]]
    """Plan -> (device, weight) of each round."""
    secret: bytes
    """By which the coordinator drew the cohorts of ``BY_LOSS``."""
    secrets: dict[str, bytes]
    """Device id -> ``Record.secret``."""
    masked: Tensors
    """What the secure run committed."""


@pytest.fixture(scope="module")
def deployed(learner: Any, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    folder = tmp_path_factory.mktemp("deployed")
    server, devices = Server.start(folder / "coordinator"), []
    try:
        with OperatorClient(server.url) as operator:
            first = operator.upload_checkpoint(to_bytes(learner.initial(3)))
            runs = {name: operator.create_run(plan, first, "a test").run for name, plan in RUNS.items()}
            devices = [start_device(folder, server, number) for number in range(len(SIZES))]
            committed(operator, runs["scaffold, fedadam"])
            port = int(server.url.rsplit(":", 1)[1])
            server.stop(signal.SIGKILL)
            server = Server.start(folder / "coordinator", port=port)
            committed(operator, runs["sign, error feedback"])
            devices[1].kill()
            devices[1].wait()
            devices[1] = start_device(folder, server, 1)
            for run in runs.values():
                for _ in operator.events(run):
                    pass
            masked = operator.create_run(SECURE, first, "a test").run  # after it the devices take no plain round
            for _ in operator.events(masked):
                pass
            model = from_bytes(operator.checkpoint(operator.checkpoints(masked)[1].digest))
            ids = {view.device: int(view.label.rsplit("-", 1)[1]) for view in operator.devices()}
    finally:
        for device in devices:
            device.kill()
        server.stop()
    lines, counted, secret = {}, {}, b""
    for name, run in runs.items():
        with History.open(folder / "coordinator", run) as history:
            counted[name] = [contributions(history, number) for number in range(1, rounds_of(RUNS[name]) + 1)]
            lines[name] = [row.digest for row in history._store.checkpoints(run)]
            row = history._store.run(run)
            assert row is not None
            secret = (row.selection_seed << 1).to_bytes(8, "big")
    found = {device: read_record(folder / f"device-{number}") for device, number in ids.items()}
    secrets = {device: bytes.fromhex(record.secret) for device, record in found.items() if record is not None}
    return Deployed(ids, lines, counted, secret, secrets, model)


def start_device(folder: Path, server: Server, number: int) -> Forked:
    """The process of a device with this shard."""
    x, y = shard(number)
    np.savez(folder / f"{number}.npz", x=x, y=y)
    command = ["device", "--coordinator", server.url]
    command += ["--token-file", server.token_file, "--learner", "both_ways:learner", "--data", f"{number}.npz"]
    command += ["--folder", f"device-{number}", "--label", f"shard-{number}", "--smallest-cohort", "3"]
    command += ["--origins", "any", "--largest-move", "0"]
    command += ["--fewest-examples", "1", "--largest-batch", "1"]
    return Forked(command, ANY, cwd=folder, stdout=subprocess.DEVNULL)


def committed(operator: OperatorClient, run: str) -> None:
    """Waits for the first commit of this run, whose devices then train for the next one, or for another run."""
    for event in operator.events(run):
        if event.kind == "Committed":
            return


def contributions(history: History, round: int) -> list[tuple[str, int]]:
    return [(row.device, row.weight) for row in history._store.contributions(history.run, round)]


def test_each_strategy_and_server_optimizer_is_in_one_of_the_plans() -> None:
    asked = [Plan.parse(plan) for plan in PLANS.values()]
    assert {plan.strategy.name for plan in asked if plan.strategy is not None} >= set(STRATEGIES)
    assert {plan.aggregation.server_optimizer for plan in asked} >= set(SERVER_OPTIMIZERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_simulated_and_deployed_runs_commit_equal_digests(learner: Any, deployed: Deployed, name: str) -> None:
    line, counted, rounds = deployed.lines[name], deployed.counted[name], rounds_of(PLANS[name])
    assert len(line) == rounds + 1
    clients = {device: shard(number) for device, number in deployed.ids.items()}
    engines: list[EngineName] = ["serial"] if name in OTHERS else ["serial", "processes"]
    for engine in engines:
        history = simulate(PLANS[name], learner, clients, init=learner.initial(3), engine=engine, progress=False)
        assert [view.digest for _, view in sorted(history.checkpoints.items())] == line
        assert [contributions(history, number) for number in range(1, rounds + 1)] == counted


@pytest.mark.slow
def test_secure_rounds_equal_deployed_ones_where_the_simulation_has_the_devices_secrets(
    learner: Any, deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what rounding under the attempts' headers moves, and not by the plan's public seed."""
    clients = {device: shard(number) for device, number in deployed.ids.items()}

    def furthest() -> float:
        found = simulate(SECURE, learner, clients, init=learner.initial(3), secure="quantized", progress=False)
        model = found.checkpoint(1)
        return max(
            float(np.abs(model[name] - of.astype(model[name].dtype)).max()) for name, of in deployed.masked.items()
        )

    others = furthest()
    monkeypatch.setattr(SimulatedAuthority, "secret", lambda self, device: deployed.secrets[device])
    assert furthest() < 2e-5 < 1e-3 < others


@pytest.mark.slow
def test_simulated_and_deployed_runs_draw_the_same_devices_by_their_losses(
    learner: Any, deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the coordinator's secret seed is: the simulation gets that of the deployed run."""
    line, counted = deployed.lines["by loss"], deployed.counted["by loss"]
    assert len({tuple(device for device, _ in cohort) for cohort in counted}) > 1
    monkeypatch.setattr("simulation.virtual.simulation._entropy", lambda seed: lambda count: deployed.secret[:count])
    clients = {device: shard(number) for device, number in deployed.ids.items()}
    with simulate(BY_LOSS, learner, clients, init=learner.initial(3), progress=False) as found:
        assert [contributions(found, number) for number in range(1, rounds_of(BY_LOSS) + 1)] == counted
        assert [one.digest for one in found._store.checkpoints(found.run)] == line
