"""Rates that change by version, in rounds: what devices get, what the server does, and that a log gives it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, database_url
from coordinator.engine.plan import Plan
from coordinator.store import open_store
from coordinator.verify import verify
from simulation import Behaviour, History, simulate
from simulation.engines import EngineName

pytestmark = pytest.mark.whole

SCHEDULE = {"learning_rate": {"last": 0.1}, "server_learning_rate": {"shape": "steps", "factor": 0.5}}
CLIENTS = {f"c{at}": (np.full((4, 1), float(at), np.float32), np.zeros(4)) for at in range(4)}
INIT = {"w": np.zeros(3, np.float32)}


def learner(model: Tensors, data: Any, task: Task) -> Update:
    """Moves by the rate that it is told."""
    work = Work(steps=1, steps_planned=1, epochs=1.0, examples_seen=4)
    return Update({"w": np.full(3, task.learning_rate, np.float32)}, 4, work=work)


def plan(**more: Any) -> dict[str, Any]:
    return {
        "name": "rates",
        "task": {"learning_rate": 0.5},
        "cohort": {"select": 4, "goal": 4, "quorum": 0.5, "collect_s": 60},
        "finish": {"rounds": 4},
        "schedule": SCHEDULE,
        **more,
    }


def wanted(data: dict[str, Any]) -> list[float]:
    """The model's value after each version, by hand."""
    found, at = Plan.parse({**data, "task": {**data["task"], "learner": "a:b"}}), [0.0]
    for version in range(4):
        step = found.task_at(version).learning_rate * found.settings_at(version)["server_learning_rate"]
        at.append(at[-1] + step)
    return at


def models(history: History) -> list[float]:
    return [float(history.checkpoint(version)["w"][0]) for version in sorted(history.checkpoints)]


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_each_version_is_made_with_its_rates(engine: EngineName) -> None:
    history = simulate(plan(), learner, CLIENTS, init=INIT, engine=engine, keep_checkpoints="all", progress=False)
    line = models(history)
    np.testing.assert_allclose(line, wanted(plan()), rtol=1e-6)


def test_abandoned_rounds_change_no_rate() -> None:
    behaviour = Behaviour(dropout=0.45)
    history = simulate(
        plan(), learner, CLIENTS, init=INIT, behaviour=behaviour, seed=3, keep_checkpoints="all", progress=False
    )
    assert history.rounds[-1].round > 4, "no round was abandoned: the test shows nothing"
    line = models(history)
    np.testing.assert_allclose(line, wanted(plan()), rtol=1e-6)


def test_a_run_that_is_resumed_goes_on_with_its_rates_and_the_log_gives_it_again(tmp_path: Path) -> None:
    whole = simulate(plan(retention={"rounds": 9}), learner, CLIENTS, init=INIT, keep_checkpoints="all", progress=False)
    data = plan(retention={"rounds": 9})
    simulate(data, learner, CLIENTS, init=INIT, rounds=2, folder=tmp_path, keep_checkpoints="all", progress=False)
    history = simulate(data, learner, CLIENTS, init=INIT, folder=tmp_path, keep_checkpoints="all", progress=False)
    assert [view.digest for view in history.checkpoints.values()] == [
        view.digest for view in whole.checkpoints.values()
    ]
    store = open_store(database_url(tmp_path))
    try:
        found = verify(store, FileBlobs(tmp_path / BLOBS_FOLDER))
    finally:
        store.close()
    assert [str(one) for one in found] == []


@pytest.mark.slow
def test_a_secure_round_has_them_too() -> None:
    secure = {"max_norm": 2.0, "max_abs": 1.0, "minimum_cohort": 3}
    data = plan(secure=secure, aggregation={"partial": "refuse", "weighting": "equal"})
    history = simulate(data, learner, CLIENTS, init=INIT, keep_checkpoints="all", progress=False)
    line = models(history)
    np.testing.assert_allclose(line, wanted(data), atol=1e-3)
