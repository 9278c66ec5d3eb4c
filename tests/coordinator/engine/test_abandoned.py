"""``finish.abandoned``: so many abandoned rounds in a row pause the run, but not before it has fallen back."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.engine import rounds
from coordinator.engine.plan import Plan
from tests.coordinator.engine.story import FALLBACK, Story


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
    told = story(3)
    in_vain(told)
    in_vain(told)
    assert (told.state.status, told.state.phase) == ("running", "selecting")
    in_vain(told)
    assert (told.state.status, told.state.phase, told.state.round) == ("paused", "idle", None)
    assert told.state.reason == (
        "3 rounds in a row were abandoned, the last one because 2 of 3 devices withdrew; 1 are left and the quorum is 2. "
        "2 devices withdrew: the loss is NaN"
    )
    folded = told.start
    for event in told.log:
        folded, _ = rounds.step(folded, event)
    assert folded == told.state


def test_a_commit_and_a_resume_begin_the_count_anew() -> None:
    told = story(2)
    in_vain(told)
    told.whole_round()
    in_vain(told)
    assert told.state.status == "running"
    in_vain(told)
    assert told.state.status == "paused"
    told.resumed()
    in_vain(told)
    assert (told.state.status, told.state.round_number) == ("running", 6)
    in_vain(told)
    assert told.state.status == "paused"


def test_one_is_enough_where_the_plan_says_so() -> None:
    told = story(1)
    told.drawn()
    assert told.state.status == "paused"
    assert told.state.reason == "the round was abandoned, because 0 eligible devices waited; a round needs at least 2"


def test_a_plan_without_the_field_goes_on_for_ever() -> None:
    told = Story()
    told.created()
    for _ in range(100):
        in_vain(told)
    assert (told.state.status, told.state.round_number) == ("running", 101)


@pytest.mark.parametrize("most", [1, 2])
def test_the_run_falls_back_to_the_datacenter_first(most: int) -> None:
    told = story(most, datacenter={**FALLBACK, "patience": most})
    for _ in range(most):
        told.drawn()
    assert (told.state.phase, told.state.status) == ("leasing", "running"), "the datacenter has a try"
    told.leased()
    told.lease_ended(failed=True, reason="no such data")
    assert told.state.status == "paused"
    assert told.state.reason.startswith(f"{most + 1} rounds in a row were abandoned, the last one because ")
    assert told.state.reason.endswith("no such data")


def test_a_round_that_goes_back_to_the_devices_is_not_one_of_them() -> None:
    told = story(2, datacenter=FALLBACK)
    told.drawn()
    assert told.state.phase == "leasing"
    told.fleet_returned(3)
    assert (told.state.phase, told.state.status) == ("selecting", "running")
    told.drawn()
    assert told.state.status == "paused", "it has fallen back before, and devices were there in vain"


def test_a_datacenter_that_makes_rounds_goes_on() -> None:
    told = story(1, datacenter=FALLBACK)
    for _ in range(3):
        if told.state.phase == "selecting":
            told.drawn()
        told.leased()
        told.delivered()
    assert (told.state.version, told.state.status, told.state.abandoned) == (3, "running", 0)


def test_an_operator_who_stops_or_pauses_has_the_last_word() -> None:
    told = story(1)
    told.drawn("a", "b", "c")
    told.paused()
    told.withdrew("a")
    told.withdrew("b")
    assert (told.state.status, told.state.reason) == ("paused", "paused by the operator")
    other = story(1)
    other.stopped()
    assert (other.state.status, other.state.reason) == ("stopped", "stopped by the operator")


def test_the_digest_of_a_plan_without_it_stays() -> None:
    plan = Plan.parse({"name": "x", "task": {"learner": "a:b"}})
    assert "abandoned" not in plan.model_dump(mode="json")["finish"]
    assert plan.model_copy(update={"finish": plan.finish.model_copy(update={"abandoned": 3})}).digest != plan.digest
