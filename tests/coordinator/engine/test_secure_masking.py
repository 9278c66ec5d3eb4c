"""Sharing and masking: when each exchange ends, at the very counts, and what complaints and faults do."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.engine import effects as fx
from coordinator.engine.secure.disputes import DISPUTE_ROUNDS, MOST_DISPUTES, still_in_dispute, with_disputes
from coordinator.engine.secure.holders import lacking
from tests.coordinator.engine.secure_story import SIX, SecureStory, ring_of
from tests.coordinator.engine.story import digest_of, every, only, refusal

SEVEN = tuple("abcdefg")
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


def test_a_device_that_complains_is_waited_for_until_its_dealer_has_answered_and_it_has_masked() -> None:
    story = SecureStory().masking()
    asked = only(story.complained("f", "a"), fx.SendAnswers)
    assert asked.devices == ("a",)
    for device in SIX[:5]:
        story.masked(device)
    assert story.state.phase == "masking", "all others have masked, and the list is not fixed"
    assert refusal(story.masked("f")) == "conflict"
    assert only(story.pairs_opened("a", "f"), fx.SendAnswers).devices == ("f",)
    assert story.secure.lacks == {}
    story.masked("f")
    assert (story.state.phase, story.attempt) == ("agreeing", 0)
    assert sorted(story.secure.masked) == list(SIX)
    assert story.state.current.excluded == {}


def test_a_list_is_not_shown_while_a_dealer_that_has_masked_owes_an_answer() -> None:
    """Also where the device that complained is gone."""
    story = SecureStory().masking()
    story.complained("f", "a")
    story.withdraws("f")
    for device in SIX[:5]:
        story.masked(device)
    assert story.state.phase == "masking"
    story.pairs_opened("a", "f")
    assert story.state.phase == "agreeing"
    assert sorted(story.secure.masked) == list(SIX[:5])


def test_a_dealer_without_an_answer_is_out_with_its_vector_and_the_device_masks_without_its_pair() -> None:
    story = SecureStory(secure={"quiet_s": 8}, cohort={"goal": 7}).masking(*SEVEN)
    story.complained("f", "a")
    for device in "abcdeg":
        story.masked(device)
    vector = story.secure.masked["a"]
    effects = story.tick(8)
    assert story.state.phase == "masking", "the device has time to mask"
    assert only(effects, fx.SendAnswers).devices == ("f",)
    assert only(effects, fx.RecordRefusal).digest == vector
    assert fx.Release(round=1, devices=("a",)) in effects
    assert story.state.current.excluded == {"a": "it did not open the shares that f could not open"}
    assert refusal(story.pairs_opened("a", "f")) == "not-selected"
    assert vector in story.secure.blobs
    assert story.secure.lacks == {"f": ("a",)}
    story.masked("f")
    assert (story.state.phase, story.attempt) == ("agreeing", 0)
    assert sorted(story.secure.masked) == list("bcdefg")


def test_where_too_few_hold_the_pair_of_a_dealer_that_is_out_a_fresh_attempt_goes_without_it() -> None:
    """Five of six would be enough, and only four of them hold what rebuilds its mask key."""
    story = SecureStory(secure={"quiet_s": 8}).masking()
    story.complained("f", "a")
    for device in SIX[1:5]:
        story.masked(device)
    story.tick(20)
    assert story.secure.lacks == {"f": ("a",)}
    story.masked("f")
    assert (story.state.phase, story.attempt) == ("collecting", 1)
    assert set(story.state.current.excluded) == {"a"}


def test_a_holder_that_lacks_a_pair_is_not_counted_around_a_ring_either() -> None:
    order = tuple("abcdefgh")
    story = SecureStory(secure={"quiet_s": 8}, cohort={"goal": 8, "quorum": 0.5}).masking(
        *order, **{**ring_of(order, 4, 3), "signers": 5, "fewest": 3}
    )
    story.complained("b", "a")
    for device in "efg":
        story.masked(device)
    story.tick(20)
    present = {"b", "c", "h"}
    assert "a" in lacking(story.secure, present, order)
    assert "a" not in lacking(story.secure, present | {"g"}, order)


def test_who_complains_late_gives_its_dealer_time_to_answer() -> None:
    story = SecureStory(secure={"quiet_s": 8}).masking()
    for device in SIX[:5]:
        story.masked(device)
    assert story.state.deadline == story.at + 8
    story.at += 7
    story.complained("f", "a")
    assert story.state.deadline == story.at + 8
    story.at += 5
    story.pairs_opened("a", "f")
    assert story.state.deadline == story.at + 8, "then the device has time to mask"
    story.tick(8)
    assert story.state.phase == "agreeing", "and is not waited for any longer"


def test_no_complaint_is_taken_after_the_time_of_the_exchange() -> None:
    """So each device delays the round once, and they cannot do so in a row."""
    story = SecureStory(secure={"quiet_s": 15}).masking()
    story.at += 19
    story.complained("f", "a")
    story.at += 2
    before = story.state
    assert refusal(story.complained("e", "a")) == "late"
    assert story.state is before


def test_a_dealer_that_withdraws_owes_no_answer_and_is_out_at_once() -> None:
    story = SecureStory(cohort={"goal": 7}).masking(*SEVEN)
    story.masked("a")
    story.withdraws("a")
    assert only(story.complained("f", "a"), fx.SendAnswers).devices == ("f",)
    assert set(story.state.current.excluded) == {"a"}
    assert "a" not in story.secure.masked
    for device in SEVEN[1:]:
        story.masked(device)
    assert story.state.phase == "agreeing"


def test_a_dealer_that_opens_other_shares_is_at_fault_and_the_device_masks() -> None:
    story = SecureStory(cohort={"goal": 7}).masking(*SEVEN)
    story.complained("f", "a")
    for device in "abcdeg":
        story.masked(device)
    assert only(story.faulted("a"), fx.SendAnswers).devices == ("f",)
    story.masked("f")
    assert sorted(story.secure.masked) == list("bcdefg")


def test_a_dealer_answers_as_often_as_it_is_asked_and_each_pair_once() -> None:
    story = SecureStory().masking()
    story.complained("f", "a", "b")
    story.pairs_opened("a", "f")
    story.complained("e", "a")
    story.pairs_opened("a", "e", "f")
    assert story.secure.opened["a"]["f"] == digest_of("PairsOpened", "a", 1, 0, ("f",)), "the first one stands"
    before = story.state
    for holders in (("e",), ("f",), ("e", "f")):
        assert only(story.pairs_opened("a", *holders), fx.Accepted).device == "a"
    assert refusal(story.pairs_opened("a", "d")) == "invalid-request"
    assert refusal(story.pairs_opened("c", "f")) == "invalid-request"
    assert story.state is before
    assert set(story.secure.opened["a"].values()) <= set(story.secure.blobs)


def test_in_a_fresh_attempt_nobody_goes_for_one_complaint_that_was_settled() -> None:
    story = SecureStory().masking()
    story.complained("b", "a")
    story.pairs_opened("a", "b")
    story.withdraws("e")
    story.withdraws("f")
    assert (story.state.phase, story.attempt) == ("collecting", 1)
    assert story.state.current.excluded == {}


def test_who_is_in_dispute_with_several_goes_before_them() -> None:
    """In one attempt, or over rounds."""
    story = SecureStory().masking()
    story.complained("b", "a", "c")
    story.withdraws("e")
    story.withdraws("f")
    assert set(story.state.current.excluded) == {"b"}
    story = SecureStory().masking()
    story.complained("b", "a")
    story.pairs_opened("a", "b")
    for device in SIX:
        story.masked(device)
    story.tick(20)
    assert story.state.disputes == {"b": {"a": 1}}
    story.masking(*SIX[:4], "g", "h")
    story.complained("c", "a")
    story.pairs_opened("a", "c")
    story.withdraws("g")
    story.withdraws("h")
    assert story.attempt == 1
    assert set(story.state.current.excluded) == {"a"}


def test_disputes_fade() -> None:
    disputes = with_disputes({}, 3, "b", ("a",))
    disputes = with_disputes(disputes, 5, "b", ("c",))
    assert still_in_dispute(disputes, 3 + DISPUTE_ROUNDS - 1) == disputes
    assert still_in_dispute(disputes, 3 + DISPUTE_ROUNDS) == {"b": {"c": 5}}
    assert still_in_dispute(disputes, 5 + DISPUTE_ROUNDS) == {}
    many = with_disputes(disputes, 6, "b", tuple(f"d{number}" for number in range(MOST_DISPUTES)))
    assert many == {"b": {f"d{number}": 6 for number in range(MOST_DISPUTES)}}


def test_the_first_complaint_of_a_device_stands() -> None:
    story = SecureStory().masking()
    story.complained("b", "a")
    before = story.state
    assert only(story.complained("b", "a"), fx.Accepted).device == "b"
    assert refusal(story.complained("b", "c", digest=digest_of("another"))) == "duplicate"
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
