"""From the draw to the roster, and from a failed attempt to the next one: who is waited for, and who is left out."""

from __future__ import annotations

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from tests.coordinator.engine.secure_story import POOL, SIX, SecureStory
from tests.coordinator.engine.story import Story, digest_of, ended, every, only, refusal

# The draw


def test_a_cohort_is_announced_a_header_and_begins_to_train() -> None:
    story = SecureStory().cohort()
    assert (story.state.current.kind, story.state.phase, story.attempt) == ("secure", "collecting", 0)
    assert story.secure.header
    assert [type(effect) for effect in story.effects[-6:]] == [
        fx.Draw, fx.Claim, fx.RecordRound, fx.Wake, fx.Announce, fx.SendAnswers,
    ]  # fmt: skip


@pytest.mark.parametrize(("quorum", "minimum", "wanted"), [(0.6, 3, 4), (0.6, 5, 5), (1.0, 3, 6)])
def test_a_cohort_is_at_least_the_quorum_and_the_smallest_cohort(quorum: float, minimum: int, wanted: int) -> None:
    for count in (wanted - 1, wanted):
        story = SecureStory(cohort={"quorum": quorum}, secure={"minimum_cohort": minimum})
        story.created()
        effects = story.drawn_from(*POOL[:count])
        assert story.state.phase == ("collecting" if count == wanted else "selecting")
    short = SecureStory(cohort={"quorum": quorum}, secure={"minimum_cohort": minimum})
    short.created()
    effects = short.drawn_from(*POOL[: wanted - 1])
    reason = f"{wanted - 1} eligible devices waited; a secure round needs at least {wanted}"
    row = only(effects, fx.RecordRound)
    assert (row.status, row.reason, row.body["missed"]) == ("open", reason, 1)


def test_spent_and_barred_devices_are_removed_from_a_drawn_cohort() -> None:
    story = SecureStory().unmasking()
    story.revealed("a")
    story.tick(20)
    assert story.state.spent == SIX
    story.drawn_from(*POOL, "i", "j", "k")
    assert sorted(story.state.current.members) == ["g", "h", "i", "j", "k"]


# The header


def test_the_first_header_of_an_attempt_stands() -> None:
    story = SecureStory().cohort()
    before = story.state
    assert story.announced() == []
    assert refusal(story.announced(header="ff")) == "conflict"
    assert refusal(story.announced(attempt=1)) == "stale"
    assert story.state is before


def test_before_the_header_nobody_advertises() -> None:
    story = SecureStory()
    story.created()
    story.drawn_from(*POOL)
    assert refusal(story.advertised("a")) == "stale"
    story.announced()
    assert only(story.advertised("a"), fx.Accepted).weight == 0


def test_no_phase_lasts_longer_than_the_attempt_lives() -> None:
    story = SecureStory()
    story.created()
    story.drawn_from(*POOL)
    story.announced(expires_at=130)
    assert story.state.deadline == 130
    story.gathering()
    story.rostered()
    assert story.state.deadline == 120
    story.at = 115
    for device in SIX:
        story.shared(device)
    assert (story.state.phase, story.state.deadline) == ("masking", 130)


# Advertising


def test_the_roster_closes_at_goal_and_reserve() -> None:
    story = SecureStory(secure={"reserve": 1}).cohort()
    for device in SIX:
        story.advertised(device)
    assert story.state.phase == "collecting"
    gather = only(story.advertised("h"), fx.Gather)
    assert story.state.phase == "sharing"
    assert [device for device, _ in gather.advertised] == [*SIX, "h"]
    assert gather.advertised[0][1] == digest_of("Advertised", "a", 1, 0)


def test_it_closes_when_nobody_is_left_to_hear_of() -> None:
    story = SecureStory().cohort(*POOL[:5])
    for device in POOL[:4]:
        story.advertised(device)
    assert story.state.phase == "collecting"
    story.withdraws("e")
    assert story.state.phase == "sharing"


@pytest.mark.parametrize("count", [3, 4])
def test_at_the_deadline_the_quorum_decides(count: int) -> None:
    story = SecureStory().cohort()
    for device in POOL[:count]:
        story.advertised(device)
    assert story.tick(59) == []
    effects = story.tick(1)
    if count == 4:
        assert len(only(effects, fx.Gather).advertised) == 4
    else:
        reason = "3 of 8 devices advertised keys by the deadline; a secure round takes 4"
        assert ended(effects) == ("abandoned", reason)
        assert every(effects, fx.RecordRefusal) == [], "an advertisement is no update"


