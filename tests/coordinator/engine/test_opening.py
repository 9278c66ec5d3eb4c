"""The opening of a round: at one place, and it can be refused with a reason."""

from __future__ import annotations

from typing import get_args

import pytest

from client_sdk.protocol.operators import Kind
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases import opening
from coordinator.engine.rounds import KINDS
from tests.coordinator.engine.secure_story import SecureStory
from tests.coordinator.engine.story import FALLBACK, Story
from tests.coordinator.engine.test_buffered import Buffer

SPENT = opening.NotOpened("budget", "the budget is spent")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every opening is refused until this is undone."""
    monkeypatch.setattr(opening, "reason_against", lambda state, at: SPENT)
    return monkeypatch


def test_reasons_of_today() -> None:
    story = Story()
    assert opening.reason_against(story.state, 0.0) is not None, "it has not begun"
    story.created()
    assert opening.reason_against(story.state, 0.0) is None
    story.paused()
    found = opening.reason_against(story.state, 0.0)
    assert found == ("paused", "paused by the operator")


def test_refused_opening_is_no_round_and_no_row_however_often_it_is_tried(refusing: pytest.MonkeyPatch) -> None:
    story = Story()
    effects = story.created()
    assert (story.state.round, story.state.round_number, effects) == (None, 0, [])
    assert story.state.begun
    before = story.state
    for _ in range(3):
        assert story.happens(ev.Tick(at=story.at)) == []
    assert story.state is before, "nothing is logged"


def test_next_opening_is_refused_after_a_commit_and_tried_again(refusing: pytest.MonkeyPatch) -> None:
    refusing.undo()
    story = Story().collecting()
    for device in ("a", "b", "c"):
        story.reported(device)
    refusing.setattr(opening, "reason_against", lambda state, at: SPENT)
    story.committed()
    assert (story.state.version, story.state.phase, story.state.status) == (1, "idle", "running")
    refusing.undo()
    effects = story.happens(ev.Tick(at=story.at))
    assert (story.state.phase, story.state.round_number) == ("selecting", 2)
    assert [type(effect) for effect in effects] == [fx.RecordRound, fx.Draw]
    assert story.log[-1].kind == "Tick", "a replay opens the round where it was opened"


def test_any_change_tries_to_open(refusing: pytest.MonkeyPatch) -> None:
    story = Story()
    story.created()
    refusing.undo()
    story.happens(ev.Renamed(at=story.at, name="other"))
    assert story.state.phase == "selecting"


def test_refused_event_opens_nothing(refusing: pytest.MonkeyPatch) -> None:
    story = Story()
    story.created()
    refusing.undo()
    before = story.state
    story.happens(ev.Committed(at=story.at, round=1, digest="0" * 64, bytes=1))
    assert story.state is before


def test_every_kind_has_its_line_in_the_table_and_every_event_one_owner() -> None:
    assert set(KINDS) == set(get_args(Kind))
    owned = [event for kind in KINDS.values() for event in kind.events]
    assert len(owned) == len(set(owned))
    assert {*get_args(ev.RunEvent), *get_args(ev.DeviceEvent), *owned} == set(get_args(ev.Event))


@pytest.mark.parametrize("name", get_args(Kind))
def test_round_opens_in_the_first_phase_of_its_kind(name: str) -> None:
    story = {
        "federated": lambda: Story().selecting(),
        "secure": lambda: SecureStory().selecting(),
        "datacenter": lambda: Story(datacenter=FALLBACK).leasing(),
        "buffered": Buffer,
    }[name]()
    assert story.state.current.kind == name
    assert story.state.phase == KINDS[name].first_phase
    assert KINDS[name].pending(story.state), "somebody is asked to begin"
