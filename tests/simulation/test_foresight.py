"""What the plan will do to clients' updates is said before round 1."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Work
from client_sdk.update import Update
from simulation import Behaviour, simulate
from simulation.errors import SimulationWarning
from tests.simulation.test_treatment import INIT, client, learner

PLAN: dict[str, Any] = {"name": "seen", "cohort": {"select": 3, "goal": 3}, "finish": {"rounds": 1}}
CLIENTS = {"small": client(5, 0.5), "edge": client(10, 0.25), "large": client(64, 2.0)}


def said(plan: dict[str, Any], clients: Any = CLIENTS, how: Any = learner, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        simulate({**PLAN, **plan}, how, clients, init=INIT, **options)
    return [str(one.message) for one in found if one.category is SimulationWarning]


def test_who_weighs_less_than_its_examples() -> None:
    (text,) = said({"aggregation": {"weight_cap": 10}})
    assert text.startswith("1 of 3 clients hold more than weight_cap = 10 examples, up to 64, and weigh 10:")
    assert said({"aggregation": {"weight_cap": 64}}) == []
    assert said({"aggregation": {"weight_cap": 10, "weighting": "equal"}}) == []


class Stopping:
    """A learner that can stop early, and does in this fleet."""

    def train(self, model: Any, data: Any, task: Any, *, deadline: Any, **_: Any) -> Update:
        done = next(step for step in range(len(data[0]) + 1) if step == len(data[0]) or deadline() < 0)
        work = Work(steps=done, steps_planned=len(data[0]), examples_seen=done, complete=done == len(data[0]))
        return Update({"w": np.zeros(2, np.float32)}, examples=len(data[0]), work=work)


@pytest.mark.parametrize(
    ("partial", "how", "what"),
    [
        ("full", Stopping(), "counts in full"),
        ("examples_seen", Stopping(), "by the part done"),
        ("refuse", Stopping(), "is refused"),
        ("full", learner, "a function cannot stop early"),
    ],
)
def test_whose_work_a_deadline_cuts_short(partial: str, how: Any, what: str) -> None:
    plan = {
        "task": {"batch_size": 1},
        "cohort": {"select": 3, "goal": 2, "quorum": 0.5, "collect_s": 30.0},
        "aggregation": {"partial": partial},
    }
    (text,) = said(plan, how=how, behaviour=Behaviour(step_s=1.0))
    assert text.startswith("1 of 3 clients (large) have up to 64 steps of work")
    assert what in text
    assert said(plan, how=how, behaviour=Behaviour(step_s=0.25)) == []
    assert said(plan, how=how, behaviour=Behaviour(straggler_share=0.5)) == []
    assert said({"task": {"batch_size": 1}}, how=Stopping(), behaviour=Behaviour(stragglers=1.0)) == []


def test_data_that_is_made_when_it_is_asked_for_is_not_made_for_this() -> None:
    class Lazy(Mapping[str, Any]):
        made = 0

        def __len__(self) -> int:
            return 100

        def __iter__(self) -> Any:
            return iter(f"c{number}" for number in range(100))

        def __getitem__(self, key: str) -> Any:
            self.made += 1
            return client(20, 0.5)

    lazy = Lazy()
    assert said({"aggregation": {"weight_cap": 10}}, lazy) == []
    assert lazy.made < 50


def test_a_run_that_goes_on_does_not_say_it_again(tmp_path: Any) -> None:
    plan = {"aggregation": {"weight_cap": 10}, "finish": {"rounds": 2}}
    assert len(said(plan, folder=tmp_path / "run", rounds=1)) == 1
    assert said(plan, folder=tmp_path / "run") == []
