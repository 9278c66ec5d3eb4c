"""Sharing and masking: when each exchange ends, at the very counts, and what complaints and faults do."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.engine import effects as fx
from tests.coordinator.engine.secure_story import SIX, SecureStory, ring_of
from tests.coordinator.engine.story import digest_of, every, only, refusal

EIGHT = tuple("abcdefgh")


def ring(**roster: Any) -> SecureStory:
    """Eight devices on a ring in the order of their ids, four neighbours each, t = 3, lists of at least 5."""
    story = SecureStory(cohort={"goal": 8})
    return story.sharing(*EIGHT, **{**ring_of(EIGHT, 4, 3), "signers": 5, "fewest": 5, **roster})


# How an exchange ends


def test_sharing_ends_when_the_whole_roster_has_shared() -> None:
    story = SecureStory().sharing()
    for device in SIX[:5]:
        story.shared(device)
    assert story.state.phase == "sharing"
    effects = story.shared("f")
    assert only(effects, fx.SendAnswers) == fx.SendAnswers(round=1, attempt=0, phase="masking", devices=SIX)
    assert story.state.deadline == story.at + 20


def test_masking_ends_when_all_who_shared_have_masked_and_the_list_stands() -> None:
    story = SecureStory().masking()
    for device in SIX[:5]:
        story.masked(device)
    assert story.state.phase == "masking"
    effects = story.masked("f")
    assert only(effects, fx.SendAnswers) == fx.SendAnswers(round=1, attempt=0, phase="agreeing", devices=SIX)
    assert only(effects, fx.Release).devices == ("g", "h"), "devices that are not on the list are free"


@pytest.mark.parametrize(("exchange", "following"), [("shared", "masking"), ("masked", "agreeing")])
def test_an_exchange_with_enough_devices_goes_on_once_it_is_quiet(exchange: str, following: str) -> None:
    story = SecureStory(secure={"quiet_s": 3})
    begun = story.sharing() if exchange == "shared" else story.masking()
    began = begun.at
    for device in SIX[:4]:
        getattr(begun, exchange)(device)
    assert begun.state.deadline == began + 20, "four are not enough: five shares rebuild a secret"
    begun.at = began + 12
    getattr(begun, exchange)("e")
    assert begun.state.deadline == began + 15
    assert begun.tick(2.9) == []
    assert begun.tick(0.1) != []
    assert (begun.state.phase, begun.state.current.attempt) == (following, 0)


def test_a_plan_that_does_not_say_it_waits_a_quarter_of_the_exchange() -> None:
    story = SecureStory(secure={"quiet_s": None}).masking()
    for device in SIX[:5]:
        story.masked(device)
    assert story.tick(4.9) == []
    assert story.tick(0.1) != []
    assert (story.state.phase, story.state.current.attempt) == ("agreeing", 0)


def test_a_message_makes_the_wait_longer_but_never_longer_than_the_exchange() -> None:
    story = SecureStory(cohort={"goal": 7}, secure={"quiet_s": 10}).sharing(*EIGHT[:7])
    began = story.at
    for device, after_s, deadline_s in (
        ("a", 1, 20),
        ("b", 1, 20),
        ("c", 1, 20),
        ("d", 1, 20),
        ("e", 4, 14),
        ("f", 12, 20),
    ):
        story.at = began + after_s
        story.shared(device)
        assert story.state.deadline == began + deadline_s


@pytest.mark.parametrize("exchange", ["shared", "masked"])
@pytest.mark.parametrize(
    ("quorum", "threshold", "fewest", "wanted"), [(0.6, 3, 3, 4), (0.6, 5, 3, 5), (0.6, 3, 5, 5), (1.0, 3, 3, 6)]
)
def test_at_the_deadline_quorum_threshold_and_shortest_list_decide(
    exchange: str, quorum: float, threshold: int, fewest: int, wanted: int
) -> None:
    for count in (wanted - 1, wanted):
        story = SecureStory(cohort={"quorum": quorum})
        roster = {"threshold": threshold, "fewest": fewest, "signers": threshold}
        begun = story.sharing(**roster) if exchange == "shared" else story.masking(**roster)
        for device in SIX[:count]:
            getattr(begun, exchange)(device)
        phase = begun.state.phase
        if count < 6:
            assert begun.tick(19.9) == []
            assert begun.state.phase == phase
            begun.tick(0.1)
        after = {"shared": "masking", "masked": "agreeing"}[exchange]
        if count == wanted:
            assert (begun.state.phase, begun.state.current.attempt) == (after, 0)
        else:
            assert (begun.state.phase == "collecting") == (count + 2 >= 4), "as many are left, and g and h"


def test_enough_is_waited_for_as_long_as_the_rest_may_come() -> None:
    story = SecureStory().sharing()
    for device in SIX[:5]:
        story.shared(device)
    story.withdraws("f")
    assert story.state.phase == "masking", "no other device is awaited"
    for device in SIX[:4]:
        story.masked(device)
    assert story.state.phase == "masking"
    story.masked("e")
    assert story.state.phase == "agreeing"


@pytest.mark.parametrize("exchange", ["shared", "masked"])
def test_what_is_out_of_reach_is_not_waited_for(exchange: str) -> None:
    story = SecureStory().sharing() if exchange == "shared" else SecureStory().masking()
    story.withdraws("a")
    assert story.attempt == 0
    effects = story.withdraws("b")
    assert (story.state.phase, story.attempt) == ("collecting", 1)
    assert story.state.current.excluded == {}, "nobody was silent: their time was not up"
    assert only(effects, fx.Claim).devices == ("c", "d", "e", "f", "g", "h")


def test_who_masked_and_then_withdraws_stays_in_the_sum() -> None:
    story = SecureStory().masking()
    story.masked("a")
    story.withdraws("a")
    for device in SIX[1:]:
        story.masked(device)
    assert sorted(story.secure.masked) == list(SIX)
    assert story.state.phase == "agreeing"


def test_who_shared_and_then_withdraws_is_no_sharer() -> None:
    story = SecureStory().sharing()
    story.shared("a")
    story.withdraws("a")
    for device in SIX[1:]:
        story.shared(device)
    assert sorted(story.secure.shared) == list(SIX[1:])
    assert refusal(story.masked("a")) == "withdrawn"


# On a ring


def test_on_a_ring_every_secret_needs_its_own_holders() -> None:
    """Six of eight have masked, one more than it takes; but some device has two of the missing beside it."""
    story = ring()
    for device in EIGHT:
        story.shared(device)
    for device in "abcefg":
        story.masked(device)
    effects = story.tick(20)
    assert (story.state.phase, story.attempt) == ("collecting", 1)
    assert set(story.state.current.excluded) == {"d", "h"}
    found = every(effects, fx.RecordRefusal)[0]
    assert found.reason.endswith("6 of 8 devices masked in attempt 0, too few of them share holders of one device")
    seven = ring()
    for device in EIGHT:
        seven.shared(device)
    for device in "abcefgh":
        seven.masked(device)
    seven.tick(20)
    assert seven.state.phase == "agreeing"


def test_on_a_ring_every_sharer_needs_enough_dealers() -> None:
    story = ring()
    for device in "abefh":
        story.shared(device)
    effects = story.tick(20)
    assert story.attempt == 1
    assert every(effects, fx.RecordRound)[-1].body["excluded"].keys() == {"c", "d", "g"}  # type: ignore[attr-defined]


# Said again, said otherwise, said too late


@pytest.mark.parametrize("exchange", ["shared", "masked"])
def test_the_first_message_of_an_exchange_counts(exchange: str) -> None:
    story = SecureStory().sharing() if exchange == "shared" else SecureStory().masking()
    say = getattr(story, exchange)
    first = say("a")
    before = story.state
    assert say("a") == first
    again = say("a", digest=digest_of("another"))
    assert refusal(again) == "duplicate"
    assert not every(again, fx.RecordRefusal)
    assert story.state is before


def test_the_same_message_is_accepted_again_in_later_exchanges() -> None:
    story = SecureStory().unmasking()
    before = story.state
    for say in (story.advertised, story.shared, story.masked, story.signed):
        assert only(say("a"), fx.Accepted).device == "a"
    assert story.state is before


def test_what_comes_after_its_exchange_is_late_and_changes_nothing() -> None:
    story = SecureStory().masking()
    for device in SIX[:5]:
        story.masked(device)
    story.tick(20)
    before = story.state
    late = story.masked("f")
    assert refusal(late) == "late"
    assert not every(late, fx.RecordRefusal), "the runtime records it once, however often it is sent"
    assert refusal(story.advertised("g")) == "late"
    assert refusal(story.complained("f", "a")) == "late"
    assert refusal(story.faulted("f")) == "late"
    assert story.state is before


def test_what_comes_before_its_exchange_is_stale() -> None:
    story = SecureStory().sharing()
    before = story.state
    for early in (story.masked("a"), story.signed("a"), story.revealed("a"), story.complained("a", "b")):
        assert refusal(early) == "stale"
    assert refusal(story.opened()) == "stale"
    assert refusal(story.opening_failed("a")) == "stale"
    assert story.state is before


def test_only_sharers_mask_and_only_survivors_sign() -> None:
    story = SecureStory().sharing()
    for device in SIX[:5]:
        story.shared(device)
    story.tick(20)
    assert refusal(story.masked("f")) == "not-selected"
    for device in SIX[:5]:
        story.masked(device)
    assert refusal(story.signed("f")) == "not-selected"


# Complaints


def test_a_device_that_complains_is_not_waited_for() -> None:
    story = SecureStory().masking()
    story.complained("f", "a")
    for device in SIX[:5]:
        story.masked(device)
    assert story.state.phase == "agreeing"
    assert sorted(story.secure.masked) == list(SIX[:5])


def test_a_dealer_that_several_complain_of_is_left_out_and_they_are_not() -> None:
    story = SecureStory().masking()
    story.complained("b", "a")
    story.complained("c", "a")
    assert (story.state.phase, story.attempt) == ("collecting", 1), "two who cannot mask are one too many"
    assert story.state.current.excluded == {"a": "2 could not open its shares"}
    story.announced()
    for device in ("b", "c", "d", "e", "f", "g"):
        story.advertised(device)
    story.rostered()
    assert story.secure.order == ("b", "c", "d", "e", "f", "g")


def test_one_word_against_another_leaves_out_both() -> None:
    story = SecureStory().masking()
    story.complained("b", "a")
    story.complained("d", "c")
    assert set(story.state.current.excluded) == {"a", "b", "c", "d"}
    assert story.state.phase == "collecting"


def test_a_device_that_complains_of_many_is_left_out_alone() -> None:
    story = SecureStory().masking()
    story.complained("b", "a", "c", "d", "e", "f")
    assert story.attempt == 0
    story.withdraws("a")
    assert story.state.current.excluded.keys() == {"b"}


def test_the_first_complaint_of_a_device_stands() -> None:
    story = SecureStory().masking()
    assert story.complained("b", "a") == []
    before = story.state
    assert story.complained("b", "a", "a") == []
    assert refusal(story.complained("b", "c")) == "duplicate"
    assert refusal(story.masked("b")) == "conflict"
    assert story.state is before


def test_a_complaint_that_makes_no_sense_is_refused() -> None:
    story = SecureStory().sharing()
    for device in SIX[:5]:
        story.shared(device)
    story.tick(20)
    story.masked("a")
    before = story.state
    assert refusal(story.complained("a", "b")) == "conflict"
    for device, dealers in (("b", ()), ("b", ("b",)), ("b", ("f",)), ("b", ("a", "z")), ("f", ("a",))):
        assert refusal(story.complained(device, *dealers)) == "invalid-request"
    assert refusal(story.complained("z", "a")) == "not-selected"
    assert story.state is before


# Faults


def test_a_faulty_device_is_out_of_the_round_and_its_claim_is_free() -> None:
    story = SecureStory().sharing()
    effects = story.faulted("a")
    assert fx.Release(round=1, devices=("a",)) in effects
    assert story.state.current.excluded == {"a": "its message is too short"}
    assert story.faulted("a") == []
    assert refusal(story.shared("a")) == "not-selected"
    for device in SIX[1:]:
        story.shared(device)
    assert (story.state.phase, story.attempt) == ("masking", 0), "the others go on without it"


def test_a_fault_seen_after_the_message_takes_the_message_back() -> None:
    story = SecureStory().masking()
    for device in SIX[:5]:
        story.masked(device)
    effects = story.faulted("a")
    assert only(effects, fx.RecordRefusal).digest == digest_of("Masked", "a", 1, 0)
    assert "a" not in story.secure.masked
    story.masked("f")
    assert story.state.phase == "agreeing"
    assert sorted(story.secure.masked) == ["b", "c", "d", "e", "f"]
    assert digest_of("Masked", "a", 1, 0) in story.secure.blobs


def test_two_faults_too_many_key_the_round_anew_without_them() -> None:
    story = SecureStory().masking()
    story.faulted("a")
    effects = story.faulted("b")
    assert story.attempt == 1
    assert only(effects, fx.Claim).devices == ("c", "d", "e", "f", "g", "h")


def test_a_fault_while_advertising_drops_the_advertisement() -> None:
    story = SecureStory().cohort()
    story.advertised("a")
    story.faulted("a")
    for device in SIX[1:]:
        story.advertised(device)
    assert story.state.phase == "collecting"
    story.advertised("g")
    assert story.state.phase == "sharing"


# The clock


@pytest.mark.parametrize("chapter", ["cohort", "gathering", "sharing", "masking", "agreeing", "unmasking"])
def test_a_clock_that_falls_back_takes_the_deadline_along(chapter: str) -> None:
    story: SecureStory = getattr(SecureStory(), chapter)()
    deadline = story.state.deadline
    assert deadline is not None
    story.at -= 50
    story.happens(clock_fell(story, 50))
    assert story.state.deadline == deadline - 50
    phase = story.state.phase
    story.tick(deadline - 50 - story.at - 0.5)
    assert story.state.phase == phase
    story.tick(0.5)
    assert story.state.phase != phase


def clock_fell(story: SecureStory, by_s: float) -> Any:
    from coordinator.engine import events as ev

    return ev.ClockFell(at=story.at, by_s=by_s)
