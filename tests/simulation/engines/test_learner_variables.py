"""State in variables of a learner's functions is refused by the engine ``processes``, like state in its attributes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from client_sdk.update import Update
from simulation import SimulationError, simulate
from simulation.engines.learner_state import LearnerState, RemembersClients

pytestmark = pytest.mark.whole

SEEN: dict[str, float] = {}
LENGTHS_CACHE: dict[int, int] = {}
TABLE = np.zeros(2, np.float32)
Array = np.ndarray
LARGE = {"parts": [np.zeros(1 << 22, np.float32), np.zeros(1, np.float32)]}
calls = 0

CLIENTS = {f"c{number}": (np.full((3, 2), number, np.float32), np.zeros(3, np.int64)) for number in range(6)}
PLAN = {"cohort": {"select": 6, "goal": 6, "collect_s": 60}, "finish": {"rounds": 2}}
START = {"w": np.zeros(2, np.float32)}


def moved(model: Any, data: Any) -> Update:
    return Update({"w": data[0].mean(0) - model["w"]}, len(data[0]))


def into_a_global_dict(model: Any, data: Any, task: Any) -> Update:
    SEEN[str(len(SEEN))] = float(data[0].mean())
    return moved(model, data)


def into_a_global_counter(model: Any, data: Any, task: Any) -> Update:
    global calls
    calls += 1
    return moved(model, data)


def into_a_closure() -> Callable[..., Update]:
    controls: dict[int, Any] = {}

    def train(model: Any, data: Any, task: Any) -> Update:
        controls[len(controls)] = data[0].mean(0)
        return moved(model, data)

    return train


def into_a_nonlocal() -> Callable[..., Update]:
    count = 0

    def train(model: Any, data: Any, task: Any) -> Update:
        def inner() -> None:
            nonlocal count
            count += 1

        inner()
        return moved(model, data)

    return train


class Method:
    def train(self, model: Any, data: Any, task: Any, **_: Any) -> Update:
        return into_a_global_counter(model, data, task) if calls < 0 else self.counted(model, data)

    def counted(self, model: Any, data: Any) -> Update:
        return moved(model, data)


class OfTheClass:
    seen: dict[str, int] = {}  # noqa: RUF012 - what a user writes by mistake

    def train(self, model: Any, data: Any, task: Any, *, device: str, **_: Any) -> Update:
        self.seen[device] = len(self.seen)
        return moved(model, data)


class Heir(OfTheClass):
    pass


class Called:
    def __call__(self, model: Any, data: Any, task: Any) -> Update:
        return into_a_global_counter(model, data, task) if calls < 0 else self.count(model, data)

    def count(self, model: Any, data: Any) -> Update:
        global calls
        calls += 1
        return moved(model, data)


def into_a_default(model: Any, data: Any, task: Any, memo: list[int] = []) -> Update:  # noqa: B006
    memo.append(1)
    return moved(model, data)


def into_a_named_default(model: Any, data: Any, task: Any, *, memo: list[int] = []) -> Update:  # noqa: B006
    memo.append(1)
    return moved(model, data)


def into_an_argument(memo: list[int], model: Any, data: Any, task: Any, *, more: dict[int, int]) -> Update:
    (memo.append(1) if memo else more.update({len(more): 1}))  # type: ignore[func-returns-value]
    return moved(model, data)


@pytest.mark.parametrize(
    ("learner", "words"),
    [
        (OfTheClass(), "the attribute 'seen' of the class OfTheClass"),
        (Heir(), "the attribute 'seen' of the class OfTheClass"),
        (Called(), "the global variable 'calls'"),
        (into_a_default, "the default value of the argument 'memo' of into_a_default"),
        (into_a_named_default, "the default value of the argument 'memo' of into_a_named_default"),
        (partial(into_an_argument, [0], more={}), "the argument 1 of functools.partial"),
        (partial(into_an_argument, [], more={}), "the argument more of functools.partial"),
        (into_a_global_dict, "the global variable 'SEEN'"),
        (into_a_global_counter, "the global variable 'calls'"),
        (into_a_closure(), "the variable 'controls' of the function around train"),
        (into_a_nonlocal(), "the variable 'count' of the function around train"),
    ],
)
def test_state_in_variables_is_refused_in_processes(learner: Any, words: str) -> None:
    with pytest.raises(SimulationError, match=f"changed {words} while it trained.*use engine=.serial."):
        simulate(PLAN, learner, CLIENTS, init=START, engine="processes", workers=2, progress=False)


def without_state(model: Any, data: Any, task: Any) -> Update:
    LENGTHS_CACHE[len(data[0])] = len(LENGTHS_CACHE)
    assert LARGE
    return moved({"w": model["w"] + TABLE}, data)


def test_functions_caches_and_constants_are_no_state() -> None:
    serial = simulate(PLAN, without_state, CLIENTS, init=START, progress=False)
    processes = simulate(PLAN, without_state, CLIENTS, init=START, engine="processes", workers=2, progress=False)
    assert serial.checkpoints[2].digest == processes.checkpoints[2].digest


def test_repro_a_learner_that_names_a_class_of_arrays_is_trained() -> None:
    """The class has ``nbytes`` too, which is no number there."""

    def checked(model: Any, data: Any, task: Any) -> Update:
        assert isinstance(data[0], Array)
        return moved(model, data)

    options: dict[str, Any] = {"init": START, "progress": False}
    found = [simulate(PLAN, checked, CLIENTS, engine=name, **options) for name in ("serial", "processes")]
    assert found[0].checkpoint()["w"].tolist() == found[1].checkpoint()["w"].tolist()


def test_large_values_are_not_compared_and_methods_are(monkeypatch: pytest.MonkeyPatch) -> None:
    function, method = LearnerState(without_state), LearnerState(Method())
    LARGE["parts"][0][0] += 1
    function.check()
    monkeypatch.setitem(globals(), "calls", calls + 1)
    with pytest.raises(RemembersClients, match="global variable 'calls'"):
        method.check()


class Box:
    pass


def test_functions_among_the_attributes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    learner: Any = Box()
    learner.metrics = {"auc": lambda outputs, targets: calls}
    state = LearnerState(learner)
    monkeypatch.setitem(globals(), "calls", calls + 1)
    with pytest.raises(RemembersClients, match="global variable 'calls'"):
        state.check()
