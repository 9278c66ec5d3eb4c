"""The benchmark of accuracy: its secure rounds are those of the simulator, and an abandoned one is no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import masked_accuracy as subject
from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation import Clients

INIT = {"w": np.zeros(300, np.float32)}


class Mean:
    """A learner that moves towards the mean of its data."""

    def initial(self, seed: int) -> Tensors:
        return INIT

    def train(self, model: Tensors, data: Any, task: Task, **options: Any) -> Update:
        x, _ = data if isinstance(data, tuple) else (data.x, data.y)
        delta = {"w": (np.mean(x, axis=0) - model["w"]).astype(np.float32)}
        return Update(delta, len(x), work=Work(steps=1, steps_planned=1))


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    monkeypatch.setattr(subject, "COHORT", 6)
    monkeypatch.setattr(subject, "VALUES", 300)
    monkeypatch.setattr(subject, "CAP", 10)
    rng = np.random.default_rng(2)
    data = [rng.normal(0.02, 0.05, (3 + k, 300)).astype(np.float32) for k in range(8)]
    return Clients.of({f"c{k}": (x, np.zeros(len(x))) for k, x in enumerate(data)})


@pytest.mark.parametrize("name", ["q4_rotated", "q16_plain"])
def test_a_round_differs_from_the_plain_one_by_its_rounding_alone(clients: Clients, name: str) -> None:
    way = (subject.WAYS | subject.MANY_BITS)[name]
    plain, secure = (subject.played(Mean(), clients, None, 1, 1, one) for one in (None, way))
    assert secure.participation == plain.participation
    assert secure.unmasked
    assert (secure.rounds[0].kind, plain.rounds[0].kind) == ("secure", "federated")
    off = np.linalg.norm(subject.changed(secure) - subject.changed(plain)) / np.linalg.norm(subject.changed(plain))
    assert 0 < off < {"q4_rotated": 2.0, "q16_plain": 0.2}[name]


def test_a_run_with_an_abandoned_round_is_no_result(clients: Clients) -> None:
    few = Clients.of({name: clients[name].train for name in list(clients)[:6]})
    assert len(subject.played(Mean(), few, None, 1, 1).rounds) == 1

    class Failing(Mean):
        def train(self, model: Tensors, data: Any, task: Task, **options: Any) -> Update:
            raise ArithmeticError

    with pytest.raises((SystemExit, Exception), match=r"counted|ArithmeticError"):
        subject.played(Failing(), few, None, 1, 1)