def test_it_gives_up_as_soon_as_the_quorum_is_out_of_reach() -> None:
    story = SecureStory().cohort(*POOL[:5])
    story.withdraws("a")
    effects = story.withdraws("b")
    assert ended(effects) == ("abandoned", "3 of 5 devices are left, and a secure round takes 4")


def test_the_same_advertisement_again_is_accepted_again_and_another_is_a_conflict() -> None:
    story = SecureStory().cohort()
    first = story.advertised("a")
    before = story.state
    assert story.advertised("a") == first
    assert refusal(story.advertised("a", digest=digest_of("another"))) == "duplicate"
    assert story.state is before


def test_who_withdraws_takes_its_keys_along() -> None:
    story = SecureStory().cohort()
    story.advertised("a")
    effects = story.withdraws("a")
    assert "a" not in story.secure.advertised
    assert fx.Release(round=1, devices=("a",)) in effects
    assert refusal(story.advertised("a")) == "withdrawn"
    assert story.withdraws("a") == []
    assert digest_of("Advertised", "a", 1, 0) in story.secure.blobs, "its blob goes with the round"


def test_an_update_in_the_clear_is_refused_and_named_nowhere() -> None:
    story = SecureStory().cohort()
    effects = story.reported("a")
    assert refusal(effects) == "invalid-update"
    assert "secure" in only(effects, fx.Refused).reason
    assert every(effects, fx.RecordRefusal) == []
    assert refusal(story.reported("z")) == "not-selected"
    assert refusal(story.reported("a", round=2)) == "stale"


def test_advertising_begins_no_plain_round() -> None:
    story = Story().collecting()
    message = ev.Advertised(at=100, round=1, attempt=0, device="a", digest=digest_of("keys"), bytes=1)
    assert refusal(story.happens(message)) == "stale"


# The roster


def test_the_roster_is_of_all_who_advertised_and_of_nobody_else() -> None:
    story = SecureStory().gathering()
    before = story.state
    for order in (SIX[:5], (*SIX, "g"), tuple(reversed(SIX))):
        assert refusal(story.rostered(order=order)) == "stale"
    assert story.state is before
    effects = story.rostered()
    assert only(effects, fx.SendAnswers) == fx.SendAnswers(round=1, attempt=0, phase="sharing", devices=SIX)
    assert story.rostered() == []
    assert refusal(story.rostered(digest=digest_of("another"))) == "conflict"
    assert tuple(story.secure.group_of) == SIX


def test_before_the_roster_nobody_shares() -> None:
    story = SecureStory().gathering()
    assert refusal(story.shared("a")) == "stale"
    story.rostered()
    assert refusal(story.shared("g")) == "not-selected"
    assert only(story.shared("a"), fx.Accepted)


def test_who_would_spoil_the_roster_is_left_out_before_anybody_saw_it() -> None:
    story = SecureStory().gathering()
    effects = story.faulted("c", reason="its certificate was revoked")
    assert [device for device, _ in only(effects, fx.Gather).advertised] == ["a", "b", "d", "e", "f"]
    assert story.attempt == 0, "nobody has seen a roster: the keys are as good as new"
    assert refusal(story.rostered(order=SIX)) == "stale"
    story.rostered()
    assert tuple(story.secure.group_of) == ("a", "b", "d", "e", "f")
    assert refusal(story.advertised("c")) == "not-selected"


def test_where_too_few_are_left_for_a_roster_latecomers_may_join_the_next_attempt() -> None:
    story = SecureStory().cohort()
    for device in POOL[:4]:
        story.advertised(device)
    story.tick(60)
    effects = story.faulted("a")
    assert (story.state.phase, story.attempt) == ("collecting", 1)
    assert only(effects, fx.Claim).devices == POOL[1:]
    assert only(effects, fx.Announce) == fx.Announce(round=1, attempt=1)


def test_a_roster_that_is_never_made_ends_with_the_attempt() -> None:
    story = SecureStory().gathering()
    assert story.state.deadline == 1100
    story.tick(1000)
    assert (story.state.phase, story.attempt) == ("collecting", 1)
    assert story.state.current.excluded == {}


# A fresh attempt


def failed_in_sharing() -> SecureStory:
    """e and f are silent; t = 5 is out of reach."""
    story = SecureStory().sharing()
    for device in ("a", "b", "c", "d"):
        story.shared(device)
    story.tick(20)
    return story


def test_the_silent_are_left_out_and_who_came_too_late_may_join() -> None:
    story = failed_in_sharing()
    assert (story.state.phase, story.attempt) == ("collecting", 1)
    assert set(story.state.current.excluded) == {"e", "f"}
    assert "did not answer in the sharing of attempt 0" in story.state.current.excluded["e"]
    story.announced()
    assert story.state.deadline == story.at + 20
    for device in ("a", "b", "c", "d", "g"):
        story.advertised(device)
    assert story.state.phase == "collecting", "h may still come"
    story.advertised("h")
    story.rostered()
    assert tuple(story.secure.group_of) == ("a", "b", "c", "d", "g", "h")
    assert refusal(story.shared("e")) == "not-selected"


