"""A learner whose updates depend on what it keeps is refused by both engines, wherever it keeps it; a cache passes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from quorate import Update, simulate
from simulation.engines import CannotTrain, EngineName, Job
from simulation.engines.checked import CheckedEngine
from simulation.errors import SimulationError, SimulationWarning

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
    kept, by = np.zeros(3, np.float32), np.ones(3, np.float32)

    def learner(model: Any, data: Any, task: Any) -> Update:
        kept[:] += by
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


def run(learner: Any, engine: Any = "serial", rounds: int = 4, **more: Any) -> Any:
    data = [(np.ones((5, 1), np.float32), np.zeros(5, np.float32))] * 4
    plan: dict[str, Any] = {
        "cohort": {"select": 4, "goal": 4},
        "finish": {"rounds": rounds},
        "aggregation": more.pop("aggregation", {}),
    }
    workers: dict[str, Any] = {"workers": 2} if engine == "processes" else {}
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
    require_not_committed(refused.value)


def require_not_committed(refused: SimulationError) -> None:
    found = re.search(r"was trained again in round (\d)", str(refused))
    assert found is not None
    assert refused.history is not None
    assert len(refused.history) == int(found[1]) - 1, "the rounds before are committed, and no other"


def test_it_is_found_before_a_rule_over_all_updates_too() -> None:
    with pytest.raises(SimulationError) as refused:
        run(keeps_in_a_closure(), aggregation={"rule": "median", "weighting": "equal"})
    assert "it changed the variable 'kept' of the function around learner. A resumed" in str(refused.value)
    require_not_committed(refused.value)


@pytest.mark.parametrize("late", [3, 4])
def test_each_of_the_first_three_rounds_is_checked(late: int) -> None:
    """A client whose update depends on what it kept for the first time in this round."""
    trained: Counter[str] = Counter()

    class Learner:
        def train(self, model: Any, data: Any, task: Any, *, device: str, **more: Any) -> Update:
            trained[device] += 1
            return update(1.0 if trained[device] < late else 2.0)

    if late == 3:
        with pytest.raises(SimulationError, match="was trained again in round 3") as refused:
            run(Learner())
        require_not_committed(refused.value)
    else:
        assert len(run(Learner())) == 4


def test_a_cache_that_changes_no_bits_passes_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []

    def learner(model: Any, data: Any, task: Any) -> Update:
        calls.append(1)
        os.write(1, b"training")
        return update(float(model["w"][0]) + 2.0)

    for engine in ("serial", "processes"):
        assert run(learner, engine).checkpoint()["w"].tolist() == [30.0] * 3
        assert capfd.readouterr().out.count("training") == 4 * 4, "what is trained again says nothing"


def test_a_second_training_that_ends_its_process_is_a_warning() -> None:
    here = os.getpid()

    def learner(model: Any, data: Any, task: Any) -> Update:
        if os.getpid() != here:
            os._exit(3)
        return update(1.0)

    with pytest.warns(SimulationWarning, match="is not checked: the second training ended by itself"):
        assert len(run(learner)) == 4


class Listening:
    """An engine that keeps what it is given, and trains nobody."""

    given: Sequence[Job] = ()
    answer: Any = CannotTrain(reason="It has no examples.")

    def begin(self, round: int, model: Any) -> None: ...

    def submit(self, jobs: Sequence[Job]) -> None:
        self.given = jobs

    def result(self, job: Job, meanwhile: Any) -> Any:
        return self.answer


def test_who_was_trained_before_is_checked_then_the_cheapest_then_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckedEngine, "_start", lambda self, model: None)
    listening: Any = Listening()
    kernel: Any = SimpleNamespace(learner=None, stacked=list)
    engine = CheckedEngine(listening, kernel)
    for costs, checked in (
        ({"a": 5, "b": 2, "c": 2, "d": 9}, "c"),
        ({"e": 1, "a": 5, "d": 9, "f": 1}, "a"),
        ({"g": 3, "h": 2}, "h"),
    ):
        engine.begin(1, {})
        engine.submit([Job(run="r", round=1, attempt=0, device=device, cost=cost) for device, cost in costs.items()])
        assert [job.device for job in listening.given if job.checked] == [checked]
        for job in listening.given:
            assert engine.result(replace(job, checked=False)) is listening.answer
        assert engine.noted is None
    listening.answer = SimpleNamespace(digest="ab")
    engine.result(replace(next(job for job in listening.given if job.checked), checked=False))
    assert engine.noted is not None
    engine.begin(2, {})
    assert engine.noted is None, "it was of another model"


def test_what_is_declared_is_not_checked_and_the_history_shows_it() -> None:
    def learner(model: Any, data: Any, task: Any) -> Update:
        return draws(model, data, task)

    learner.deterministic = False  # type: ignore[attr-defined]
    history = run(learner)
    assert not history.deterministic
    assert "not deterministic" in history.summary()


@pytest.mark.parametrize("broken", range(4))
def test_a_check_that_could_not_be_made_is_not_held_against_a_later_round(broken: int) -> None:
    """One of them is the client that the third round's check has drawn."""

    class Breaks:
        def train(self, model: Any, data: Any, task: Any, *, device: str, round: int, **more: Any) -> Update:
            return update(np.nan if round == 3 and device == f"client-{broken}" else float(round))

    plan = {"cohort": {"select": 4, "goal": 4, "quorum": 0.5}, "finish": {"rounds": 5}}
    data = [(np.ones((5, 1), np.float32), np.zeros(5, np.float32))] * 4
    history = simulate(plan, Breaks(), data, init={"w": np.zeros(3, np.float32)}, progress=False)
    assert history.checkpoint()["w"].tolist() == [15.0] * 3
    assert [(one.round, one.device) for one in history.withdrawals] == [(3, f"client-{broken}")]
