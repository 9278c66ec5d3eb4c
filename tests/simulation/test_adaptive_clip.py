"""Simulated runs whose clip adapts: wherever it begins it ends at the quantile of the norms, under every mechanism."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER
from coordinator.verify import verify
from simulation import History, simulate
from tests.rotating import taking_turns
from tests.simulation.test_folder import opened
from tests.simulation.test_simulate import digests

pytestmark = [pytest.mark.slow, pytest.mark.whole]

D, CLIENTS = 40, 200
NORMS = np.random.default_rng(5).lognormal(0.0, 0.5, CLIENTS)
DIRECTIONS = np.random.default_rng(6).standard_normal((CLIENTS, D)).astype(np.float32)
DIRECTIONS *= (NORMS / np.linalg.norm(DIRECTIONS, axis=1))[:, None].astype(np.float32)


class Fixed:
    """A learner whose update is the client's own, whatever the model."""

    version = "1"

    def train(self, model: Tensors, data: Any, task: Task, **others: Any) -> Update:
        return Update({"w": DIRECTIONS[int(data[0][0, 0])]}, examples=1, work=Work(steps=1))


def plan(clip: float, mechanism: str = "gaussian", rounds: int = 24, goal: int = 40, **adapt: Any) -> dict[str, Any]:
    secure = mechanism == "distributed"
    made: dict[str, Any] = {
        "name": "adapts",
        "task": {"batch_size": 1},
        "cohort": {"select": goal, "goal": goal, "quorum": 0.5, "collect_s": 60, "most_rounds": rounds},
        "aggregation": {"weighting": "equal", **({"partial": "refuse"} if secure else {})},
        "finish": {"rounds": rounds},
        "retention": {"rounds": 0 if secure else 100},
        "privacy": {
            "mechanism": mechanism,
            "clip": clip,
            "noise": 1.0,
            "delta": 1e-5,
            "adapt": {"rate": 1.0, "lowest": 1e-3, "highest": 1e3, **adapt},
        },
    }
    if secure:
        made["secure"] = {"max_norm": clip, "max_abs": clip, "minimum_cohort": 4, "reserve": 0}
    return made


def play(asked: dict[str, Any], **options: Any) -> History:
    found = {f"client-{k}": (np.full((1, 1), k, np.float32), np.zeros(1)) for k in range(CLIENTS)}
    start = {"w": np.zeros(D, np.float32)}
    return simulate(asked, Fixed(), found, init=start, progress=False, **{"seed": 0, "secure": "quantized", **options})


def clips(history: History) -> list[float]:
    """Of the rounds after each one."""
    return [row.body["clip_after"] for row in history._store.rounds(history.run)]


@pytest.mark.parametrize(("first", "quantile", "rate"), [(0.01, 0.5, 1.0), (100.0, 0.5, 1.0), (100.0, 0.8, 2.5)])
def test_a_clip_that_begins_100_times_too_high_or_too_low_ends_at_the_quantile(
    first: float, quantile: float, rate: float
) -> None:
    found = clips(play(plan(first, quantile=quantile, rate=rate)))
    settled = float(np.exp(np.mean(np.log(found[-8:]))))
    assert (settled >= NORMS).mean() == pytest.approx(quantile, abs=0.1)
    assert all(abs(np.log(after / before)) < 1.3 * rate for before, after in pairwise([first, *found]))


@pytest.mark.parametrize("mechanism", taking_turns("tree", "blt", "distributed"))
def test_it_does_so_under_each_mechanism(mechanism: str) -> None:
    asked = plan(20.0, mechanism, rounds=16 if mechanism == "distributed" else 20)
    found = clips(play(asked))
    assert (float(np.exp(np.mean(np.log(found[-6:])))) >= NORMS).mean() == pytest.approx(0.5, abs=0.2)


def test_the_model_has_the_noise_of_the_rounds_clip_and_no_more_than_its_updates() -> None:
    """Of a clip that has shrunk to a hundredth of the first one, in which noise would be a hundred times as long."""
    history = play(plan(100.0, rounds=20))
    models = [history.checkpoint(version)["w"].astype(np.float64) for version in range(21)]
    after = clips(history)
    for t in range(14, 20):
        step = models[t + 1] - models[t]
        noise = after[t - 1] * 1.0 / 40 * np.sqrt(D)
        assert float(np.linalg.norm(step)) < 2 * noise + after[t - 1]


def test_it_has_the_bits_of_any_engine_and_of_any_number_of_calls(tmp_path: Path) -> None:
    asked = plan(5.0, "blt", rounds=4)
    asked["cohort"] |= {"most_rounds": 2, "apart": 2}
    found = play(asked)
    assert digests(play(asked, engine="processes", workers=2)) == digests(found)
    for rounds in (1, 2, None):
        again = play(asked, folder=tmp_path, rounds=rounds)
    assert digests(again) == digests(found)
    assert clips(again) == clips(found)
    with opened(tmp_path) as store:
        assert list(verify(store, FileBlobs(tmp_path / BLOBS_FOLDER))) == []
