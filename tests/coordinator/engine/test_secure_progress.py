"""What people see of a secure round: its exchanges in counts, bytes and times, and never which device sent what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from client_sdk.protocol.operators import SecureView
from coordinator.engine import effects as fx
from coordinator.engine import rounds
from tests.coordinator.engine.secure_story import SIX, SecureStory
from tests.coordinator.engine.story import every


def seen(story: SecureStory) -> SecureView:
    body: Any = rounds.public_body(story.state)["secure"]
    view = SecureView.model_validate(body)
    assert view.model_dump(mode="json") == json.loads(json.dumps(body)), "the row has these fields and no others"
    return view


def test_before_a_cohort_there_is_nothing_to_see() -> None:
    story = SecureStory()
    story.created()
    assert "secure" not in rounds.public_body(story.state)


def test_each_exchange_has_its_counts_its_threshold_its_bytes_and_its_times() -> None:
    story = SecureStory().cohort()
    story.at += 1
    for device in SIX:
        story.advertised(device)
    story.at += 2
    story.rostered()
    for device in SIX[:5]:
        story.shared(device)
    story.tick(20)
    for device in SIX[:5]:
        story.masked(device)
    story.at += 4
    for device in SIX[:5]:
        story.signed(device)
    story.at += 5
    for device in SIX[:5]:
        story.revealed(device)
    story.at += 6
    story.opened()
    view = seen(story)
    assert (view.attempts, view.roster, view.threshold, view.signers) == (1, 6, 5, 5)
    assert (view.excluded, view.opened) == (0, True)
    assert [(one.exchange, one.expected, one.came, one.needed, one.bytes) for one in view.exchanges] == [
        ("advertise", 8, 6, 4, 60),
        ("share", 6, 5, 5, 50),
        ("mask", 5, 5, 5, 50),
        ("agree", 5, 5, 5, 50),
        ("unmask", 5, 5, 5, 50),
    ]
    assert [(one.began_at, one.ended_at) for one in view.exchanges] == [
        (100.0, 103.0),
        (103.0, 123.0),
        (123.0, 123.0),
        (123.0, 127.0),
        (127.0, 138.0),
    ]


@pytest.mark.parametrize(("chapter", "begun"), [("cohort", 1), ("sharing", 2), ("masking", 3), ("unmasking", 5)])
def test_an_exchange_is_seen_once_it_has_begun(chapter: str, begun: int) -> None:
    view = seen(getattr(SecureStory(), chapter)())
    assert len(view.exchanges) == begun
    assert view.exchanges[-1].ended_at is None
    assert view.opened is False


def test_a_fresh_attempt_counts_anew_and_says_which_it_is() -> None:
    story = SecureStory().sharing()
    for device in "abcd":
        story.shared(device)
    story.tick(20)
    view = seen(story)
    assert (view.attempts, view.roster, view.excluded) == (2, 0, 2)
    assert [(one.exchange, one.came, one.bytes, one.began_at) for one in view.exchanges] == [("advertise", 0, 0, 120.0)]
    (first,) = view.earlier
    assert first.reason == "4 of 6 devices shared in attempt 0; it takes 5"
    assert (first.ended_at, first.roster, first.threshold, first.signers) == (120.0, 6, 5, 5)
    assert [(one.exchange, one.came, one.expected, one.ended_at) for one in first.exchanges] == [
        ("advertise", 6, 8, 100.0),
        ("share", 4, 6, None),
    ]


def test_every_attempt_of_a_round_stays_in_view_with_its_reason() -> None:
    story = SecureStory(secure={"minimum_cohort": 3, "attempts": 3}, cohort={"quorum": 0.5}).sharing()
    for device in "abcd":
        story.shared(device)
    story.tick(20)
    story.announced()
    for device in "abcdgh":
        story.advertised(device)
    story.rostered()
    for device in "abcdgh":
        story.shared(device)
    for device in "abcd":
        story.masked(device)
    story.tick(20)
    assert story.attempt == 2
    assert [(one.roster, len(one.exchanges), one.reason) for one in seen(story).earlier] == [
        (6, 2, "4 of 6 devices shared in attempt 0; it takes 5"),
        (6, 3, "4 of 6 devices masked in attempt 1; it takes 5"),
    ]


def test_the_row_of_a_committed_round_names_no_device_but_who_contributed() -> None:
    story = SecureStory().summed()
    row = next(row for row in every(story.committed(), fx.RecordRound) if row.status == "committed")
    found = SecureView.model_validate(row.body["secure"])
    assert [one.came for one in found.exchanges] == [6, 6, 6, 6, 5]
    public = {name: value for name, value in row.body.items() if name != "cohort"}
    names = {f'"{device}"' for device in SIX}
    assert not any(name in json.dumps(public) for name in names)


def funnel(story: SecureStory) -> tuple[int, ...]:
    """Of the round's row: selected, training, reported, withdrawn."""
    body: Any = rounds.public_body(story.state)["funnel"]
    return tuple(body[name] for name in ("selected", "training", "reported", "withdrawn"))


def test_a_device_has_reported_once_its_masked_vector_came() -> None:
    """Not when its keys came: what then vanishes is *dropped*, and what withdraws *withdrawn*."""
    story = SecureStory().sharing()
    assert funnel(story) == (8, 6, 0, 0), "six have advertised, so they have trained"
    for device in SIX:
        story.shared(device)
    story.withdraws("f")
    for device in SIX[:4]:
        story.masked(device)
    assert funnel(story) == (8, 5, 4, 1)
    story.withdraws("a")
    assert funnel(story) == (8, 5, 4, 1), "its vector stays in the sum"
    story.masked("e")
    assert (story.state.phase, funnel(story)) == ("agreeing", (8, 5, 5, 1))
    before = story.state
    assert story.withdraws("g") == []
    assert story.state is before, "the round has let go of who is not on the list"


def test_a_vector_that_is_taken_back_is_not_reported() -> None:
    story = SecureStory().masking()
    story.masked("a")
    story.faulted("a")
    assert funnel(story) == (8, 6, 0, 0)
    fresh = SecureStory().masking()
    for device in SIX[:4]:
        fresh.masked(device)
    fresh.tick(20)
    assert (fresh.attempt, funnel(fresh)) == (1, (8, 6, 0, 0))
