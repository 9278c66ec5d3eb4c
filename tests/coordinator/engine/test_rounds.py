"""How a round opens, collects, closes, commits or is abandoned; what time and retention do to it."""

from __future__ import annotations

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from tests.coordinator.engine.story import START, Story, digest_of, every, only, refusal

# ---------------------------------------------------------------- opening and drawing


def test_a_new_run_opens_its_first_round_and_asks_for_a_cohort() -> None:
    story = Story()
    effects = story.created()
    assert (story.state.phase, story.state.round_number, story.state.version) == ("selecting", 1, 0)
    assert story.state.deadline == story.at + 10
    assert only(effects, fx.RecordRound).status == "open"
    assert only(effects, fx.Draw).round == 1


def test_nothing_is_due_before_select_s_has_passed() -> None:
    story = Story().selecting()
    assert story.tick(9.999) == []
    assert story.tick(0.001) == [fx.Draw(round=1)]


def test_a_cohort_is_claimed_until_the_deadline_and_woken() -> None:
    story = Story().selecting()
    story.at += 3
    effects = story.drawn("a", "b", "c", "d", waiting=9)
    claim = only(effects, fx.Claim)
    assert (claim.devices, claim.round, claim.until) == (("a", "b", "c", "d"), 1, story.at + 60)
    assert only(effects, fx.Wake).devices == ("a", "b", "c", "d")
    row = only(effects, fx.RecordRound)
    assert row.body["funnel"] == {"waiting": 9, "selected": 4, "training": 0, "reported": 0, "withdrawn": 0}
    assert (row.opened_at, row.collecting_at) == (story.at - 3, story.at)
    assert story.state.deadline == story.at + 60


def test_fewer_than_select_make_a_round_when_they_are_a_quorum() -> None:
    story = Story().selecting()
    story.drawn("a", "b")
    assert (story.state.phase, set(story.state.current.members)) == ("collecting", {"a", "b"})


def test_a_selection_that_is_missed_is_counted_and_the_round_looks_for_devices_again() -> None:
    story = Story().selecting()
    for times in (1, 2, 3):
        effects = story.drawn("a", waiting=1)
        assert every(effects, fx.Claim) == []
        row = only(effects, fx.RecordRound)
        assert (row.status, row.reason) == ("open", "1 eligible devices waited; a round needs at least 2")
        assert (row.round, row.body["missed"], row.body["missed_at"]) == (1, times, story.at)
        assert (story.state.phase, story.state.round_number, story.state.checkpoint) == ("selecting", 1, START)
        assert story.state.deadline == story.at + story.state.plan.cohort.select_s
        assert story.state.fallback.abandoned_in_a_row == story.state.abandoned == times
    found = only(story.drawn("a", "b", "c"), fx.RecordRound)
    assert (found.reason, found.body["missed"]) == ("", 3), "the row says how often it was missed"
    assert story.state.phase == "collecting"


# ---------------------------------------------------------------- closing


def test_at_the_goal_the_round_closes_at_once() -> None:
    story = Story().collecting()
    assert every(story.reported("a") + story.reported("c"), fx.Commit) == []
    effects = story.reported("b")
    commit = only(effects, fx.Commit)
    assert [item.device for item in commit.contributions] == ["a", "b", "c"], "by device id, not by arrival"
    assert (commit.round, commit.parent) == (1, START)
    assert [item.digest for item in commit.contributions] == [digest_of(device, 1) for device in "abc"]
    assert (story.state.phase, story.state.deadline) == ("committing", None)
    assert every(effects, fx.Release)[-1].devices is None, "devices that still train are free"


def test_each_report_is_accepted_freed_and_folded() -> None:
    story = Story().collecting()
    effects = story.reported("a", examples=7)
    assert effects == [
        fx.Accepted(device="a", digest=digest_of("a", 1), weight=7),
        fx.Release(round=1, devices=("a",)),
        fx.Fold(round=1, contribution=fx.Contribution(device="a", digest=digest_of("a", 1), weight=7)),
    ]


def test_at_the_deadline_a_quorum_makes_the_round() -> None:
    story = Story().collecting()
    story.reported("a")
    story.reported("d")
    assert story.tick(59.9) == []
    effects = story.tick(0.1)
    assert [item.device for item in only(effects, fx.Commit).contributions] == ["a", "d"]
    assert story.state.phase == "committing"


def test_at_the_deadline_below_the_quorum_it_is_abandoned_and_every_acknowledged_update_is_refused() -> None:
    story = Story().collecting()
    story.reported("c")
    effects = story.tick(60)
    found = only(effects, fx.RecordRefusal)
    assert (found.device, found.digest, found.kind, found.round) == ("c", digest_of("c", 1), "abandoned", 1)
    assert found.reason == "the round was abandoned: 1 of 4 devices reported by the deadline; the quorum is 2"
    ended, opened = every(effects, fx.RecordRound)
    assert (ended.status, ended.closed_at) == ("abandoned", story.at)
    assert (opened.round, opened.status) == (2, "open")
    assert only(effects, fx.Release) == fx.Release(round=1, devices=None)
    assert only(effects, fx.Discard).round == 1
    assert (story.state.phase, story.state.checkpoint, story.state.version) == ("selecting", START, 0)
    assert story.state.current.members == {}


def test_a_commit_that_cannot_be_made_abandons_the_round_and_tells_all_its_updates() -> None:
    story = Story().committing()
    effects = story.commit_failed("the next checkpoint would hold values that are not finite")
    assert [item.device for item in every(effects, fx.RecordRefusal)] == ["a", "b", "c"]
    assert {item.kind for item in every(effects, fx.RecordRefusal)} == {"abandoned"}
    assert "not finite" in every(effects, fx.RecordRound)[0].reason
    assert (story.state.phase, story.state.round_number, story.state.checkpoint) == ("selecting", 2, START)


