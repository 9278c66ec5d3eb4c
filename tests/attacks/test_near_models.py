"""A coordinator that asks twice: two runs from models that differ in the last place of one weight, one of them without
one device. The sums differ by that device's update where all others train alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from client_sdk.learning import Learner
from client_sdk.tensors import Tensors
from simulation import simulate
from simulation.virtual import secure_world
from tests.rotating import on_day

DEVICES, EXAMPLES, FEATURES, CLASSES = 65, 40, 20, 5
BATCH = 2
"""The fewer steps, and the smaller their rate, the less the order of batches changes an update, and the less it hides:
with 10 examples a batch and a rate of 0.1 the cosine is 0.74."""
SEED = 7


def learner() -> Learner:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    return Learner(model=model, loss=nn.functional.cross_entropy, version="1")


def data() -> dict[str, Any]:
    found, rng = {}, np.random.default_rng(3)
    for number in range(DEVICES):
        x = rng.standard_normal((EXAMPLES, FEATURES)).astype(np.float32)
        found[f"c{number:02}"] = x, rng.integers(0, CLASSES, EXAMPLES)
    return found


def plan(devices: int) -> dict[str, Any]:
    return {
        "name": f"of-{devices}",
        "task": {"learner": "tests:net", "epochs": 2, "batch_size": BATCH, "learning_rate": 0.3, "seed": 5},
        "cohort": {"select": devices, "goal": devices, "quorum": 1.0, "collect_s": 600},
        "aggregation": {"weighting": "equal", "weight_cap": 1, "partial": "refuse"},
        "secure": {"max_norm": 20.0, "max_abs": 1.0, "q": 20, "minimum_cohort": devices, "reserve": 0},
        "finish": {"rounds": 1},
    }


def flat(model: Tensors, initial: Tensors) -> NDArray[np.float64]:
    return np.concatenate([(model[name].astype(np.float64) - initial[name]).ravel() for name in sorted(initial)])


def cosine() -> float:
    """Of the difference of both sums with the update of the device that one of them lacks."""
    net, clients = learner(), data()
    first = net.initial(1)
    near = {name: array.copy() for name, array in first.items()}
    near["0.weight"].flat[0] = np.nextafter(near["0.weight"].flat[0], np.float32(9))
    victim, *others = clients
    sums = []
    for start, names in ((first, [victim, *others]), (near, others)):
        asked = {name: clients[name] for name in names}
        made = plan(len(names))
        with simulate(made, net, asked, init=start, secure="quantized", seed=SEED, progress=False) as history:
            sums.append(flat(history.checkpoint(1), start) * len(names))
    alone = simulate(plan(DEVICES), net, clients, only=victim, round=1, init=first, seed=SEED)
    update = flat({name: first[name] + alone.delta[name] for name in first}, first)
    found = sums[0] - sums[1]
    return float(found @ update / np.linalg.norm(found) / np.linalg.norm(update))


@on_day(0, of=2)
def test_the_difference_of_two_sums_of_near_models_is_not_one_devices_update() -> None:
    assert abs(cosine()) < 0.25


@on_day(1, of=2)
def test_it_is_where_devices_train_in_the_order_that_the_plan_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is what holds, not the noise of training."""
    monkeypatch.setattr(secure_world, "private_seed", lambda *about: 5)
    monkeypatch.setattr("simulation.simulator.simulate.private_seed", lambda *about: 5)
    assert cosine() > 0.999
