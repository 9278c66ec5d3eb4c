"""A tensor of tiny values keeps them, beside a large one: in both engines, and where updates are files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Layout, Manifest, Tensors
from client_sdk.update import Update, encode_update
from coordinator.blobs import FileBlobs
from coordinator.engine.effects import Contribution
from coordinator.folding.aggregator import SpooledSums
from simulation import simulate
from simulation.engines import EngineName
from tests.coordinator.engine.story import plan as plan_of

INIT: Tensors = {"bytes": np.zeros(3, np.float32), "none": np.zeros(2, np.float32), "w": np.zeros(2, np.float32)}
TINY = [3e-10, 1e-10, 1e-12, 1e-20]


def learner(model: Tensors, data: Any, task: Task) -> Update:
    """The size of the coefficient is the client's own, and a quarter of that."""
    size = float(data[0][0, 0])
    delta = {"bytes": np.array([size, -size / 4, 0]), "none": np.zeros(2), "w": np.array([0.5, -1.0])}
    return Update({name: value.astype(np.float32) for name, value in delta.items()}, len(data[0]))


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1}], ids=["as they are", "clipped"])
@pytest.mark.parametrize("size", TINY)
def test_the_mean_of_tiny_values_is_right_in_both_engines(size: float, clip: dict[str, float]) -> None:
    clients = [(np.full((4, 1), size), np.ones(4)), (np.full((12, 1), 3 * size), np.ones(12))]
    plan = {"cohort": {"select": 2, "goal": 2}, "aggregation": clip, "finish": {"rounds": 1}}
    engines: tuple[EngineName, ...] = ("serial", "processes")
    found = [
        simulate(plan, learner, clients, init=INIT, engine=engine, progress=False).checkpoint() for engine in engines
    ]
    factor = 0.1 / np.hypot(0.5, 1.0) if clip else 1.0
    assert found[0]["bytes"] == pytest.approx([2.5 * size * factor, -2.5 * size / 4 * factor, 0], rel=0.01, abs=0)
    assert found[0]["w"] == pytest.approx([0.5 * factor, -factor], rel=1e-6)
    assert {name: value.tobytes() for name, value in found[0].items()} == {
        name: value.tobytes() for name, value in found[1].items()
    }


@pytest.mark.parametrize("size", TINY)
def test_the_mean_of_tiny_values_in_files_is_that_of_the_sum_of_updates(size: float, tmp_path: Path) -> None:
    blobs, items, updates = FileBlobs(tmp_path), [], []
    for number, x in enumerate((size, 3 * size)):
        delta = {"bytes": np.full(70_000, x), "none": np.zeros(2), "w": np.array([0.5, -1.0])}
        updates.append(Update(delta, 4 + 8 * number, work=Work()))
        with blobs.spool() as spool:
            spool.write(encode_update(updates[-1], "float32@1", "run", 1))
            digest = spool.commit()
        items.append(Contribution(device=f"d{number}", digest=digest, weight=updates[-1].examples))
    sums = SpooledSums(blobs, plan_of(), Layout.of(Manifest.of(updates[0].delta), ("*",), {}))
    total = sums.total(1, tuple(items))
    mean = updates[0] + updates[1]
    assert total.mean().tobytes() == np.concatenate(list(mean.mean().values())).tobytes()
    assert total.mean()[:70_000] == pytest.approx(2.5 * size, rel=0.01, abs=0)