def test_the_round_closes_when_all_have_reported_or_withdrawn() -> None:
    story = Story().collecting()
    story.reported("a")
    story.withdrew("b")
    story.reported("d")
    assert story.state.phase == "collecting"
    effects = story.withdrew("c")
    assert [item.device for item in only(effects, fx.Commit).contributions] == ["a", "d"]


def test_it_is_abandoned_as_soon_as_the_quorum_is_out_of_reach() -> None:
    story = Story().collecting()
    story.reported("a")
    story.withdrew("b")
    story.withdrew("c")
    assert story.state.phase == "collecting", "a and d could still make the quorum of 2"
    effects = story.withdrew("d")
    assert every(effects, fx.RecordRound)[0].reason == ("3 of 4 devices withdrew; 1 are left and the quorum is 2")
    assert only(effects, fx.RecordRefusal).device == "a"
    assert story.state.round_number == 2


def test_abandoned_rounds_are_counted_until_one_commits() -> None:
    story = Story().selecting()
    for count in (1, 2, 3):
        story.drawn()
        assert story.state.fallback.abandoned_in_a_row == count
    story.whole_round()
    assert story.state.fallback.abandoned_in_a_row == 0


# ---------------------------------------------------------------- committing


def test_a_commit_moves_the_model_and_names_what_it_is_made_of() -> None:
    story = Story().committing()
    effects = story.committed(digest=digest_of("model", 1), bytes=77)
    row = only(effects, fx.RecordCheckpoint)
    assert (row.version, row.parent, row.round, row.digest, row.bytes) == (1, 0, 1, digest_of("model", 1), 77)
    assert row.contributions == tuple(
        fx.Contribution(device=device, digest=digest_of(device, 1), weight=10) for device in "abc"
    )
    assert (story.state.version, story.state.checkpoint) == (1, digest_of("model", 1))
    assert (story.state.phase, story.state.round_number) == ("selecting", 2)
    ended, _ = every(effects, fx.RecordRound)
    assert (ended.status, ended.body["version"], ended.body["digest"]) == ("committed", 1, digest_of("model", 1))


def test_a_commit_of_another_round_is_stale() -> None:
    story = Story().committing()
    before = story.state
    assert refusal(story.committed(round=2)) == "stale"
    assert refusal(story.happens(ev.CommitFailed(at=story.at, round=0, reason="old"))) == "stale"
    assert story.state is before


def test_the_second_commit_of_a_round_is_stale() -> None:
    story = Story().whole_round()
    assert refusal(story.committed(round=1, digest=digest_of("other"))) == "stale"
    assert story.state.checkpoint == digest_of("model", 1)


# ---------------------------------------------------------------- time


def test_when_the_clock_falls_the_deadline_falls_with_it() -> None:
    story = Story().collecting()
    story.at -= 1000
    story.happens(ev.ClockFell(at=story.at, by_s=1000))
    assert story.tick(59.9) == []
    assert story.state.phase == "collecting"
    story.tick(0.1)
    assert story.state.round_number == 2, "abandoned 60 s after it began to collect, whatever the clock said"


def test_time_alone_never_moves_a_commit() -> None:
    story = Story().committing()
    before = story.state
    assert story.tick(10**9) == []
    assert story.state is before


# ---------------------------------------------------------------- retention


def test_without_retention_raw_updates_go_with_their_round() -> None:
    story = Story().committing()
    assert only(story.committed(), fx.Discard).round == 1


def test_with_retention_they_go_some_rounds_later() -> None:
    story = Story(retention={"rounds": 2})
    gone = []
    for _ in range(4):
        story.committing()
        gone.append([item.round for item in every(story.committed(), fx.Discard)])
    assert gone == [[], [], [1], [2]]


def test_an_abandoned_round_counts_as_a_round_for_retention() -> None:
    story = Story(retention={"rounds": 1})
    assert every(story.collecting().tick(100), fx.Discard) == []
    assert only(story.collecting().tick(100), fx.Discard).round == 1


# ---------------------------------------------------------------- what the public reads


def test_the_rounds_row_counts_and_averages_without_naming_anyone() -> None:
    story = Story().collecting()
    story.started("d")
    story.reported("a", examples=10, metrics={"loss": 1.0}, bytes=5)
    story.reported("b", examples=30, metrics={"loss": 2.0, "accuracy": 0.5}, bytes=6)
    story.withdrew("c")
    body = rounds.public_body(story.state)
    assert body["funnel"] == {"waiting": 4, "selected": 4, "training": 3, "reported": 2, "withdrawn": 1}
    assert (body["bytes_in"], body["weight"], body["partial"]) == (11, 40, 0)
    assert body["metrics"] == {"loss": 1.75, "accuracy": 0.5}


def test_repro_metrics_at_the_end_of_floating_point_keep_a_finite_mean() -> None:
    """A loss of 1e308, times its weight, was infinite: the row could not be written and the round not end."""
    story = Story().collecting()
    for device in "ab":
        story.reported(device, examples=10_000, metrics={"loss": 1.7e308})
    story.reported("c", metrics={"loss": -1.7e308}, held_out={"loss": 1.7e308}, held_out_examples=10**6)
    assert abs(rounds.public_body(story.state)["metrics"]["loss"]) <= 1.7e308  # type: ignore[index]
    effects = story.committed()
    assert only(effects, fx.RecordMetrics).metrics == {"loss": 1.7e308}
