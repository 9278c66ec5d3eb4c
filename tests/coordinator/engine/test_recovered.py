"""What an outage takes of the time in which devices answer is given back when a coordinator starts again."""

from __future__ import annotations

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from tests.coordinator.engine.secure_story import SIX, SecureStory
from tests.coordinator.engine.story import Story, every, only


def back(story: Story, after_s: float) -> list[fx.Effect]:
    story.at += after_s
    return story.happens(ev.Recovered(at=story.at))


@pytest.mark.parametrize("phase", ["sharing", "masking", "agreeing", "unmasking"])
def test_an_exchange_of_a_secure_round_has_its_whole_time_again(phase: str) -> None:
    story = SecureStory()
    getattr(story, phase)()
    assert story.state.deadline == story.at + 20
    back(story, 500)
    assert (story.state.phase, story.state.deadline) == (phase, story.at + 20)
    before = story.state
    back(story, 0)
    assert story.state is before, "no time was lost since then, so nothing is logged"
    story.tick(20)
    assert (story.state.phase, story.state.current.attempt) != (phase, 0)


def test_a_quiet_exchange_waits_from_when_the_coordinator_is_there_again() -> None:
    story = SecureStory(secure={"quiet_s": 3}).masking()
    for device in SIX[:5]:
        story.masked(device)
    back(story, 100)
    assert story.state.deadline == story.at + 20
    story.at += 18
    story.masked("f")
    assert story.state.phase == "agreeing", "all have masked"
    shared = SecureStory(secure={"quiet_s": 3}).sharing()
    back(shared, 100)
    began = shared.at
    shared.at += 18
    for device in SIX[:5]:
        shared.shared(device)
    assert shared.state.deadline == began + 20, "from the outage on it lasts no longer than an exchange"


def test_what_is_given_back_ends_with_the_attempt_and_then_a_fresh_one_begins_that_blames_nobody() -> None:
    story = SecureStory().masking()
    for device in SIX[:5]:
        story.masked(device)
    assert story.state.secure is not None
    expires_at = story.state.secure.expires_at
    back(story, expires_at - story.at - 4)
    assert story.state.deadline == expires_at
    effects = story.tick(4)
    assert (story.state.phase, story.state.current.attempt, story.state.current.excluded) == ("collecting", 1, {})
    assert {"attempt 0 of the round was given up: attempt 0 expired before all had masked"} == {
        row.reason for row in every(effects, fx.RecordRefusal)
    }
    assert only(effects, fx.Announce).attempt == 1
    assert story.state.spent == ()


def test_repro_a_list_that_nobody_may_sign_any_more_is_not_shown() -> None:
    """After an outage beyond the attempt's expiry the list was shown to devices that refuse to sign it, and the round
    was abandoned."""
    story = SecureStory().masking()
    for device in SIX[:5]:
        story.masked(device)
    assert story.state.secure is not None
    story.tick(story.state.secure.expires_at - story.at)
    assert (story.state.phase, story.state.current.attempt) == ("collecting", 1)


def test_the_first_exchange_of_another_attempt_has_its_time_again_with_and_without_a_header() -> None:
    story = SecureStory().masking()
    for device in SIX[:4]:
        story.masked(device)
    story.withdraws("e")
    story.withdraws("f")
    assert (story.state.phase, story.state.current.attempt) == ("collecting", 1)
    back(story, 50)
    assert story.state.deadline == story.at + 20
    story.announced()
    back(story, 50)
    assert story.state.deadline == story.at + 20


def test_reports_have_a_minute_after_an_outage_and_in_all_their_time_once_more() -> None:
    story = Story(cohort={"collect_s": 100}).collecting()
    began = story.at
    back(story, 30)
    assert story.state.deadline == began + 100, "there is time enough"
    back(story, 60)
    assert story.state.deadline == began + 150
    for _ in range(10):
        back(story, 40)
    assert story.state.deadline == began + 200
    story.tick(0)
    assert story.state.round_number == 2


@pytest.mark.parametrize("chapter", ["selecting", "committing"])
def test_a_phase_in_which_no_device_answers_gets_nothing(chapter: str) -> None:
    story = Story()
    getattr(story, chapter)()
    before = story.state
    back(story, 10_000)
    assert story.state is before
