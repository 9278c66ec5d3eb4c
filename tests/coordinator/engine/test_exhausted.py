"""A run whose devices are spent says so, and has three ways out: other devices, the datacenter, and its owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from tests.coordinator.engine.secure_story import POOL, SIX, SecureStory
from tests.coordinator.engine.story import FALLBACK, START, Story, digest_of, every, only, refusal

SIGNATURE = "5e" * 64
SAYS = (
    "the run is exhausted at version 0: of the devices that wait 6 have signed on this checkpoint; "
    "2 can still contribute, and a secure round needs 4: it waits for other devices"
)


def test_an_exhausted_run_says_so_in_the_rounds_reason_and_the_public_body() -> None:
    story = SecureStory().exhausted()
    assert story.state.exhausted == SAYS
    rows = every(story.effects, fx.RecordRound)
    assert (rows[-1].status, rows[-1].reason) == ("open", SAYS)
    assert rounds.public_body(story.state)["exhausted"] == SAYS
    assert (story.state.phase, story.state.round_number, story.state.deadline) == ("selecting", 2, None), (
        "it waits until other devices come"
    )
    assert (story.state.drawn_from, story.state.plan.pool_count) == (4, 8)
    before = story.state
    story.tick(100_000)
    assert story.state is before, "nothing is written meanwhile"


@pytest.mark.parametrize(("waiting", "unspendable"), [(0, 3), (2, 1), (3, 0)])
def test_where_too_few_wait_at_all_nobody_knows_whether_it_is(waiting: int, unspendable: int) -> None:
    story = SecureStory().unmasking()
    story.tick(20)
    story.drawn_from(*"ghij"[:waiting], unspendable=unspendable)
    assert story.state.exhausted == ""
    assert refusal(story.advanced()) == "conflict"


def test_barred_devices_alone_exhaust_no_run_since_no_other_model_would_help() -> None:
    story = SecureStory()
    story.created()
    effects = story.drawn_from("g", unspendable=7, barred=7)
    assert story.state.exhausted == ""
    row = only(effects, fx.RecordRound)
    assert (row.status, row.reason) == (
        "open",
        "1 eligible devices waited (7 are barred); a secure round needs at least 4",
    )


def test_who_is_spent_has_declined_or_is_barred_counts_alike_and_each_is_named() -> None:
    story = SecureStory()
    story.created()
    story.drawn_from("g", unspendable=3, declined=1, barred=1)
    assert story.state.exhausted == (
        "the run is exhausted at version 0: of the devices that wait 1 has signed on this checkpoint, "
        "1 has declined this checkpoint, 1 is barred; 1 can still contribute, and a secure round needs 4: "
        "it waits for other devices"
    )
    few = SecureStory()
    few.created()
    few.drawn_from("g", unspendable=2, declined=1, barred=1)
    assert few.state.exhausted == "", "three devices are too few on any model"


def test_repro_a_run_whose_devices_all_declined_says_so_and_can_be_advanced() -> None:
    """In *fast* a device advertises so many times on a checkpoint and refuses for good: none had signed, so the run was
    not exhausted, and could not be advanced."""
    story = SecureStory().cohort()
    for device in "abcde":
        effects = story.declined(device, reason="This device advertised 8 times on this checkpoint.")
        assert not every(effects, fx.RecordMark), "another run may ask it"
    assert (story.state.round_number, story.state.spent) == (2, ())
    assert story.state.declined == dict.fromkeys("abcde", "This device advertised 8 times on this checkpoint.")
    story.drawn_from("f", "g", "h", unspendable=5, declined=5)
    assert story.state.exhausted == (
        "the run is exhausted at version 0: of the devices that wait 5 have declined this checkpoint; "
        "3 can still contribute, and a secure round needs 4: it waits for other devices"
    )
    assert only(story.advanced(), fx.Advance)
    story.committed()
    assert (story.state.version, story.state.declined, story.state.exhausted) == (1, {}, "")
    story.cohort()
    assert set(story.state.current.members) == set(POOL), "all of them can contribute to this model"


def test_other_devices_are_a_way_out() -> None:
    story = SecureStory().exhausted()
    story.drawn_from("g", "h", "i", "j", unspendable=6)
    assert (story.state.phase, story.state.exhausted) == ("collecting", "")
    assert story.state.spent == SIX, "devices that have signed stay spent until there is another model"


def test_it_stays_exhausted_while_fewer_wait() -> None:
    story = SecureStory().exhausted()
    story.drawn_from("g")
    assert (story.state.exhausted, story.state.waits) == (SAYS, True)


def test_it_asks_again_where_time_or_failures_bring_the_datacenter() -> None:
    patient = SecureStory(datacenter={**FALLBACK, "patience": 5}).exhausted()
    assert (patient.state.current.missed, patient.state.waits) == (1, False)
    while patient.state.phase == "selecting":
        patient.drawn_from("g", unspendable=6)
    assert (patient.state.current.kind, patient.state.fallback.abandoned_in_a_row) == ("datacenter", 5)
    planned = SecureStory(datacenter={**FALLBACK, "patience": None, "every": 5}).exhausted()
    assert planned.state.waits
    resting = SecureStory(datacenter={**FALLBACK, "patience": None, "every": 5}).unmasking()
    rests_until = resting.at + 1000
    resting.state = replace(resting.state, fallback=replace(resting.state.fallback, rests_until=rests_until))
    resting.tick(20)
    resting.drawn_from("g", "h", unspendable=6)
    assert not resting.state.waits


def test_a_pause_ends_the_wait_and_a_resumed_run_looks_once_more() -> None:
    story = SecureStory().exhausted()
    story.paused()
    assert (story.state.round, story.state.exhausted) == (None, SAYS)
    story.resumed()
    assert (story.state.phase, story.state.waits) == ("selecting", False)
    story.drawn_from("g", unspendable=6)
    assert story.state.waits


def test_a_datacenter_round_is_a_way_out() -> None:
    story = SecureStory(datacenter={**FALLBACK, "patience": 2}).exhausted()
    assert (story.state.current.kind, story.state.phase) == ("datacenter", "leasing")
    assert "because" in rounds.public_body(story.state)
    story.leased()
    story.delivered()
    assert (story.state.version, story.state.spent, story.state.exhausted) == (1, (), "")
    assert story.state.current.kind == "datacenter", "until enough devices wait"
    story.fleet_returned(8)
    assert story.state.current.kind == "secure"


def test_the_owner_is_a_way_out_and_it_is_audited() -> None:
    story = SecureStory().exhausted()
    effects = story.advanced()
    audit = only(effects, fx.RecordAudit)
    assert (audit.by, audit.action) == ("olga", "advance")
    assert SAYS in audit.detail
    assert only(effects, fx.Advance) == fx.Advance(round=2, parent=START)
    assert (story.state.phase, story.state.current.kind, story.state.deadline) == ("committing", "secure", None)
    assert story.contributions == ()
    committed = story.committed()
    row = only(committed, fx.RecordCheckpoint)
    assert row.contributions == ()
    assert row.origin == "round 2, moved by one unit for olga: no device contributed"
    assert (story.state.version, story.state.spent, story.state.exhausted) == (1, (), "")
    assert story.state.current.advancing == ""
    story.cohort()
    assert set(SIX) <= set(story.state.current.members), "all of them can contribute to this model"


@pytest.mark.parametrize(
    "chapter",
    ["selecting", "cohort", "gathering", "sharing", "masking", "agreeing", "unmasking", "opening", "summed", "created"],
)
def test_a_run_that_is_not_exhausted_is_not_advanced(chapter: str) -> None:
    story = SecureStory()
    getattr(story, chapter)()
    before = story.state
    effects = story.advanced()
    assert refusal(effects) == "conflict"
    assert only(effects, fx.Refused).reason == "run story is not exhausted: it continues by itself"
    assert story.state is before
    assert refusal(Story().happens(ev.Advanced(at=1.0, round=1, by="olga"))) == "conflict"


def test_it_is_advanced_once_and_only_where_it_stands() -> None:
    story = SecureStory().exhausted()
    assert refusal(story.advanced(round=1)) == "stale"
    story.paused()
    assert "resume it first" in only(story.advanced(), fx.Refused).reason
    story.resumed()
    story.advanced()
    again = story.advanced(by="otto")
    assert "already, by olga" in only(again, fx.Refused).reason
    assert story.state.current.advancing == "olga"


def test_what_cannot_be_moved_leaves_the_run_exhausted() -> None:
    story = SecureStory().exhausted()
    story.advanced()
    story.commit_failed("no value of the model can be moved")
    assert (story.state.phase, story.state.current.advancing, story.state.version) == ("selecting", "", 0)
    assert story.state.exhausted == SAYS
    story.advanced()
    assert story.state.current.advancing == "olga"


def test_a_stop_while_it_is_advanced_ends_the_run_after_it() -> None:
    story = SecureStory().exhausted()
    story.advanced()
    story.stopped()
    assert story.state.phase == "committing"
    story.committed()
    assert (story.state.status, story.state.version, story.state.round) == ("stopped", 1, None)


def test_while_a_worker_has_the_round_the_owner_waits() -> None:
    story = SecureStory(datacenter={**FALLBACK, "patience": 2}).exhausted()
    story.leased()
    assert "round 3 is training" in only(story.advanced(), fx.Refused).reason


def test_where_no_worker_takes_the_round_the_owner_may_and_the_fleet_has_its_turn() -> None:
    story = SecureStory(datacenter={**FALLBACK, "patience": 2}).exhausted()
    assert story.state.phase == "leasing"
    story.advanced()
    assert (story.state.phase, story.state.current.kind) == ("committing", "secure")
    assert refusal(story.leased()) == "stale"
    story.committed(digest=digest_of("moved"))
    assert (story.state.current.kind, story.state.phase) == ("secure", "selecting")


def test_what_is_declined_after_its_round_is_kept_until_there_is_another_model() -> None:
    story = SecureStory().cohort()
    for device in "abcde":
        story.declined(device)
    assert (story.state.round_number, story.state.phase) == (2, "selecting")
    assert only(story.declined("f", round=1), fx.Refused).kind == "late"
    assert not story.declined("f", round=1, late=True)
    assert "".join(story.state.declined) == "abcdef"
    for known in ({"round": 2}, {"round": 3}):
        assert refusal(story.declined("g", late=True, **known)), "it is not over"
    story.drawn_from("g", "h", unspendable=6, declined=6)
    story.advanced()
    story.committed()
    assert only(story.declined("g", round=1, late=True), fx.Refused).kind == "late"
    assert only(story.declined("g", round=2, late=True), fx.Refused).kind == "late"
    assert story.state.declined == {}


def test_a_signature_under_the_newest_model_asks_devices_again_that_declined_it() -> None:
    story = SecureStory().cohort()
    assert refusal(story.happens(ev.Vouched(at=story.at, version=0, signature=SIGNATURE))) == "conflict"
    story.whole_round()
    for device in story.cohort().state.current.members:
        story.declined(device)
    assert (story.state.version, story.state.phase, len(story.state.declined)) == (1, "selecting", 5)
    for version in (0, 2):
        assert refusal(story.happens(ev.Vouched(at=story.at, version=version, signature=SIGNATURE))) == "conflict"
    assert only(story.happens(ev.Vouched(at=story.at, version=1, signature=SIGNATURE)), fx.Draw).round == 3
    assert (story.state.vouched, story.state.declined) == ((1, SIGNATURE), {})
    story.cohort()
    assert story.state.phase == "collecting"
    assert not story.happens(ev.Vouched(at=story.at, version=1, signature=SIGNATURE[::-1])), "no draw is due"
    assert story.state.vouched == (1, SIGNATURE[::-1])
