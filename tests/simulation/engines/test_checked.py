"""A learner whose updates depend on what it keeps is refused by both engines, wherever it keeps it; a cache passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from quorate import Update, simulate
from simulation.engines import EngineName
from simulation.errors import SimulationError

COUNTS = {"calls": 0}


def update(value: float) -> Update:
    return Update({"w": np.full(3, value, np.float32)}, examples=5)


def keeps_in_a_global(model: Any, data: Any, task: Any) -> Update:
    COUNTS["calls"] += 1
    return update(COUNTS["calls"])


def keeps_in_a_default(model: Any, data: Any, task: Any, kept: list[int] = [0]) -> Update:  # noqa: B006
    kept[0] += 1
    return update(kept[0])


def keeps_in_a_closure() -> Callable[..., Update]:
    kept = np.zeros(3, np.float32)

    def learner(model: Any, data: Any, task: Any) -> Update:
        kept[:] += 1
        return Update({"w": kept}, examples=5)

    return learner


@dataclass
class Scaffold:
    """The control variates of clients, in an object of the learner's."""

    @dataclass
    class Controls:
        own: dict[str, float] = field(default_factory=dict)

    controls: Controls = field(default_factory=Controls)

    def train(self, model: Any, data: Any, task: Any, *, device: str, **more: Any) -> Update:
        drift = self.controls.own.get(device, 0.0)
        self.controls.own[device] = drift + 0.5
        return update(1.0 - drift)


class KeepsInItsClass:
    kept: ClassVar[list[int]] = []

    def train(self, model: Any, data: Any, task: Any, **more: Any) -> Update:
        self.kept.append(1)
        return update(len(self.kept))


def draws(model: Any, data: Any, task: Any) -> Update:
    return update(np.random.default_rng().normal())


def run(learner: Any, engine: EngineName = "serial", rounds: int = 4, **more: Any) -> Any:
    data = [(np.ones((5, 1), np.float32), np.zeros(5, np.float32))] * 4
    plan = {"cohort": {"select": 4, "goal": 4}, "finish": {"rounds": rounds}}
    workers = {"workers": 2} if engine == "processes" else {}
    init = {"w": np.zeros(3, np.float32)}
    return simulate(plan, learner, data, engine=engine, init=init, progress=False, **workers, **more)


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize(
    ("learner", "named"),
    [
        (lambda: keeps_in_a_global, "the global variable 'COUNTS'"),
        (lambda: keeps_in_a_default, "the default value of the argument 'kept'"),
        (keeps_in_a_closure, "the variable 'kept' of the function around learner"),
        (Scaffold, "gave other bits"),
        (KeepsInItsClass, "the attribute 'kept' of the class KeepsInItsClass"),
        (lambda: draws, "or draws chance of its own"),
    ],
    ids=["global", "default", "closure", "scaffold", "class", "chance"],
)
def test_state_is_found_by_what_it_does(learner: Callable[[], Any], named: str, engine: EngineName) -> None:
    with pytest.raises(SimulationError, match=r"client 'client-\d+' was trained again in round \d") as refused:
        run(learner(), engine)
    assert named in str(refused.value)
    assert refused.value.history is not None
    assert len(refused.value.history) < 3, "before the round is committed"


def test_a_cache_that_changes_no_bits_passes_and_so_does_a_counter() -> None:
    calls: list[int] = []

    def learner(model: Any, data: Any, task: Any) -> Update:
        calls.append(1)
        return update(2.0)

    for engine in ("serial", "processes"):
        assert run(learner, engine).checkpoint()["w"].tolist() == [8.0] * 3  # type: ignore[arg-type]


def test_what_is_declared_is_not_checked_and_the_history_shows_it() -> None:
    def learner(model: Any, data: Any, task: Any) -> Update:
        return draws(model, data, task)

    learner.deterministic = False  # type: ignore[attr-defined]
    history = run(learner)
    assert not history.deterministic
    assert "not deterministic" in history.summary()
