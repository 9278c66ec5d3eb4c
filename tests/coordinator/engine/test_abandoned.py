"""``finish.abandoned``: so many abandoned rounds in a row pause the run, but not before it has fallen back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import rounds
from coordinator.engine.secure.state import Barred
from tests.coordinator.engine.secure_story import SecureStory
from tests.coordinator.engine.story import FALLBACK, Story, only


def story(most: int, **sections: Any) -> Story:
    made = Story(finish={"abandoned": most}, **sections)
    made.created()
    return made


def in_vain(story: Story) -> None:
    """A round of two devices, which withdraw."""
    story.drawn("a", "b", "c")
    for device in ("a", "b"):
        story.withdrew(device, reason="the loss is NaN")


def test_the_run_is_paused_with_the_reason_of_the_last_round() -> None:
    run = story(3)
    in_vain(run)
    in_vain(run)
    assert (run.state.status, run.state.phase) == ("running", "selecting")
    in_vain(run)
    assert (run.state.status, run.state.phase, run.state.round) == ("paused", "idle", None)
    assert run.state.reason == (
        "3 rounds in a row were abandoned, the last one because 2 of 3 devices withdrew; "
        "1 are left and the quorum is 2. 2 devices withdrew: the loss is NaN"
    )
    folded = run.start
    for event in run.log:
        folded, _ = rounds.step(folded, event)
    assert folded == run.state


def test_a_commit_and_a_resume_begin_the_count_anew() -> None:
    run = story(2)
    in_vain(run)
    run.whole_round()
    in_vain(run)
    assert run.state.abandoned == 1
    in_vain(run)
    assert run.state.status == "paused"
    run.resumed()
    in_vain(run)
    assert (run.state.status, run.state.round_number) == ("running", 6)
    in_vain(run)
    assert run.state.status == "paused"


def test_one_is_enough_where_the_plan_says_so() -> None:
    run = story(1)
    run.drawn()
    assert run.state.status == "paused"
    assert run.state.reason == "the round was abandoned, because 0 eligible devices waited; a round needs at least 2"


def test_missed_selections_count_each_and_are_one_round() -> None:
    run = story(3)
    in_vain(run)
    run.drawn()
    assert (run.state.status, run.state.round_number, run.state.abandoned) == ("running", 2, 2)
    row = only(run.drawn(), fx.RecordRound)
    assert run.state.status == "paused"
    assert run.state.reason == (
        "3 attempts at a round in a row failed, the last one because "
        "0 eligible devices waited; a round needs at least 2"
    )
    assert (row.round, row.status, row.body["missed"]) == (2, "abandoned", 2)


def test_devices_that_are_barred_for_so_many_rounds_are_let_in_after_so_many_missed_selections() -> None:
    run = SecureStory()
    run.created()
    run.state = replace(run.state, barred={"a": Barred(until_round=4, why="it lied")})
    for number in (2, 3, 4):
        run.drawn_from("g", unspendable=1, barred=1)
        assert run.state.round_number == number
    assert run.state.barred == {}
    run.drawn_from("g")
    assert run.state.round_number == 4, "from now on the round stays"


def test_a_plan_without_the_field_goes_on_for_ever() -> None:
    run = Story()
    run.created()
    for _ in range(100):
        in_vain(run)
    assert (run.state.status, run.state.round_number) == ("running", 101)


@pytest.mark.parametrize("most", [1, 2])
def test_the_run_falls_back_to_the_datacenter_first(most: int) -> None:
    run = story(most, datacenter={**FALLBACK, "patience": most})
    for _ in range(most):
        run.drawn()
    assert (run.state.phase, run.state.status) == ("leasing", "running"), "the datacenter has a try"
    run.leased()
    run.lease_ended(failed=True, reason="no such data")
    assert run.state.status == "paused"
    assert run.state.reason.startswith(f"{most + 1} rounds in a row were abandoned, the last one because ")
    assert run.state.reason.endswith("no such data")


def test_a_round_that_goes_back_to_the_devices_is_not_one_of_them() -> None:
    run = story(2, datacenter=FALLBACK)
    run.drawn()
    assert run.state.phase == "leasing"
    run.fleet_returned(3)
    assert (run.state.phase, run.state.status) == ("selecting", "running")
    run.drawn()
    assert run.state.status == "paused", "it has fallen back before, and devices were there in vain"


def test_a_datacenter_that_makes_rounds_goes_on() -> None:
    run = story(1, datacenter=FALLBACK)
    for _ in range(3):
        if run.state.phase == "selecting":
            run.drawn()
        run.leased()
        run.delivered()
    assert (run.state.version, run.state.status, run.state.abandoned) == (3, "running", 0)


def test_an_operator_who_stops_or_pauses_has_the_last_word() -> None:
    run = story(1)
    run.drawn("a", "b", "c")
    run.paused()
    run.withdrew("a")
    run.withdrew("b")
    assert (run.state.status, run.state.reason) == ("paused", "paused by the operator")
    other = story(1)
    other.stopped()
    assert (other.state.status, other.state.reason) == ("stopped", "stopped by the operator")
