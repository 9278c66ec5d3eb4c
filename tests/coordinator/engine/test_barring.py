"""Barring ends: after the plan's number of rounds, or when an owner lifts it, which is audited."""

from __future__ import annotations

from coordinator.engine import effects as fx
from coordinator.engine.secure.state import Barred
from tests.coordinator.engine.secure_story import POOL, SecureStory
from tests.coordinator.engine.story import every, only, refusal


def barred_story(rounds: int) -> SecureStory:
    """Round 1 ended as b was proven at fault."""
    story = SecureStory(secure={"barred_rounds": rounds}).opening()
    story.opening_failed("b")
    return story


def no_cohort(story: SecureStory) -> None:
    story.drawn_from("g")


def test_a_barred_device_is_drawn_again_after_so_many_rounds_and_no_sooner() -> None:
    story = barred_story(3)
    for number in (2, 3, 4):
        assert (story.state.round_number, set(story.state.barred)) == (number, {"b"})
        no_cohort(story)
    assert (story.state.round_number, story.state.barred) == (5, {})


def test_a_barred_device_is_no_member_even_where_a_draw_names_it() -> None:
    story = barred_story(1)
    story.drawn_from("b", "g", "h", "i", "j")
    assert set(story.state.current.members) == set("ghij")


def test_a_commit_does_not_end_it_before_its_time() -> None:
    story = SecureStory(secure={"barred_rounds": 1}).opening()
    story.opening_failed("b")
    story.drawn_from("g", "h", unspendable=6)
    assert story.state.barred == {}
    again = barred_story(5)
    again.drawn_from("g", "h", unspendable=6)
    again.advanced()
    again.committed()
    assert (again.state.version, set(again.state.barred)) == (1, {"b"})


def test_the_owner_lifts_it_and_it_is_audited() -> None:
    story = barred_story(10)
    effects = story.unbarred("b", by="key-1 (olga)")
    audit = only(effects, fx.RecordAudit)
    assert (audit.by, audit.action) == ("key-1 (olga)", "unbar")
    assert audit.detail == "device b was barred until round 12: its secret could not be rebuilt in round 1"
    assert only(effects, fx.Draw) == fx.Draw(round=2), "the pool may be full with it"
    assert story.state.barred == {}
    again = story.unbarred("b")
    assert refusal(again) == "conflict"
    assert only(again, fx.Refused).reason == "device b is not barred from run story"


def test_only_one_is_unbarred_and_a_round_under_way_asks_for_no_draw() -> None:
    story = SecureStory().opening()
    story.opening_failed("b", "c")
    story.cohort(*POOL[3:], "i", "j", "k")
    assert story.state.phase == "collecting"
    effects = story.unbarred("c")
    assert every(effects, fx.Draw) == []
    assert story.state.barred == {"b": Barred(why="its secret could not be rebuilt in round 1", until_round=12)}


def test_nobody_is_barred_from_a_run_that_is_over() -> None:
    story = barred_story(10)
    story.stopped()
    effects = story.unbarred("b")
    assert only(effects, fx.Refused).reason == "run story is stopped: nobody is barred from it any more"


def test_a_device_that_is_proven_at_fault_again_is_barred_anew() -> None:
    story = barred_story(3)
    story.unbarred("b")
    story.drawn_from(*"bghijk")
    story.announced()
    for device in "bghijk":
        story.advertised(device)
    story.rostered()
    for verb in ("shared", "masked", "signed", "revealed"):
        for device in "bghijk":
            if story.secure.opening:
                break
            getattr(story, verb)(device)
    story.opening_failed("b")
    assert story.state.barred["b"] == Barred(why="its secret could not be rebuilt in round 2", until_round=6)