def test_messages_of_an_older_attempt_are_stale() -> None:
    story = failed_in_sharing()
    story.announced()
    before = story.state
    for stale in (
        story.advertised("a", attempt=0),
        story.shared("a", attempt=0),
        story.masked("a", attempt=0),
        story.complained("a", "b", attempt=0),
        story.faulted("a", attempt=0),
        story.signed("a", attempt=0),
        story.revealed("a", attempt=0),
        story.rostered(attempt=0),
        story.opened(attempt=0),
        story.opening_failed("a", attempt=0),
    ):
        assert refusal(stale) == "stale"
    assert story.state is before


def test_a_fresh_attempt_begins_with_nothing_of_the_last_but_blobs_to_delete() -> None:
    story = failed_in_sharing()
    secure = story.secure
    assert (secure.header, secure.roster, secure.groups, secure.advertised, secure.shared) == ("", "", (), {}, {})
    assert len(secure.older) == 6 + 4 + 1
    assert {member.status for member in story.state.current.members.values()} <= {"selected", "training"}


def test_a_round_is_keyed_so_often_and_no_more() -> None:
    story = SecureStory(secure={"attempts": 2}, cohort={"select": 12, "pool": 12})
    story.created()
    story.drawn_from(*"abcdefghijkl")
    for attempt in (0, 1):
        story.announced()
        for device in sorted(set("abcdefghijkl") - story.state.current.excluded.keys())[:6]:
            story.advertised(device)
        story.rostered()
        for device in tuple(story.secure.group_of)[:4]:
            story.shared(device)
        effects = story.tick(20)
        assert story.attempt == 1 - attempt, "the second failure ends the round"
    reason = "4 of 6 devices shared in attempt 1; it takes 5; the plan allows no more attempts (secure.attempts = 2)"
    assert ended(effects) == ("abandoned", reason)
    assert story.state.round_number == 2
    assert story.state.current.excluded == {}, "the next round begins without grudges"


def test_where_too_few_are_left_no_fresh_attempt_is_made() -> None:
    story = SecureStory().cohort(*SIX)
    story.gathering()
    story.rostered()
    for device in ("a", "b", "c"):
        story.shared(device)
    effects = story.tick(20)
    reason = "3 of 6 devices shared in attempt 0; it takes 5; 3 devices are left, and a new attempt takes 4"
    assert ended(effects) == ("abandoned", reason)


def test_too_few_advertising_again_end_the_round_at_the_deadline() -> None:
    story = failed_in_sharing()
    story.announced()
    for device in ("a", "b", "c"):
        story.advertised(device)
    reason = "3 of 8 devices advertised keys by the deadline; a secure round takes 4"
    assert ended(story.tick(20)) == ("abandoned", reason)


def test_a_masked_vector_that_was_acknowledged_has_its_reason_recorded_when_its_attempt_fails() -> None:
    story = SecureStory().masking()
    story.masked("a")
    story.masked("b")
    effects = story.tick(20)
    recorded = every(effects, fx.RecordRefusal)
    assert [(item.device, item.digest, item.kind) for item in recorded] == [
        (device, digest_of("Masked", device, 1, 0), "abandoned") for device in ("a", "b")
    ]
    assert "attempt 0 of the round was given up: 2 of 6 devices masked" in recorded[0].reason


def test_discard_names_every_blob_of_every_attempt() -> None:
    story = failed_in_sharing()
    story.announced()
    story.advertised("a")
    effects = story.stopped()
    discard = only(effects, fx.Discard)
    assert len(discard.blobs) == len(set(discard.blobs)) == 6 + 1 + 4 + 1
    assert rounds.pending(story.state) == [discard]
    assert story.discarded(2) == []
    story.discarded(1)
    assert story.state.leftovers == {}
    assert fx.Discard(round=1) in rounds.pending(story.state)


def test_a_device_too_late_for_the_roster_is_told_so_and_may_come_into_the_next_attempts() -> None:
    story = SecureStory().sharing()
    late = story.advertised("g")
    assert only(late, fx.Refused) == fx.Refused(
        kind="late", reason="the roster of attempt 0 of round 1 was closed without this device"
    )
    for device in "abcd":
        story.shared(device)
    story.tick(20)
    assert story.attempt == 1
    story.announced()
    assert only(story.advertised("g"), fx.Accepted)
