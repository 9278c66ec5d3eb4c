"""How devices behave: speeds, exact shares of stragglers, and learners that cannot stop early."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from client_sdk.chance import blake2b_word, labelled, unit
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation import Behaviour, simulate
from simulation.virtual.behaviour import Habits
from tests.simulation.test_virtual_rounds import Stepping, clients, plan


def habits(seed: int = 5, **fields: float) -> Habits:
    return Habits(Behaviour(**fields), lambda device: "", seed)


def test_a_seed_gives_the_speeds_that_its_documentation_says() -> None:
    """seconds per step = step_s * exp(sigma * z), z the normal quantile of a hash: a run that is continued, here or by
    another version, has the same fast and slow devices."""
    found = habits(step_s=0.5, speed_sigma=0.7, jitter_sigma=0.2).conducts(["c3"], 4)["c3"].step_s
    drawn = [
        NormalDist().inv_cdf(unit(blake2b_word(labelled("behaviour", what, 5, "c3", number))))
        for what, number in (("speed", 0), ("jitter", 4))
    ]
    assert found == pytest.approx(0.5 * math.exp(0.7 * drawn[0] + 0.2 * drawn[1]), rel=1e-6)
    assert abs(drawn[0]) > 0.1, "a draw that tells its sign"


@pytest.mark.parametrize(("share", "slow"), [(0.0, 0), (0.5, 5), (0.9, 9), (0.55, 6), (1.0, 10)])
def test_an_exact_share_of_each_cohort_straggles(share: float, slow: int) -> None:
    cohort = [f"c{number}" for number in range(10)]
    who = [
        {device for device, one in habits(straggler_share=share).conducts(cohort, number).items() if one.share < 1.0}
        for number in range(1, 30)
    ]
    assert {len(devices) for devices in who} == {slow}
    if 0 < slow < 10:
        assert len(set(map(frozenset, who))) > 5, "drawn anew in each round"
        assert set.union(*who) == set(cohort)


def test_the_share_is_of_each_class_and_the_order_of_the_cohort_is_nothing() -> None:
    classes = {f"c{number}": "phone" if number < 4 else "clinic" for number in range(8)}
    fleet = {"phone": Behaviour(straggler_share=0.5), "clinic": Behaviour()}
    one = Habits(fleet, classes.__getitem__, 1)
    found = one.conducts(list(classes), 2)
    assert found == one.conducts(list(reversed(classes)), 2)
    slow = [device for device, conduct in found.items() if conduct.share < 1.0]
    assert len(slow) == 2
    assert {classes[device] for device in slow} == {"phone"}
    assert one.by_share
    assert not habits(stragglers=0.5).by_share


def test_share_and_probability_together_are_refused() -> None:
    with pytest.raises(ValueError, match="is a probability and straggler_share= an exact share: give one"):
        Behaviour(stragglers=0.1, straggler_share=0.5)
    with pytest.raises(ValueError, match=r"straggler_share=1\.5 is a probability or a share: from 0 to 1"):
        Behaviour(straggler_share=1.5)


def test_a_resumed_run_has_the_same_share(tmp_path: Path) -> None:
    wanted = plan(4, cohort={"select": 8, "goal": 6, "quorum": 0.3}, aggregation={"partial": "refuse"})
    asked: dict[str, Any] = {"behaviour": Behaviour(straggler_share=0.5, speed_sigma=1.0), "progress": False}
    whole = simulate(wanted, Stepping(), clients(14), **asked)
    while (part := simulate(wanted, Stepping(), clients(14), folder=tmp_path, rounds=1, **asked)).status != "finished":
        pass
    counts = [(one.digest, one.reported, one.withdrawn) for one in whole.rounds]
    assert [(one.digest, one.reported, one.withdrawn) for one in part.rounds] == counts
    update = simulate(wanted, Stepping(), clients(14), only="c02", round=2, folder=tmp_path, **asked)
    assert update.work.steps >= 1
    with pytest.raises(ValueError, match="straggler_share depends on who else was selected in the round: give folder="):
        simulate(wanted, Stepping(), clients(14), only="c02", round=1, **asked)


def by_function(model: Tensors, data: Any, task: Task) -> Update:
    return Update({"w": data[0].mean(0) - model["w"]}, len(data[0]))


def test_repro_a_function_that_cannot_stop_early_is_no_straggler_that_did_everything() -> None:
    """It trained the whole task in the time of a part of it, and counted as complete work."""
    first = {"w": np.zeros(2, np.float32)}
    asked: dict[str, Any] = {"init": first, "progress": False, "behaviour": Behaviour(straggler_share=0.5)}
    wanted = plan(2, cohort={"select": 8, "goal": 8, "quorum": 0.3})
    history = simulate(wanted, by_function, clients(8, (80,)), **asked)
    assert [(one.reported, one.withdrawn) for one in history.rounds] == [(4, 4), (4, 4)]
    reason = "The time ran out before the whole task was done, and a learner that is a function cannot stop early: "
    assert {one.reason for one in history.withdrawals} == {reason + "an object with train(..., deadline=) can."}
    whole = simulate(wanted, by_function, clients(8, (80,)), init=first, progress=False)
    assert [one.reported for one in whole.rounds] == [8, 8]
