"""Simulated private runs under masks: noise of the devices, as large as the plan says, counted for each list."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task
from coordinator.engine.plan import Plan
from simulation import History, SimulationError, simulate
from simulation.simulator.privacy_audit import audit
from tests.rotating import taking_turns
from tests.simulation.test_secure_rounds import INIT, D, both, clients, learner

pytestmark = pytest.mark.whole

GOAL, CLIP = 8, 2.0


def plan(rounds: int = 2, *, noise: float = 1.0, most_rounds: int = 2, **secure: Any) -> dict[str, Any]:
    return {
        "name": "test",
        "task": {"batch_size": 8},
        "cohort": {"select": GOAL + 4, "goal": GOAL, "quorum": 0.5, "collect_s": 60.0, "most_rounds": most_rounds},
        "aggregation": {"partial": "refuse"},
        "finish": {"rounds": rounds},
        "secure": {"max_norm": CLIP, "max_abs": CLIP, "minimum_cohort": 4, "reserve": 2, **secure},
        "privacy": {"mechanism": "distributed", "clip": CLIP, "noise": noise, "delta": 1e-5},
    }


def play(**options: Any) -> History:
    asked = {"asked": plan(), **options}.pop("asked")
    return simulate(asked, learner, clients(), init=INIT, secure="quantized", progress=False, seed=options["seed"])


@pytest.mark.parametrize("groups", [1, 2])
def test_masked_and_quantized_devices_add_the_same_noise(groups: int) -> None:
    history = both(asked=plan(groups=groups))
    assert [one.status for one in history.rounds] == ["committed"] * 2
    assert "protects nobody" in history._store.runs()[0].origin


@pytest.mark.parametrize("groups", taking_turns(1, 2))
def test_the_noise_is_the_sum_of_all_shares_over_the_goal(groups: int) -> None:
    """The roster has 10 devices, of whom 7 must sign and 3 may collude: 4 of 10 have all of it. A group of 5: 2."""
    steps = []
    for seed in range(12):
        loud = play(seed=seed, asked=plan(1, noise=20.0, groups=groups)).checkpoint()["w"]
        quiet = play(seed=seed, asked=plan(1, noise=0.01, groups=groups)).checkpoint()["w"]
        steps.append(loud - quiet)
    deviation = float(np.std(np.array(steps)))
    assert deviation == pytest.approx(20.0 * CLIP * math.sqrt(10 / 4 if groups == 1 else 10 / 2) / GOAL, rel=0.1)


def test_the_sum_is_over_the_goal_whoever_is_in_it() -> None:
    history = play(seed=0, asked=plan(1, noise=0.01))
    counted = [row.device for row in history._store.contributions(history.run, 1)]
    assert len(counted) == 10 > GOAL
    total, data = np.zeros(D), clients()
    for name in counted:
        delta = learner(INIT, data[name], Task(learner="a:b")).delta["w"].astype(np.float64)
        total += delta * min(1.0, CLIP / float(np.linalg.norm(delta)))
    assert float(np.linalg.norm(history.checkpoint()["w"] - total / GOAL)) < 0.1 * CLIP


def test_a_device_counts_in_as_many_lists_as_the_plan_allows() -> None:
    with pytest.raises(SimulationError, match=r"all that cohort\.most_rounds allows"):
        simulate(plan(5, most_rounds=1), learner, clients(), init=INIT, secure="quantized", progress=False, seed=0)


def test_an_audit_refuses_it_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="this plan's noise is added by devices of secure ones"):
        audit(Plan.parse({**plan(), "task": {"learner": "a:b"}}))
