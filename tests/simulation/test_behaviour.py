"""How devices behave: speeds, exact shares of stragglers, and learners that cannot stop early."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import pytest

from client_sdk.chance import blake2b_word, labelled, unit
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation import Behaviour, simulate
from simulation.virtual.behaviour import PHONES, Habits
from tests.rotating import on_day
from tests.simulation.test_virtual_rounds import Stepping, clients, plan


def habits(seed: int = 5, **fields: Any) -> Habits:
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


# ------------------------------------------------------------ phones by the literature

MANY = [f"c{number}" for number in range(4000)]
DAY_S = 86_400.0


def test_durations_spread_by_their_sigma() -> None:
    """The logarithms of seconds per step, and of seconds on the network, have the standard deviation that is said."""
    one = habits(speed_sigma=0.6, network_s=0.0, down_mbps=8.0, up_mbps=2.0, network_sigma=0.6)
    one.carry(1_000_000, 500_000)
    found = one.conducts(MANY, 1)
    for values, median in (
        ([conduct.step_s for conduct in found.values()], 0.05),
        ([conduct.fetch_s for conduct in found.values()], 1.0),
        ([conduct.send_s for conduct in found.values()], 2.0),
    ):
        logs = np.log(values)
        assert logs.std() == pytest.approx(0.6, abs=0.03)
        assert np.exp(np.median(logs)) == pytest.approx(median, rel=0.04)
    assert found["c1"].step_s == one.conducts(["c1"], 9)["c1"].step_s, "a device's life long"


@pytest.mark.parametrize("best_hour", [0.0, 2.0, 13.5])
def test_four_times_as_many_are_available_at_the_best_hour_as_at_the_worst(best_hour: float) -> None:
    own = Behaviour(available=0.8, day_ratio=4.0, best_hour=best_hour)
    one = Habits(own, lambda device: "", 1)
    shares = []
    for hour in range(24):
        at = 20 * DAY_S + 3600.0 * (best_hour + hour)
        shares.append(sum(one.available(device, at) for device in MANY) / len(MANY))
        assert shares[-1] == pytest.approx(own.share_available(at), abs=0.03)
    assert shares[0] == max(shares) == pytest.approx(0.8, abs=0.03)
    assert min(shares) == pytest.approx(0.2, abs=0.03)
    assert shares[0] / shares[12] == pytest.approx(4.0, rel=0.12)


def test_a_device_is_available_in_one_interval_of_a_day_and_leaves_at_its_end() -> None:
    one = Habits(Behaviour(day_ratio=4.0, best_hour=2.0), lambda device: "", 1)
    seen = 0
    for device in MANY[:50]:
        begin = 20 * DAY_S + 14 * 3600.0  # the worst hour
        times = [begin + 600.0 * step for step in range(1, 144)]
        there = [one.available(device, at) for at in times]
        assert sum(a != b for a, b in pairwise(there)) <= 2
        for at, is_there in zip(times, there, strict=True):
            left = one.conducts([device], 1, at)[device].available_s
            if is_there and left < np.inf:
                seen += 1
                assert one.available(device, at + left - 1.0)
                assert not one.available(device, at + left + 1.0)
    assert seen > 100


def test_drop_out_goes_from_six_to_ten_per_cent_over_the_day_by_phase() -> None:
    one = Habits(PHONES, lambda device: "", 4)
    gone = {
        hour: [
            conduct
            for number in range(5)
            for conduct in one.conducts(MANY, number, 20 * DAY_S + 3600.0 * hour).values()
            if conduct.vanishes
        ]
        for hour in (2, 8, 14)
    }
    shares = [len(found) / (5 * len(MANY)) for found in gone.values()]
    assert shares == pytest.approx([0.06, 0.08, 0.10], abs=0.006)
    phases = [conduct.phase for conduct in gone[14]]
    assert [phases.count(phase) / len(phases) for phase in ("fetch", "train", "send")] == pytest.approx(
        PHONES.dropout_phases, abs=0.04
    )


def test_the_longer_the_work_the_more_batteries_are_empty() -> None:
    found = habits(battery_s=100.0).conducts(MANY, 1).values()
    for train_s in (10.0, 50.0):
        left = sum(not conduct.stays(train_s) for conduct in found) / len(MANY)
        assert left == pytest.approx(train_s / 100.0, abs=0.025)
    assert all(conduct.stays(1e9) for conduct in habits().conducts(["c1"], 1).values())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dropout": 0.2, "dropout_worst": 0.1}, r"dropout_worst=0\.1 must be at least dropout=0\.2"),
        ({"available": 0.0}, "no device would ever come"),
        ({"day_ratio": 0.5}, "must be from 1"),
        ({"best_hour": 24.0}, "is an hour of the day"),
        ({"dropout_phases": (0.0, 0.0, 0.0)}, "are three weights"),
        ({"dropout_phases": (1.0, 2.0)}, "are three weights"),
        ({"dropout_phases": 1.0}, "are three weights"),
        ({"down_mbps": -1.0}, "must be 0 or more"),
        ({"network_sigma": 6.0}, "from 0"),
    ],
)
def test_habits_that_cannot_be_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Behaviour(**fields)


DAYTIME = Behaviour(
    dropout=0.1, dropout_worst=0.4, dropout_phases=(1, 1, 1), step_s=60.0, speed_sigma=0.6,
    available=0.5, day_ratio=4.0, down_mbps=1e-6, network_sigma=0.6, battery_s=20_000.0, best_hour=6.0,
)  # fmt: skip


@on_day(1, of=2)
def test_a_run_over_the_day_has_the_same_bits_again_and_resumed(tmp_path: Path) -> None:
    """Rounds go on over the worst hours, when too few devices come for minutes on end."""
    wanted = plan(12, cohort={"select": 8, "goal": 5, "quorum": 0.6, "collect_s": 7200.0, "select_s": 1800.0})
    asked: dict[str, Any] = {"behaviour": DAYTIME, "progress": False}
    whole = simulate(wanted, Stepping(), clients(30), **asked)
    again = simulate(wanted, Stepping(), clients(30), **asked)
    assert whole.status == "finished"
    rounds = [(one.digest, one.opened_at, one.selected, one.started, one.reported) for one in whole.rounds]
    assert [(one.digest, one.opened_at, one.selected, one.started, one.reported) for one in again.rounds] == rounds
    assert any(one.started < one.selected for one in whole.rounds), "some vanish while they fetch"
    assert whole.rounds[0].opened_at % DAY_S == 0, "the first round begins at midnight"
    while (part := simulate(wanted, Stepping(), clients(30), folder=tmp_path, rounds=1, **asked)).status != "finished":
        pass
    assert [(one.digest, one.opened_at, one.selected, one.started, one.reported) for one in part.rounds] == rounds


def test_places_of_a_buffered_run_are_filled_when_devices_are_available_again() -> None:
    """In the worst hours too few come for all places, and at times nobody trains."""
    wanted = {
        "name": "buffered",
        "cohort": {"goal": 4, "collect_s": 7200.0},
        "buffered": {"concurrency": 10},
        "finish": {"rounds": 30},
    }
    own = replace(DAYTIME, available=0.4, day_ratio=1000.0)
    history = simulate(wanted, Stepping(), clients(30), behaviour=own, progress=False)
    assert history.status == "finished"
    assert any(one.seconds is not None and one.seconds > 3600.0 for one in history.rounds)


def test_nobody_is_selected_while_it_is_not_available() -> None:
    history = simulate(
        plan(8, cohort={"select": 6, "goal": 4, "quorum": 0.5, "collect_s": 3600.0, "select_s": 1200.0}),
        Stepping(),
        clients(40),
        behaviour=replace(DAYTIME, battery_s=0.0, dropout=0.0, dropout_worst=0.0),
        seed=3,
        progress=False,
    )
    one = Habits(DAYTIME, lambda device: "", 3)
    drawn = [event for event in history.events if event.kind == "Drawn"]
    assert len(drawn) >= 8
    for event in drawn:
        for device, _ in cast("list[tuple[str, int]]", event.body["cohort"]):
            assert one.available(device, event.at - 600.0) or one.available(device, event.at)


def test_devices_that_vanish_while_they_train_or_send_have_begun() -> None:
    found = {}
    for phase, weights in (("fetch", (1, 0, 0)), ("train", (0, 1, 0)), ("send", (0, 0, 1))):
        behaviour = Behaviour(dropout=0.5, dropout_phases=weights)
        history = simulate(
            plan(4, cohort={"quorum": 0.2}), Stepping(), clients(12), behaviour=behaviour, progress=False
        )
        found[phase] = [(one.selected, one.started, one.reported, one.digest) for one in history.rounds]
    assert found["train"] == found["send"]
    assert all(started == selected for selected, started, *_ in found["train"])
    assert any(started < selected for selected, started, *_ in found["fetch"])
    assert [row[2:] for row in found["fetch"]] == [row[2:] for row in found["train"]], "who vanishes is the same"
