"""Weights of 1/p: from the log alone, the same in both engines, after a restart and on the way back from a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from client_sdk.update import Update
from coordinator.store import open_store
from simulation import Behaviour, simulate
from tests.simulation.test_treatment import INIT, client

CLIENTS = {f"c{number}": client(4, 1.0) for number in range(6)} | {f"s{number}": client(4, -1.0) for number in range(2)}
FLEET = {"slow": Behaviour(step_s=1.0, jitter_sigma=1.5), "fast": Behaviour(step_s=0.5, jitter_sigma=0.5)}
PLAN: dict[str, Any] = {
    "name": "heard",
    "cohort": {"select": 6, "goal": 4},
    "aggregation": {"inverse_participation": 8},
    "finish": {"rounds": 8},
}


def learner(model: Any, data: Any, task: Any) -> Update:
    return Update({"w": np.full(2, data[0][0, 0], np.float32)}, examples=len(data[0]))


def play(folder: Path, engine: Literal["serial", "processes"] = "serial", **options: Any) -> Any:
    kinds = {name: "slow" if name[0] == "s" else "fast" for name in CLIENTS}
    return simulate(
        PLAN, learner, CLIENTS, init=INIT, behaviour=FLEET, classes=kinds, engine=engine, folder=folder,
        **options,
    )  # fmt: skip


def test_each_update_weighs_by_how_often_its_device_counted_before(tmp_path: Path) -> None:
    history = play(tmp_path / "run")
    store = open_store(f"sqlite:///{next((tmp_path / 'run').glob('*.sqlite3'))}")
    selected, counted, model, weighed = Counter[str](), Counter[str](), 0.0, set()
    for row in store.rounds("heard", 0):
        if row.status != "committed":
            continue
        weights = {one.device: one.weight for one in store.contributions("heard", row.round)}
        for device, weight in weights.items():
            assert weight == 4 * min(8 * 64, 64 * (selected[device] + 1) // (counted[device] + 1))
            weighed.add(weight)
        total = sum(weight * (-1.0 if device[0] == "s" else 1.0) for device, weight in weights.items())
        model += total / sum(weights.values())
        cohort: Any = row.body["cohort"]
        selected.update(cohort)
        counted.update(list(weights))
    store.close()
    assert len(weighed) > 3
    assert history.checkpoint()["w"] == pytest.approx(np.full(2, model), abs=1e-5)


def test_engines_restarts_and_resumes_give_the_same_bits(tmp_path: Path) -> None:
    whole = play(tmp_path / "serial")
    for part in (3, None):
        found = play(tmp_path / "parts", engine="processes", rounds=part)
    assert [row.digest for row in found.rounds] == [row.digest for row in whole.rounds]
    assert [row.weight for row in found.rounds] == [row.weight for row in whole.rounds]
