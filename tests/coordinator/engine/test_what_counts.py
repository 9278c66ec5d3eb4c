"""Which update counts in a round, with which weight, and the refusals of the others; partial work."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine import state as states
from tests.coordinator.engine.story import Story, digest_of, only, refusal

# ---------------------------------------------------------------- what does not count


def test_an_update_after_the_close_is_late_and_recorded() -> None:
    story = Story().committing()
    effects = story.reported("d")
    assert refusal(effects) == "late"
    found = only(effects, fx.RecordRefusal)
    assert (found.device, found.digest, found.kind, found.reason) == (
        "d",
        digest_of("d", 1),
        "late",
        "round 1 has closed",
    )
    story.committed()
    effects = story.reported("d", round=1)
    assert refusal(effects) == "late"
    assert only(effects, fx.RecordRefusal).round == 1


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"round": 2}, "round 2 has not been opened: the run is at round 1"),
        ({"attempt": 1}, "attempt 1 of round 1 has not been opened: it is at attempt 0"),
        ({"round": 9, "attempt": 9}, "round 9 has not been opened: the run is at round 1"),
    ],
)
def test_a_round_or_attempt_that_has_not_been_opened_is_stale(more: dict[str, Any], sentence: str) -> None:
    story = Story().collecting()
    before = story.state
    found = only(story.reported("a", **more), fx.Refused)
    assert (found.kind, found.reason) == ("stale", sentence)
    assert refusal(story.started("a", **more)) == "stale"
    assert refusal(story.withdrew("a", **more)) == "stale"
    assert story.state is before


def test_the_same_update_again_gets_the_same_answer() -> None:
    story = Story().collecting()
    first = only(story.reported("a", examples=9), fx.Accepted)
    before = story.state
    assert story.reported("a", examples=9) == [first]
    assert story.state is before, "nothing is freed, folded or counted again"
    story.reported("b")
    story.reported("c")
    assert story.state.phase == "committing"
    assert story.reported("a", examples=9) == [first], "also while the commit is under way"


def test_a_second_different_update_is_refused_and_the_first_counts() -> None:
    story = Story().collecting()
    story.reported("a")
    effects = story.reported("a", digest=digest_of("changed my mind"))
    assert refusal(effects) == "duplicate"
    assert only(effects, fx.RecordRefusal).digest == digest_of("changed my mind")
    assert story.contributions[0].digest == digest_of("a", 1)


def test_a_device_that_was_not_selected_is_refused() -> None:
    story = Story().collecting("a", "b", "c")
    before = story.state
    for effects in (story.reported("z"), story.started("z"), story.withdrew("z")):
        assert refusal(effects) == "not-selected"
    assert story.state is before


def test_who_withdrew_cannot_report() -> None:
    story = Story().collecting()
    assert story.withdrew("a") == [fx.Release(round=1, devices=("a",))]
    assert story.withdrew("a") == [], "withdrawing again changes nothing"
    effects = story.reported("a")
    assert refusal(effects) == "withdrawn"
    assert only(effects, fx.RecordRefusal).kind == "withdrawn"
    assert story.contributions == ()


def test_who_reported_cannot_withdraw() -> None:
    story = Story().collecting()
    story.reported("a")
    assert refusal(story.withdrew("a")) == "conflict"
    assert [item.device for item in story.contributions] == ["a"]


def test_started_is_recorded_once() -> None:
    story = Story().collecting()
    assert story.started("a") == []
    assert story.state.current.members["a"].status == "training"
    before = story.state
    story.started("a")
    assert story.state is before
    story.reported("b")
    before = story.state
    story.started("b")
    assert story.state is before, "a Started that comes after the report changes nothing"


def test_an_update_without_examples_is_refused() -> None:
    story = Story().collecting()
    assert refusal(story.reported("a", examples=0)) == "invalid-update"


# ---------------------------------------------------------------- partial work


@pytest.mark.parametrize(
    ("partial", "weighting", "steps", "weight"),
    [
        ("full", "examples", 1, 1000),
        ("full", "equal", 1, 1),
        ("examples_seen", "examples", 1, 250 * 1024),
        ("examples_seen", "examples", 3, 750 * 1024),
        ("examples_seen", "examples", 0, 1),
        ("examples_seen", "equal", 1, 256),
        ("examples_seen", "equal", 3, 768),
    ],
)
def test_partial_work_counts_as_the_plan_says(partial: str, weighting: str, steps: int, weight: int) -> None:
    story = Story(aggregation={"partial": partial, "weighting": weighting}).collecting()
    effects = story.reported("a", examples=1000, steps=steps, steps_planned=4, complete=False)
    assert only(effects, fx.Accepted).weight == weight
    assert rounds.public_body(story.state)["partial"] == 1


@pytest.mark.parametrize("resumes_first", [False, True])
def test_repro_a_run_that_was_paused_before_it_began_knows_its_unit_and_its_statistics(resumes_first: bool) -> None:
    """Its first event was dropped: all its rounds took statistics for parameters, and counted whole examples."""
    story = Story(aggregation={"partial": "examples_seen"})
    told = ev.Created(at=1.0, weight_unit=1024, tensors="t", roles={"bn.running_var": "non-negative"}, roles_digest="r")
    story.paused()
    if resumes_first:
        story.resumed()
        assert (story.state.status, story.state.round_number) == ("running", 0)
        story.happens(told)
    else:
        story.happens(told)
        assert story.state.round_number == 0
        story.resumed()
    assert (story.state.phase, story.state.round_number) == ("selecting", 1)
    assert (story.state.weight_unit, story.state.tensors) == (1024, "t")
    assert (story.state.roles, story.state.roles_digest) == (told.roles, "r")
    before = story.state
    story.happens(told)
    assert story.state is before


def test_the_unit_of_a_run_is_in_its_log_and_its_snapshot() -> None:
    story = Story(aggregation={"partial": "examples_seen"}).collecting()
    assert ev.to_json(story.log[0])["weight_unit"] == 1024
    assert ev.to_json(Story().collecting().log[0])["weight_unit"] == 1
    again = states.from_json(states.to_json(story.state))
    assert again == story.state


def test_partial_work_is_refused_where_the_plan_says_so() -> None:
    story = Story(aggregation={"partial": "refuse"}).collecting()
    effects = story.reported("a", steps=1, complete=False)
    assert refusal(effects) == "invalid-update"
    assert "1 of 4 steps" in only(effects, fx.Refused).reason
    assert only(story.reported("a"), fx.Accepted).weight == 10, "whole work of the same device still counts"
