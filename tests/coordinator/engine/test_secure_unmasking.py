"""Agreeing and unmasking: who is spent, when the sum is opened, what is tried again and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import rounds
from coordinator.engine.secure.state import Barred
from tests.coordinator.engine.secure_story import SIX, SecureStory, ring_of
from tests.coordinator.engine.story import START, digest_of, ended, every, only, refusal

EIGHT = tuple("abcdefgh")


def ring(chapter: str, **roster: Any) -> SecureStory:
    """Eight devices on a ring in the order of their ids, four neighbours each, t = 3, lists of 5, 5 signers."""
    story = SecureStory(cohort={"goal": 8})
    begun = getattr(story, chapter)(*EIGHT, **{**ring_of(EIGHT, 4, 3), "signers": 5, "fewest": 5, **roster})
    assert isinstance(begun, SecureStory)
    return begun


# Signing


def test_who_signs_is_spent_at_once() -> None:
    story = SecureStory().agreeing()
    story.signed("c")
    story.signed("a")
    assert story.state.spent == ("a", "c")


def test_agreeing_ends_when_as_many_signed_as_must_be_shown() -> None:
    story = SecureStory().agreeing()
    for device in SIX[:4]:
        story.signed(device)
    assert story.state.phase == "agreeing"
    effects = story.signed("e")
    assert only(effects, fx.SendAnswers) == fx.SendAnswers(round=1, attempt=0, phase="unmasking", devices=SIX[:5])
    late = story.signed("f")
    assert only(late, fx.SendAnswers).devices == ("f",), "who signs late is shown the proof too"
    assert story.state.spent == SIX


def test_on_a_ring_it_ends_when_every_survivor_has_enough_signers_near() -> None:
    story = ring("agreeing")
    for device in "abcde":
        story.signed(device)
    assert story.state.phase == "agreeing", "g and h have two signers among their neighbours"
    story.signed("g")
    assert story.state.phase == "agreeing", "e and f still have"
    story.signed("f")
    assert story.state.phase == "unmasking"


def test_at_the_deadline_it_goes_on_if_those_who_can_be_shown_enough_can_rebuild_every_secret() -> None:
    story = ring("agreeing")
    for device in "abcdeg":
        story.signed(device)
    story.tick(20)
    assert story.state.phase == "selecting", "e and f have two signers near: nobody rebuilds what they hold of"
    assert story.state.spent == tuple("abcdeg")
    whole = SecureStory().agreeing()
    for device in SIX[:4]:
        whole.signed(device)
    effects = whole.tick(20)
    assert ended(effects) == ("abandoned", "4 of 6 survivors signed the list, and it takes 5")
    assert whole.state.spent == SIX[:4]


def test_on_a_ring_as_many_sign_as_devices_ask_for_of_the_whole_roster() -> None:
    """Each device has enough signers near it, and reveals nothing before more of the whole roster have signed."""
    story = ring("agreeing", signers=8)
    for device in "abcdefg":
        story.signed(device)
    assert story.state.phase == "agreeing"
    assert ended(story.tick(20)) == ("abandoned", "7 of 8 survivors signed the list, and it takes 8")


def test_it_is_given_up_as_soon_as_too_few_can_still_sign() -> None:
    story = SecureStory().agreeing()
    story.withdraws("a")
    assert story.state.phase == "agreeing"
    effects = story.withdraws("b")
    assert ended(effects)[0] == "abandoned"
    assert (story.state.round_number, story.state.spent) == (2, ())


def test_a_sent_signature_binds_a_device_that_withdrew_before() -> None:
    story = SecureStory().agreeing()
    story.withdraws("a")
    story.signed("a")
    assert story.state.spent == ("a",)


@pytest.mark.parametrize("chapter", ["agreeing", "unmasking", "opening", "summed"])
def test_from_the_list_on_nothing_is_keyed_anew(chapter: str) -> None:
    """Time, withdrawals and failures end the round; they never raise the attempt."""
    for ending in ("tick", "withdraw", "fail"):
        story: SecureStory = getattr(SecureStory(), chapter)()
        for _ in range(3):
            if ending == "tick":
                story.tick(2000)
            if ending == "withdraw":
                for device in SIX:
                    story.withdraws(device)
            if ending == "fail" and story.state.phase == "unmasking":
                story.opening_failed("a")
            if ending == "fail" and story.state.phase == "committing":
                story.commit_failed()
            assert story.attempt == 0
        assert story.state.phase in ("selecting", "agreeing", "unmasking", "committing")


def test_the_list_is_what_was_masked_when_agreeing_began() -> None:
    story = SecureStory().masking()
    for device in SIX[:5]:
        story.masked(device)
    story.tick(20)
    listed = dict(story.secure.masked)
    assert refusal(story.masked("f")) == "late"
    for device in SIX[:5]:
        story.signed(device)
    for device in SIX[:5]:
        story.revealed(device)
    story.opened()
    assert story.secure.masked == listed
    assert [item.device for item in only(rounds.pending(story.state), fx.CommitSum).contributions] == list(SIX[:5])


# Revealing and opening


def test_the_sum_is_opened_as_soon_as_every_secret_has_its_shares() -> None:
    story = SecureStory().unmasking()
    for device in SIX[:4]:
        assert every(story.revealed(device), fx.Open) == []
    effects = story.revealed("e")
    assert only(effects, fx.Open) == fx.Open(round=1, attempt=0)
    assert fx.Release(round=1, devices=("e",)) in effects
    assert story.secure.opening is True
    assert every(story.revealed("f"), fx.Open) == [], "one opening at a time"


def test_on_a_ring_every_sharers_secret_is_counted_by_itself() -> None:
    story = ring("unmasking")
    for device in "abcde":
        assert every(story.revealed(device), fx.Open) == []
    assert every(story.revealed("g"), fx.Open) == []
    assert only(story.revealed("f"), fx.Open)


def test_only_who_signed_reveals() -> None:
    story = SecureStory().agreeing()
    for device in SIX[:5]:
        story.signed(device)
    assert refusal(story.revealed("f")) == "conflict"
    story.signed("f")
    assert only(story.revealed("f"), fx.Accepted)


def test_too_few_shares_by_the_deadline_end_the_round() -> None:
    story = SecureStory().unmasking()
    for device in SIX[:4]:
        story.revealed(device)
    effects = story.tick(20)
    reason = "4 of 6 survivors revealed their shares: 6 secrets lack shares"
    assert ended(effects) == ("abandoned", reason)
    recorded = every(effects, fx.RecordRefusal)
    assert [item.device for item in recorded] == list(SIX), "each masked vector was acknowledged, and has its reason"
    assert story.state.spent == SIX


def test_it_ends_at_once_when_nobody_is_left_who_could_reveal() -> None:
    story = SecureStory().unmasking()
    for device in SIX[:4]:
        story.revealed(device)
    story.withdraws("e")
    assert story.state.phase == "unmasking"
    assert ended(story.withdraws("f"))[0] == "abandoned"


def test_an_opening_under_way_is_waited_for_beyond_the_deadline() -> None:
    story = SecureStory().opening()
    assert story.tick(20) == []
    assert (story.state.phase, story.state.deadline) == ("unmasking", None)
    before = story.state
    assert story.tick(5000) == []
    assert story.state is before
    story.opened()
    assert story.state.phase == "committing"


def test_the_sum_and_nothing_else_goes_into_the_commit() -> None:
    story = SecureStory().opening()
    effects = story.opened()
    commit = only(effects, fx.CommitSum)
    assert (commit.round, commit.parent) == (1, START)
    assert commit.sums == {0: digest_of("sum", 1)}
    assert [(item.device, item.digest, item.weight) for item in commit.contributions] == [
        (device, digest_of("Masked", device, 1, 0), 0) for device in SIX
    ]
    assert only(effects, fx.Release).devices is None
    row = only(effects, fx.RecordRound)
    assert row.body["weight"] == 50
    assert row.body["secure"]["opened"] is True  # type: ignore[index]
    assert story.opened() == []
    assert refusal(story.opened(digest=digest_of("another"))) == "late"


def test_a_commit_forgets_who_was_spent_and_names_whose_vectors_count() -> None:
    story = SecureStory().summed()
    assert story.state.spent == SIX
    effects = story.committed()
    row = only(effects, fx.RecordCheckpoint)
    assert [item.device for item in row.contributions] == list(SIX)
    assert (story.state.version, story.state.spent, story.state.secure) == (1, (), None)
    discard = only(effects, fx.Discard)
    assert len(discard.blobs) == 6 * 4 + 5 + 2
    assert digest_of("sum", 1) in discard.blobs


def test_a_signature_after_the_sum_is_taken_and_spends_nobody_on_the_next_model() -> None:
    story = SecureStory().agreeing()
    for device in SIX[:5]:
        story.signed(device)
    for device in SIX[:5]:
        story.revealed(device)
    story.opened()
    assert only(story.signed("f"), fx.Accepted)
    assert story.state.spent == SIX
    assert refusal(story.revealed("f")) == "late"
    story.committed()
    assert story.state.spent == ()


def test_a_sum_that_becomes_no_checkpoint_leaves_its_signers_spent() -> None:
    story = SecureStory().summed()
    effects = story.commit_failed("the next checkpoint would not be finite")
    assert ended(effects) == ("abandoned", "the next checkpoint would not be finite")
    assert (story.state.version, story.state.spent) == (0, SIX)
    assert digest_of("sum", 1) in only(effects, fx.Discard).blobs


# When the sum cannot be opened


def test_an_impossible_sum_is_not_tried_again() -> None:
    story = SecureStory().opening()
    effects = story.opening_failed(reason="the canary lane sums to 5, not to the 6 survivors")
    reason = "the sum cannot be used: the canary lane sums to 5, not to the 6 survivors"
    assert ended(effects) == ("abandoned", reason)
    assert (story.state.barred, story.state.spent) == ({}, SIX)


def test_a_dealer_that_is_proven_at_fault_ends_the_round_and_is_barred_for_some_rounds() -> None:
    story = SecureStory(secure={"barred_rounds": 2}).opening()
    effects = story.opening_failed("b", "c")
    assert ended(effects) == (
        "abandoned",
        "the secrets that b, c shared cannot be rebuilt: their shares fit nothing",
    )
    barred = Barred(why="its secret could not be rebuilt in round 1", until_round=4)
    assert story.state.barred == {"b": barred, "c": barred}
    assert (story.state.round_number, story.state.spent) == (2, SIX)


def test_a_failed_opening_is_not_tried_again_whoever_reveals_later() -> None:
    story = SecureStory().opening()
    story.opening_failed("b")
    assert refusal(story.revealed("f", round=1)) == "late"
    assert refusal(story.opening_failed("b")) == "stale"
    assert every(rounds.pending(story.state), fx.Open) == []


def test_shares_that_come_while_it_is_opened_ask_for_no_second_opening() -> None:
    story = SecureStory().opening()
    effects = story.revealed("f")
    assert only(effects, fx.Accepted)
    assert every(effects, fx.Open) == []
    assert story.secure.opening is True


def test_a_sum_that_nobody_asked_for_is_refused() -> None:
    story = SecureStory().unmasking()
    assert refusal(story.opened()) == "stale"
    story.revealed("a")
    assert refusal(story.opening_failed()) == "stale"


# Pause, stop, pending


@pytest.mark.parametrize(
    "chapter", ["cohort", "gathering", "sharing", "masking", "agreeing", "unmasking", "opening", "summed"]
)
def test_a_pause_lets_the_round_go_on_and_a_stop_ends_it(chapter: str) -> None:
    paused: SecureStory = getattr(SecureStory(), chapter)()
    phase = paused.state.phase
    paused.paused()
    assert (paused.state.status, paused.state.phase) == ("paused", phase)
    stopped: SecureStory = getattr(SecureStory(), chapter)()
    effects = stopped.stopped()
    if phase == "committing":
        assert stopped.state.phase == "committing"
        stopped.committed()
        assert (stopped.state.status, stopped.state.version) == ("stopped", 1)
    else:
        assert ended(effects) == ("abandoned", "the run ended: stopped by the operator")
    assert (stopped.state.status, stopped.state.phase, stopped.state.secure) == ("stopped", "idle", None)
    assert bool(stopped.state.leftovers) == (chapter != "cohort"), "what is to be deleted is not forgotten"


def test_pending_names_who_is_waited_for() -> None:
    waited: dict[str, fx.Action] = {}
    story = SecureStory().cohort()
    story.advertised("a")
    waited["collecting"] = only(rounds.pending(story.state), fx.SendAnswers)
    story = SecureStory().sharing()
    story.shared("a")
    waited["sharing"] = only(rounds.pending(story.state), fx.SendAnswers)
    story = SecureStory().masking()
    story.masked("b")
    story.complained("c", "a")
    waited["masking"] = only(rounds.pending(story.state), fx.SendAnswers)
    story = SecureStory().agreeing()
    story.signed("c")
    story.withdraws("d")
    waited["agreeing"] = only(rounds.pending(story.state), fx.SendAnswers)
    story = SecureStory().unmasking()
    story.revealed("d")
    waited["unmasking"] = only(rounds.pending(story.state), fx.SendAnswers)
    assert {phase: "".join(action.devices) for phase, action in waited.items()} == {  # type: ignore[union-attr]
        "collecting": "bcdefgh",
        "sharing": "bcdef",
        "masking": "acdef",
        "agreeing": "abef",
        "unmasking": "abcef",
    }
    assert all(action.phase == phase for phase, action in waited.items())  # type: ignore[union-attr]


def test_a_whole_round_leaves_the_next_one_as_if_it_had_never_been() -> None:
    story = SecureStory().whole_round()
    fresh = SecureStory()
    fresh.created()
    same = {"version": 1, "checkpoint": story.state.checkpoint, "leftovers": story.state.leftovers, "round_number": 2}
    same["made_by"] = (1,)
    assert replace(fresh.state, **same, round=replace(fresh.state.current, number=2)) == story.state
