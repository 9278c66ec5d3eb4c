"""Which clients a simulation trains, how their updates count, and what their scores are: by calculation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from client_sdk.learning import Learner
from client_sdk.protocol.devices import Score
from client_sdk.update import Update
from simulation import Behaviour, simulate
from simulation.engines import Job, Kernel, SerialEngine
from simulation.simulator.scoring import by_source
from tests.simulation.test_simulate import NET, clients, plan


class Recording(SerialEngine):
    """The serial engine, which remembers the jobs that it was given."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.submitted: list[list[str]] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        self.submitted.append([job.device for job in jobs])
        super().submit(jobs)


def test_only_those_who_will_count_are_trained() -> None:
    """A plan that selects 12 and closes at 4 reports costs the training of 4 clients, not of 12."""
    engines: list[Recording] = []

    def engine(kernel: Kernel) -> Recording:
        engines.append(Recording(kernel))
        return engines[-1]

    fleet = Behaviour(speed_sigma=1.0)
    history = simulate(plan(3, select=8, goal=3), NET, clients(10), behaviour=fleet, engine=engine, progress=False)
    assert [len(jobs) for jobs in engines[0].submitted] == [3, 3, 3]
    counted: dict[str, int] = {}
    for jobs in engines[0].submitted:
        for device in jobs:
            counted[device] = counted.get(device, 0) + 1
    assert counted == {client: rounds for client, rounds in history.participation.items() if rounds}


def test_each_update_is_clipped_as_the_plan_says() -> None:
    """new = old + mean of delta_k * min(1, clip / ||delta_k||)."""
    data = clients(4)
    history = simulate(plan(1, aggregation={"clip_norm": 0.05}), NET, data, progress=False)
    first, after = NET.initial(0), history.checkpoint()
    parts, factors = [], []
    for name in data:
        update = NET.train(first, data[name].train, history.plan.task, device=name, round=1)
        norm = float(np.sqrt(sum(np.square(delta, dtype=np.float64).sum() for delta in update.delta.values())))
        factors.append(min(1.0, 0.05 / norm))
        clipped = {key: (delta * factors[-1]).astype(np.float32) for key, delta in update.delta.items()}
        parts.append(Update(clipped, update.examples))
    assert max(factors) < 0.9, "without the clip the model would move further"
    mean = reduce(add, parts).mean()
    for key in first:
        np.testing.assert_allclose(after[key] - first[key], mean[key], rtol=1e-4, atol=1e-7)
    moved = np.sqrt(sum(np.square(after[key] - first[key], dtype=np.float64).sum() for key in first))
    assert moved <= 0.05 + 1e-6


def test_the_percentiles_are_of_clients_not_of_examples() -> None:
    scores = [Score(examples=1 + 100 * (number == 10), metrics={"accuracy": number / 10}) for number in range(11)]
    found = by_source([f"c{number}" for number in range(11)], scores, lambda device: "")
    assert found["clients.p10"].metrics["accuracy"] == pytest.approx(0.1)
    assert found["clients.p90"].metrics["accuracy"] == pytest.approx(0.9)
    assert found["clients"].metrics["accuracy"] == pytest.approx((0.1 * sum(range(10)) + 101) / 111)


def test_repro_a_metric_that_is_undefined_on_a_client_is_left_out_and_counted() -> None:
    """One client without a positive example ended the run, or took the metric from all others."""
    scores = [
        Score(examples=2, metrics={"auc": 0.5, "loss": 1.0}),
        Score(examples=6, metrics={"auc": 0.9, "loss": 2.0}),
        Score(examples=8, metrics={"loss": 4.0}),
        None,
    ]
    found = by_source(["a", "b", "c", "d"], scores, lambda device: "", SimpleNamespace(metrics={"auc": 1, "recall": 1}))
    assert found["clients"].metrics == pytest.approx(
        {"auc": (2 * 0.5 + 6 * 0.9) / 8, "loss": 46 / 16, "auc.undefined": 1, "recall.undefined": 3}
    )
    assert found["clients.p10"].metrics["auc"] == pytest.approx(0.54)
    whole = by_source(["a", "b"], scores[:2], lambda device: "", SimpleNamespace(metrics={"auc": 1}))["clients"].metrics
    assert set(whole) == {"auc", "loss"}


@pytest.mark.parametrize(
    ("averaged", "words"),
    [(["1.running_mean"], "averages no parameter that can be trained"), (["*"], r"write averaged = \[\"0\.\*\"\]")],
)
def test_a_plan_that_the_learner_cannot_train_is_refused_before_round_1(averaged: list[str], words: str) -> None:
    learner = Learner(
        model=lambda: nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)),
        loss=nn.functional.cross_entropy,
        averaged=("0.*",) if averaged == ["*"] else ("*",),
    )
    with pytest.raises(ValueError, match=words):
        simulate(plan(1, task={"averaged": averaged}), learner, clients(4), progress=False)
