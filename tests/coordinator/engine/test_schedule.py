"""Rates that change by version: the closed forms, what is refused, and that a plan without them is as before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError
from coordinator.engine.schedule import Curve


def plan(schedule: dict[str, Any], rounds: int = 20, **task: Any) -> Plan:
    task = {"learner": "quorate:mnist-mlp", "learning_rate": 0.3, "mu": 0.02, **task}
    return Plan.parse({"name": "rates", "task": task, "finish": {"rounds": rounds}, "schedule": schedule})


def rates(curve: dict[str, Any], rounds: int = 20) -> list[float]:
    found = plan({"learning_rate": curve}, rounds)
    return [found.task_at(version).learning_rate for version in range(rounds)]


def near(found: list[float], wanted: list[float]) -> None:
    """Equal but for the rounding to float32."""
    assert found == [float(np.float32(one)) for one in found]
    np.testing.assert_allclose(found, wanted, rtol=2**-23)


def of_torch(make: Any, rounds: int) -> list[float]:
    """The rates of a scheduler of torch.optim that begins with 0.3."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler, found = make(optimizer), []
    for _ in range(rounds):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


def test_cosine_is_that_of_torch() -> None:
    wanted = of_torch(lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 20, eta_min=0.003), 20)
    near(rates({"shape": "cosine"}), wanted)


def test_steps_are_counted_from_the_end_of_the_warmup() -> None:
    near(
        rates({"shape": "steps", "factor": 0.5, "every": 4, "warmup": 3}, 12),
        [0.075, 0.15, 0.225, *[0.3] * 4, *[0.15] * 4, 0.075],
    )


def test_linear_is_that_of_torch_and_stays_at_its_end() -> None:
    wanted = of_torch(lambda one: torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.25, 8), 20)
    near(rates({"shape": "linear", "last": 0.25, "rounds": 8}), wanted)
    near(rates({"shape": "linear", "last": 0.25, "rounds": 8})[8:], [0.075] * 12)


@pytest.mark.parametrize(("factor", "every"), [(0.5, 6), (0.9, 1), (1.5, 7)])
def test_steps_are_those_of_torch(factor: float, every: int) -> None:
    wanted = of_torch(lambda one: torch.optim.lr_scheduler.StepLR(one, every, factor), 20)
    near(rates({"shape": "steps", "factor": factor, "every": every}), wanted)


def test_a_warmup_rises_to_the_rate_and_then_the_shape_begins() -> None:
    warm, cold = rates({"warmup": 4}), rates({}, rounds=16)
    near(warm[:4], [0.3 * part / 5 for part in (1, 2, 3, 4)])
    assert warm[4:] == cold


@given(st.integers(1, 10**6).flatmap(lambda rounds: st.tuples(st.just(rounds), st.integers(0, rounds - 1))))
def test_cosine_is_rounded_once(at: tuple[int, int]) -> None:
    rounds, version = at
    wanted = 0.5 + 0.5 * math.cos(math.pi * version / rounds)
    assert Curve(last=0.0).rate(1.0, version, rounds) == pytest.approx(wanted, rel=2**-23, abs=1e-15)


def test_each_rate_has_a_curve_of_its_own() -> None:
    found = plan({"mu": {"shape": "linear", "last": 0.0}, "server_learning_rate": {"shape": "steps", "every": 5}})
    assert [found.task_at(version).mu for version in (0, 10)] == [float(np.float32(0.02)), float(np.float32(0.01))]
    assert found.task_at(10).learning_rate == 0.3
    assert [found.settings_at(version)["server_learning_rate"] for version in (4, 5)] == [1.0, float(np.float32(0.1))]


def test_a_plan_without_it_is_as_before() -> None:
    data = {"name": "rates", "task": {"learner": "quorate:mnist-mlp", "learning_rate": 0.3}}
    found = Plan.parse(data)
    assert found.task_at(7) is found.task
    assert found.settings_at(7) == {"server_learning_rate": 1.0}
    assert "schedule" not in found.written_out


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"learning_rate": {"shape": "steps", "last": 0.5}}, 'the shape "steps" takes no last'),
        ({"learning_rate": {"factor": 0.5, "every": 2}}, 'the shape "cosine" takes no every and no factor'),
        ({"learning_rate": {"last": 0.0, "rounds": 10}}, "learning_rate reaches 0 before the run ends"),
        ({"learning_rate": {"shape": "steps", "factor": 1e-4}}, "learning_rate reaches 0 before the run ends"),
        ({"server_learning_rate": {"shape": "steps", "factor": 1000.0}}, "server_learning_rate reaches inf"),
        ({"learning_rate": {"last": 1000.0, "shape": "linear", "rounds": 5}}, "the most is 1000"),
        ({"learning_rate": {"warmup": 20}}, "is not over when the run ends, after 20 rounds"),
        ({"rate": {}}, "there is no such field"),
    ],
)
def test_what_cannot_be_meant_is_refused(schedule: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan(schedule, learning_rate=4.0)


def test_mu_needs_a_value_to_change() -> None:
    with pytest.raises(PlanError, match=r"schedule\.mu has nothing to change: set task.mu above 0"):
        plan({"mu": {}}, mu=0.0)
