"""The margin of a survivor list: as many as may vanish before the sum have masked beyond those that must sign."""

from __future__ import annotations

import pytest

from coordinator.engine import rounds
from coordinator.engine.secure.margin import ended, margin, shown, whole
from coordinator.engine.secure.plan import Secure
from tests.coordinator.engine.secure_story import SecureStory

EIGHT = tuple("abcdefgh")


def masking(count: int, **secure: object) -> SecureStory:
    """Of eight devices, of whom five must sign, so many have masked, and the others are silent."""
    story = SecureStory(cohort={"goal": 8, "quorum": 0.5}, secure={"quiet_s": 3, **secure})
    story.masking(*EIGHT, threshold=5, signers=5, fewest=4)
    for device in EIGHT[:count]:
        story.masked(device)
    return story


def test_repro_a_list_of_no_more_than_must_sign_it_is_not_shown() -> None:
    """The list of five devices took five signatures: the first that vanished made the others sign for nothing."""
    story = masking(5)
    began = story.state.deadline
    story.tick(4)
    assert (story.state.phase, story.state.deadline) == ("masking", began), "others may still come"
    story.tick(16)
    assert (story.state.phase, story.state.current.attempt, story.state.spent) == ("collecting", 1, ())
    assert story.state.current.earlier[0].reason == (
        "5 of 8 devices masked in attempt 0; 5 must sign the list, and 1 more may vanish before"
    )
    assert set(story.state.current.excluded) == set("fgh"), "the next roster is of those that are there"
    body = rounds.public_body(story.state)["secure"]
    assert isinstance(body, dict)
    assert body["earlier"][0]["exchanges"][2]["needed"] == 6


def test_with_the_margin_the_list_is_shown_once_it_is_quiet() -> None:
    story = masking(6)
    story.tick(3)
    assert (story.state.phase, len(story.secure.masked)) == ("agreeing", 6)


def test_each_attempt_that_failed_for_want_of_it_halves_it_until_a_list_has_the_whole() -> None:
    story = masking(5)
    story.tick(20)
    assert story.state.margin_missed == 1
    assert (whole(story.state, 8, 5), margin(story.state, 8, 5), margin(story.state, 40, 27)) == (1, 0, 1)
    assert shown(story.state, masking(5).secure).margin_missed == 1
    assert shown(story.state, masking(6).secure).margin_missed == 0


def test_an_exchange_that_fails_for_want_of_devices_does_not_lower_it() -> None:
    story = masking(4)
    story.tick(20)
    assert (story.state.current.attempt, story.state.margin_missed) == (1, 0)


def test_it_is_what_the_last_lists_lost_and_at_least_one_in_twenty() -> None:
    story = masking(6)
    story.tick(3)
    for device in "abcd":
        story.signed(device)
    story.tick(20)
    assert story.state.lists_lost == (334,), "two of six, in thousandths"
    assert [whole(story.state, n, signers) for n, signers in ((100, 67), (20, 10))] == [16, 5]
    state = story.state
    assert whole(state, 30, 10) == 10, "a third of 30, rounded up, is above half of 20"
    for _ in range(5):
        state = ended(state, masking(6).secure, 0)
    assert [whole(state, n, signers) for n, signers in ((100, 67), (20, 10), (19, 10))] == [5, 1, 1]


def test_a_sum_that_is_opened_lost_those_that_said_so_alone() -> None:
    story = SecureStory()
    story.opening()
    story.opened()
    assert story.state.lists_lost == (), "the sixth has revealed nothing yet, and is there"


def test_repro_secrets_that_lack_shares_count_as_lost() -> None:
    story = SecureStory().unmasking()
    for device in "abc":
        story.revealed(device)
    story.tick(20)
    assert story.state.lists_lost == (500,)


@pytest.mark.parametrize(
    ("named", "n", "signers", "found"), [(None, 300, 201, 15), (None, 6, 5, 0), (40, 300, 201, 40)]
)
def test_a_plan_may_name_it(named: int | None, n: int, signers: int, found: int) -> None:
    section = Secure(max_norm=1.0, max_abs=0.5, margin=named)
    assert section.margin_of(n, signers) == found
    assert section.margin_of(20, 14) <= 3, "half of those that need not sign"
    assert ("margin" in section.model_dump()) is (named is not None)


def test_on_a_ring_it_comes_out_of_those_that_may_vanish() -> None:
    section = Secure(profile="fast", drop=44, max_norm=1.0, max_abs=0.5)
    numbers = section.rule.parameters(300)
    assert (numbers.signers, section.margin_of(300, numbers.signers)) == (256, 15)
    assert section.model_copy(update={"margin": 44}).margin_of(300, numbers.signers) == 22
