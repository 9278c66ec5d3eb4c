"""Devices' halves of strategies, called by hand: what they do with a learner, and what of them is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from client_sdk.device.strategies import (
    BUILT_IN,
    GROUP,
    DeviceStrategy,
    Learn,
    Local,
    Shared,
    StrategyError,
    half_of,
    train_by,
)
from client_sdk.extensions import Provided, provided
from client_sdk.protocol.devices import Task, TaskStrategy, Work
from client_sdk.tensors import Manifest, Tensors, named
from client_sdk.update import Update

RATE, PLANNED, DONE = 0.1, 10, 4
MODEL: Tensors = {"w": np.ones(3, np.float32), "head": np.zeros(2, np.float32)}


def task(name: str, numbers: Mapping[str, float] | None = None, **more: Any) -> Task:
    strategy = TaskStrategy(name=name, version="1", parameters=dict(numbers or {}), keeps="committed")
    return Task(learner="tests:it", learning_rate=RATE, strategy=strategy, **more)


class Learner:
    """Minimises |w - 2|^2 / 2 by plain SGD; out of time, it makes fewer steps than planned. Notes what it was asked."""

    def __init__(self, steps: int = DONE) -> None:
        self.steps, self.asked = steps, list[Task]()

    def __call__(self, model: Tensors, task: Task, *, offset: Tensors | None = None) -> Update:
        self.asked.append(task)
        now = {name: model[name].copy() for name in sorted(named(model, task.averaged))}
        for _ in range(self.steps * (task.epochs or 1)):
            for name, weight in now.items():
                gradient = weight - 2 + (offset or {}).get(name, np.float32(0)) + task.mu * (weight - model[name])
                now[name] = (weight - np.float32(RATE) * gradient).astype(np.float32)
        work = Work(steps=self.steps, steps_planned=PLANNED, epochs=1.0, examples_seen=4)
        return Update({name: now[name] - model[name] for name in now}, 4, work=work, model=Manifest.of(model))


def by(half: DeviceStrategy, of: Task, checkpoint: Tensors, state: Tensors | None = None) -> tuple[Local, Learner]:
    learner = Learner()
    return train_by(half, Learn(learner, dict), checkpoint, state or {}, of), learner


def test_scaffold_of_work_that_a_deadline_cut_short_counts_the_steps_that_were_made() -> None:
    shared = {f"~c/{name}": np.full_like(array, 0.25) for name, array in MODEL.items()}
    state = {name: np.full_like(array, 0.5) for name, array in MODEL.items()}
    made, _ = by(BUILT_IN["scaffold"], task("scaffold"), {**MODEL, **shared}, state)
    delta = made.update.delta
    after = 0.5 - 0.25 - delta["w"] / (DONE * RATE)
    np.testing.assert_allclose(made.state["w"], after, rtol=1e-6)
    np.testing.assert_allclose(delta["~c/w"], after - 0.5, rtol=1e-6)


def test_fedrep_trains_its_own_part_alone_for_as_many_passes_as_the_plan_says() -> None:
    made, learner = by(BUILT_IN["fedrep"], task("fedrep", {"head_epochs": 3}, averaged=("!head",), steps=5), MODEL)
    assert [(one.averaged, one.epochs, one.steps) for one in learner.asked] == [
        (("head",), 3, None),
        (("!head",), None, 5),
    ]
    np.testing.assert_allclose(made.state["head"], 2 - 2 * 0.9 ** (3 * DONE), rtol=1e-5)
    assert made.update.delta.keys() == {"w"}


def test_fedrep_without_a_part_of_its_own_is_refused() -> None:
    with pytest.raises(StrategyError, match=r"fedrep has nothing to train first: task\.averaged chooses all tensors"):
        by(BUILT_IN["fedrep"], task("fedrep", {"head_epochs": 1}), MODEL)


class Own(DeviceStrategy):
    """Returns what it is told."""

    def __init__(self, state: Tensors | None = None, shared: Tensors | None = None, keeps: Any = "nothing") -> None:
        self.state, self.moved, self.keeps = state or {}, shared, keeps
        if shared is not None:
            self.shared = ("c",)

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        return Local(
            update=learn(model, task), shared={} if self.moved is None else {"c": self.moved}, state=self.state
        )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_also_of_shared_tensors(wrong: float) -> None:
    shared = {f"~c/{name}": np.zeros_like(array) for name, array in MODEL.items()}
    moved = {**MODEL, "w": np.array([0, wrong, 0], np.float32)}
    with pytest.raises(StrategyError, match="lab:own gives numbers in ~c/w that are not finite"):
        by(Own(shared=moved), task("lab:own"), {**MODEL, **shared})
    with pytest.raises(StrategyError, match="lab:own gives numbers in kept that are not finite"):
        by(Own({"kept": np.full(2, wrong, np.float32)}, keeps="trained"), task("lab:own"), MODEL)


def test_a_state_of_a_half_that_says_that_it_keeps_nothing_is_refused() -> None:
    with pytest.raises(StrategyError, match="returns a state, and says that it keeps nothing"):
        by(Own({"kept": np.zeros(2, np.float32)}), task("lab:own"), MODEL)


class Odd(Own):
    """Does what a test says."""

    def __init__(self, train: Any, **more: Any) -> None:
        super().__init__(**more)
        self.does = train

    def train(self, learn: Learn, model: Tensors, *_: Any) -> Any:
        return self.does(lambda: learn(model, Task(learner="tests:it")))


@pytest.mark.parametrize(
    ("half", "against"),
    [
        (Odd(lambda update: update()), "The strategy lab:own returns Update from train(), not Local."),
        (Odd(lambda update: 1 / 0), "The strategy lab:own failed: ZeroDivisionError: division by zero"),
        (
            Odd(lambda update: Local(update=update(), state={"a": np.array(["x"])}), keeps="trained"),
            "The strategy lab:own gives a, which is no array of numbers.",
        ),
        (
            Odd(lambda update: Local(update=update(), state={"a": np.zeros(6, np.float32)}), keeps="trained"),
            "The strategy lab:own has made 24 bytes to keep, and its state_bytes() says 20.",
        ),
        (
            Odd(lambda update: Local(update=update(), shared={"c": {}})),
            "The strategy lab:own does not return a change of each of its shared tensors (it has: none).",
        ),
    ],
)
def test_what_a_half_does_wrong_is_a_sentence(half: DeviceStrategy, against: str) -> None:
    with pytest.raises(StrategyError) as error:
        by(half, task("lab:own"), MODEL)
    assert str(error.value) == against


def test_an_error_of_the_learner_is_not_the_strategys() -> None:
    def fails(*_: Any, **__: Any) -> Update:
        raise LookupError("my data")

    with pytest.raises(LookupError, match="my data"):
        train_by(BUILT_IN["ditto"], Learn(fails, dict), MODEL, {}, task("ditto", {"lambda": 0.1}))


def test_an_installed_object_that_is_no_half_is_refused() -> None:
    own = TaskStrategy(name="lab:own", version="1", keeps="nothing")
    with provided({GROUP: {"lab:own": Provided("lab:own", "1", Own(keeps="always"))}}):
        with pytest.raises(StrategyError, match="lab:own cannot be used: its half keeps 'always', not nothing"):
            half_of(own)


@pytest.mark.parametrize("there", [(), ("~c/w", "~c/head", "~d/w")])
def test_a_checkpoint_with_other_shared_tensors_is_refused(there: tuple[str, ...]) -> None:
    shared = {name: np.zeros_like(MODEL[name[3:]]) for name in there}
    with pytest.raises(StrategyError, match="has other shared tensors than the strategy lab:own"):
        by(Own(shared=MODEL), task("lab:own"), {**MODEL, **shared})


def test_a_half_of_another_version_is_none() -> None:
    assert half_of(TaskStrategy(name="ditto", version="1", keeps="committed")) is BUILT_IN["ditto"]
    with pytest.raises(StrategyError, match=r"This device has no half of the strategy ditto 2\."):
        half_of(TaskStrategy(name="ditto", version="2", keeps="committed"))
    own = Own()
    with provided({GROUP: {"lab:own": Provided("lab:own", "0", own)}}):
        assert half_of(TaskStrategy(name="lab:own", version="1", keeps="nothing")) is own
        with pytest.raises(StrategyError, match=r"This device has no half of the strategy lab:own 2\."):
            half_of(TaskStrategy(name="lab:own", version="2", keeps="nothing"))
    with pytest.raises(StrategyError, match=r"This device has no half of the strategy lab:own 1\."):
        half_of(TaskStrategy(name="lab:own", version="1", keeps="nothing"))
