"""A learner that remembers clients is refused by the engine ``processes``, and nothing else is."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation import SimulationError, simulate
from simulation.engines.learner_state import LearnerState, RemembersClients


class Mean:
    """A learner without state: each client moves the model to its own mean."""

    def __init__(self) -> None:
        self.rate = 0.5
        self.steps_cache: dict[str, int] = {}
        self.made: Any = None

    def initial(self, seed: int) -> Tensors:
        return {"w": np.zeros(2, np.float32)}

    @lru_cache  # noqa: B019 - a cache of the user's
    def doubled(self, value: float) -> float:
        return 2 * value

    @cached_property
    def table(self) -> list[int]:
        return [1, 2, 3]

    def train(self, model: Tensors, data: Any, task: Task, *, device: str, **_: Any) -> Update:
        self.doubled(self.rate)
        assert self.table
        self.made = np.ones(2) if self.made is None else self.made
        self.steps_cache[device] = len(data[0])
        return Update({"w": self.rate * (data[0].mean(0) - model["w"])}, len(data[0]))


class Remembering(Mean):
    """Like SCAFFOLD without a place for its control variates: a dict of the learner's own."""

    def __init__(self) -> None:
        super().__init__()
        self.controls: dict[str, Any] = {}

    def train(self, model: Tensors, data: Any, task: Task, *, device: str, **more: Any) -> Update:
        before = self.controls.get(device, np.zeros(2, np.float32))
        self.controls[device] = data[0].mean(0)
        update = super().train(model, data, task, device=device, **more)
        return Update({"w": update.delta["w"] - before}, update.examples)


CLIENTS = {f"c{number}": (np.full((3, 2), number, np.float32), np.zeros(3, np.int64)) for number in range(6)}
PLAN = {"cohort": {"select": 6, "goal": 6, "collect_s": 60}, "finish": {"rounds": 3}}


def test_repro_what_a_client_leaves_in_the_learner_is_refused_in_processes() -> None:
    """Each process had a copy of it, so the results depended on which of them trained a client."""
    with pytest.raises(SimulationError, match=r"changed its attribute 'controls' .*use engine=.serial.") as refused:
        simulate(PLAN, Remembering(), CLIENTS, engine="processes", workers=2, progress=False)
    assert refused.value.history is not None
    assert simulate(PLAN, Remembering(), CLIENTS, progress=False).status == "finished"


def test_caches_and_what_is_made_on_first_use_are_no_state() -> None:
    found = [
        simulate(PLAN, Mean(), CLIENTS, engine=engine, workers=2 if engine == "processes" else None, progress=False)
        for engine in ("serial", "processes")
    ]
    assert found[0].checkpoints[3].digest == found[1].checkpoints[3].digest


class Box:
    pass


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        ("a", "b"),
        ([1], [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({1}, {1, 2}),
        (np.zeros(2), np.ones(2)),
        ((1, [2]), (1, [3])),
    ],
)
def test_plain_values_that_change_are_found(first: Any, second: Any) -> None:
    learner: Any = Box()
    learner.value = first
    state = LearnerState(learner)
    state.check()
    learner.value = second
    with pytest.raises(RemembersClients, match="attribute 'value'"):
        state.check()


def test_other_objects_and_later_trainings_are_not_compared() -> None:
    learner: Any = Box()
    learner.value = [Box()]
    state = LearnerState(learner)
    learner.value = [Box(), Box()]
    state.check()
    learner.count = 1
    state.check()
    learner.count = 1
    state.check()
    learner.count = 2
    state.check()
