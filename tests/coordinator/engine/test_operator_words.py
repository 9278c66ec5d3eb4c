"""What the operator's words do to a round: pause, resume, stop."""

from __future__ import annotations

import pytest

from coordinator.engine import effects as fx
from tests.coordinator.engine.story import Story, every, only, refusal


def test_pausing_in_a_round_lets_it_end_and_opens_no_other() -> None:
    story = Story().collecting()
    story.paused()
    assert (story.state.status, story.state.phase) == ("paused", "collecting")
    for device in "abc":
        story.reported(device)
    effects = story.committed()
    assert (story.state.version, story.state.phase, story.state.deadline) == (1, "idle", None)
    assert every(effects, fx.Draw) == []
    assert story.tick(10_000) == []
    story.resumed()
    assert (story.state.status, story.state.phase, story.state.round_number) == ("running", "selecting", 2)


def test_resuming_within_the_round_keeps_the_round() -> None:
    story = Story().collecting()
    story.paused()
    assert story.resumed() == []
    assert (story.state.status, story.state.phase, story.state.round_number) == ("running", "collecting", 1)


def test_a_round_that_is_abandoned_while_paused_opens_no_other() -> None:
    story = Story().collecting()
    story.paused()
    story.tick(60)
    assert (story.state.phase, story.state.round_number) == ("idle", 1)


@pytest.mark.parametrize("reports", [0, 2])
def test_stopping_while_collecting_abandons_the_round(reports: int) -> None:
    story = Story().collecting()
    for device in "abcd"[:reports]:
        story.reported(device)
    effects = story.stopped()
    assert len(every(effects, fx.RecordRefusal)) == reports
    assert only(effects, fx.RecordRound).reason == "the run ended: stopped by the operator"
    assert (story.state.status, story.state.reason) == ("stopped", "stopped by the operator")
    assert (story.state.phase, story.state.round) == ("idle", None)


def test_stopping_while_committing_waits_for_the_commit() -> None:
    story = Story().committing()
    assert story.stopped() == []
    assert (story.state.status, story.state.phase) == ("running", "committing")
    assert refusal(story.stopped()) == "conflict"
    story.committed()
    assert (story.state.version, story.state.status, story.state.phase) == (1, "stopped", "idle")


def test_stopping_while_committing_waits_for_the_failure_as_well() -> None:
    story = Story().committing()
    story.stopped()
    story.commit_failed()
    assert (story.state.version, story.state.status, story.state.phase) == (0, "stopped", "idle")


def test_a_stop_stands_even_when_the_last_round_was_the_wanted_one() -> None:
    story = Story(finish={"rounds": 1}).committing()
    story.stopped()
    story.committed()
    assert story.state.status == "stopped"
