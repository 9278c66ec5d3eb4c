"""The learners and data sets that come with Quorate keep to the contracts of every learner and every data set."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

from client_sdk.data import installed
from quorate.testing import DataContract, LearnerContract
from simulation import learners as learners
from tests.simulation.test_learners import PARAMETERS, sample_of


def learner_class(name: str) -> type[LearnerContract]:
    """The contract's tests for one learner."""
    made = getattr(learners, name.replace("-", "_"))()
    body: dict[str, Any] = {"learner": made, "model": made.initial(0), "data": sample_of(name)}
    return type(f"TestLearner{name.title().replace('-', '')}", (LearnerContract,), body)


def data_class(name: str) -> type[DataContract]:
    """The contract's tests for one data set, which is fetched."""
    found: Any = None

    def load() -> Any:
        nonlocal found
        found = found if found is not None else installed(f"quorate:{name}")
        return found

    made = type(f"TestData{name.title().replace('-', '')}", (DataContract,), {"load": staticmethod(load)})
    return pytest.mark.service(pytest.mark.slow(made))


DATA = sorted(entry.name for entry in entry_points(group="quorate.data") if entry.dist and entry.dist.name == "quorate")
for _name in PARAMETERS:
    globals()[f"TestLearner_{_name.replace('-', '_')}"] = learner_class(_name)
for _name in DATA:
    globals()[f"TestData_{_name.replace('-', '_')}"] = data_class(_name)


def test_every_entry_has_been_here() -> None:
    groups = {"quorate.learners": "TestLearner_", "quorate.data": "TestData_"}
    for group, prefix in groups.items():
        ours = [entry.name for entry in entry_points(group=group) if entry.dist and entry.dist.name == "quorate"]
        assert ours
        assert all(prefix + name.replace("-", "_") in globals() for name in ours)


def test_a_learner_that_draws_freely_would_be_found_out() -> None:
    rng = np.random.default_rng()
    free = learner_class("adult-logistic")()

    def learner(model: Any, data: Any, task: Any) -> Any:
        update = type(free).learner.train(model, data, task, device="d", round=1)
        noise = {name: array + rng.normal(size=array.shape).astype(np.float32) for name, array in update.delta.items()}
        return type(update)(noise, update.examples)

    free.learner = learner
    with pytest.raises(AssertionError):
        free.test_the_same_work_gives_the_same_update()
