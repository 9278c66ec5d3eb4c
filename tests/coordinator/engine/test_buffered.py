"""Buffered rounds: places that outlive rounds, exactly K reports in a commit, and what a stale report weighs."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds, state
from coordinator.engine.aggregation.strategy import Algorithm
from coordinator.engine.plan import Plan, algorithm
from coordinator.engine.plan_file import PlanError
from coordinator.engine.rounds import kind_of
from tests.coordinator.engine.story import Story, digest_of, plan

COHORT = {"select": 300, "goal": 2, "quorum": 0.85, "select_s": 60, "collect_s": 60}


class Buffer(Story):
    """K = 2, four places, reports of up to two versions back; devices are drawn in the order of their names."""

    def __init__(self, **sections: Any) -> None:
        section = {"concurrency": 4, "most_stale": 2, **sections.pop("buffered", {})}
        super().__init__(**{"cohort": COHORT, "buffered": section, **sections})
        self.created()

    def told(self, device: str, **more: Any) -> list[fx.Effect]:
        """A report of the device's place, or of the one that it last had."""
        since = self.state.current.members[device].since if "attempt" not in more else more["attempt"]
        named = {"attempt": since, "digest": digest_of(device, since), **more}
        effects: list[fx.Effect] = self.reported(device, **named)
        return effects

    def round_of(self, *devices: str) -> list[fx.Effect]:
        """These report, and their round is committed."""
        for device in devices:
            self.told(device)
        effects: list[fx.Effect] = self.committed()
        return effects

    @property
    def training(self) -> dict[str, int]:
        """Device -> the round in which it was drawn."""
        members = self.state.current.members.items()
        return {device: one.since for device, one in members if one.status in ("selected", "training")}


def against(effects: list[fx.Effect]) -> tuple[str, str]:
    (found,) = (one for one in effects if isinstance(one, fx.Refused))
    return found.kind, found.reason


def test_a_commit_has_exactly_k_reports_and_who_trains_goes_on() -> None:
    story = Buffer()
    assert story.state.phase == "collecting"
    story.drawn("a", "b", "c", "d")
    story.told("a")
    effects = story.told("b")
    assert story.state.phase == "committing"
    assert [one.device for one in story.contributions] == ["a", "b"]
    assert not [one for one in effects if isinstance(one, fx.Release) and one.devices is None]
    effects = story.committed()
    assert (story.state.version, story.state.phase, story.state.round_number) == (1, "collecting", 2)
    assert story.training == {"c": 1, "d": 1}
    assert not [one for one in effects if isinstance(one, fx.Release)]
    assert fx.Draw(round=2) in effects


def test_a_stale_report_weighs_its_weight_times_the_table() -> None:
    story = Buffer(buffered={"staleness": [64, 45, 37]})
    story.drawn("a", "b", "c", "d")
    story.round_of("a", "b")
    story.drawn("e", "f")
    (accepted,) = (one for one in story.told("c") if isinstance(one, fx.Accepted))
    assert accepted.weight == 10 * 45
    story.told("e")
    assert [(one.device, one.weight) for one in story.contributions] == [("c", 450), ("e", 640)]
    assert rounds.public_body(story.state)["staleness"] == [1, 1]
    story.committed()
    assert story.training == {"d": 1, "f": 2}
    (accepted,) = (one for one in story.told("d") if isinstance(one, fx.Accepted))
    assert accepted.weight == 10 * 37


def test_a_place_ends_when_its_version_is_too_old_and_the_report_is_refused_with_that_reason() -> None:
    story = Buffer()
    story.drawn("a", "b", "c", "slow")
    story.round_of("a", "b")
    story.drawn("d", "e")
    story.round_of("c", "d")
    story.drawn("f", "g")
    effects = story.round_of("e", "f")
    assert fx.Release(round=1, devices=("slow",)) in effects
    assert story.training == {"g": 3}
    before = story.state
    effects = story.told("slow", attempt=1)
    assert story.state is before
    kind, reason = against(effects)
    assert kind == "late"
    assert reason == "the update is of version 0, more than most_stale = 2 versions behind version 3"
    (record,) = (one for one in effects if isinstance(one, fx.RecordRefusal))
    assert (record.round, record.kind, record.reason) == (1, "late", reason)


def test_a_report_during_a_commit_is_to_be_sent_again() -> None:
    story = Buffer()
    story.drawn("a", "b", "c")
    story.told("a")
    story.told("b")
    before = story.state
    effects = story.told("c")
    assert against(effects)[0] == "busy"
    assert story.state is before
    assert not [one for one in effects if isinstance(one, fx.RecordRefusal)]
    story.committed()
    story.told("c")
    assert [one.device for one in story.contributions] == ["c"]


def test_the_same_bytes_get_the_same_answer_and_others_are_refused() -> None:
    story = Buffer()
    story.drawn("a", "b")
    first = next(one for one in story.told("a") if isinstance(one, fx.Accepted))
    before = story.state
    assert first in story.told("a")
    assert against(story.told("a", digest=digest_of("other")))[0] == "duplicate"
    assert against(story.told("zz", attempt=1))[0] == "not-selected"
    assert against(story.told("b", attempt=2))[0] == "stale"
    assert story.state is before


def test_who_has_reported_is_drawn_in_the_next_round_and_nobody_beyond_the_places() -> None:
    story = Buffer()
    story.drawn("a", "b", "c")
    before = story.state
    assert against(story.drawn("d", "e"))[0] == "stale"
    story.told("a")
    before = story.state
    assert against(story.drawn("a"))[0] == "stale"
    assert against(story.drawn())[0] == "stale"
    assert story.state is before
    assert kind_of(story.state.current).free(story.state) == 2
    story.withdrew("b", attempt=1)
    story.drawn("b", "d")
    assert story.training == {"b": 1, "c": 1, "d": 1}, "who has withdrawn may come again"


def test_a_place_ends_with_its_own_time() -> None:
    story = Buffer()
    story.drawn("a")
    story.at += 30
    story.drawn("b")
    assert story.state.deadline == 160.0
    effects = story.tick(30)
    assert fx.Release(round=1, devices=("a",)) in effects
    assert (story.training, story.state.deadline) == ({"b": 1}, 190.0)
    assert against(story.told("a"))[0] == "late"
    assert story.tick(1) == []
    for devices in (("c", "d"), ("e", "f")):
        story.drawn(*devices)
        story.round_of(*devices)
    assert story.state.version == 2
    assert against(story.told("a", attempt=1))[1].startswith("its place has ended"), "two versions are not too many"


def test_a_withdrawal_and_a_refused_update_free_a_place() -> None:
    story = Buffer()
    story.drawn("a", "b", "c", "d")
    assert fx.Draw(round=1) in story.withdrew("a", attempt=1)
    wrong = ev.UpdateRefused(at=story.at, round=1, attempt=1, device="b", digest=digest_of("bad"), reason="NaN")
    effects = story.happens(wrong)
    assert fx.Draw(round=1) in effects
    assert fx.Release(round=1, devices=("b",)) in effects
    assert [(one.kind, one.reason) for one in effects if isinstance(one, fx.RecordRefusal)] == [
        ("invalid-update", "NaN")
    ]
    assert against(story.told("a"))[0] == "withdrawn"
    assert against(story.happens(wrong)) == ("invalid-update", "NaN")
    assert story.training == {"c": 1, "d": 1}
    assert against(story.drawn("b"))[0] == "stale", "in this round it would send the same again"
    story.round_of("c", "d")
    story.drawn("b")
    assert story.training == {"b": 2}


def test_a_lost_update_is_replaced_by_another_devices() -> None:
    story = Buffer()
    story.drawn("a", "b", "c")
    story.told("a")
    story.told("b")
    effects = story.happens(ev.UpdateLost(at=story.at, round=1, attempt=0, device="a", digest=digest_of("a", 1)))
    assert story.state.phase == "collecting"
    assert [one.kind for one in effects if isinstance(one, fx.RecordRefusal)] == ["invalid-update"]
    story.told("c")
    assert [one.device for one in story.contributions] == ["b", "c"]
    story.committed()
    assert story.state.version == 1


def test_a_commit_that_fails_abandons_its_reports_and_who_trains_goes_on() -> None:
    story = Buffer()
    story.drawn("a", "b", "c")
    story.told("a")
    story.told("b")
    effects = story.commit_failed()
    assert [one.device for one in effects if isinstance(one, fx.RecordRefusal)] == ["a", "b"]
    assert story.training == {"c": 1}
    assert (story.state.round_number, story.state.version) == (2, 0)
    (accepted,) = (one for one in story.told("c") if isinstance(one, fx.Accepted))
    assert accepted.weight == 640


def test_a_pause_draws_nobody_and_places_end_with_the_round_that_none_follows() -> None:
    story = Buffer()
    story.drawn("a", "b", "c")
    story.paused()
    assert kind_of(story.state.current).free(story.state) == 0
    effects = story.round_of("a", "b")
    assert story.state.round is None
    assert fx.Release(round=1, devices=("c",)) in effects
    effects = story.told("c", attempt=1)
    assert against(effects) == (
        "late",
        "the run is paused: an update of a device that was drawn in round 1 counts no more",
    )
    assert fx.Draw(round=2) in story.resumed()


def test_a_run_that_ends_ends_all_places() -> None:
    story = Buffer(finish={"rounds": 1})
    story.drawn("a", "b", "c")
    effects = story.round_of("a", "b")
    assert story.state.status == "finished"
    assert fx.Release(round=1, devices=("c",)) in effects
    stopped = Buffer()
    stopped.drawn("a", "b")
    effects = stopped.happens(ev.Stopped(at=stopped.at))
    assert fx.Release(round=1, devices=("a", "b")) in effects


def test_a_fallen_clock_moves_the_ends_of_places() -> None:
    story = Buffer()
    story.drawn("a")
    story.happens(ev.ClockFell(at=story.at, by_s=50.0))
    assert (story.state.deadline, story.state.current.members["a"].until) == (110.0, 110.0)


def test_a_state_is_the_fold_of_its_log_also_from_a_snapshot() -> None:
    story = Buffer()
    story.drawn("a", "b", "c", "d")
    story.round_of("a", "b")
    stored = state.from_json(state.to_json(story.state))
    assert stored == story.state
    story.drawn("e")
    story.told("c")
    folded = story.start
    for event in story.log:
        folded, _ = rounds.step(folded, ev.from_json(event.kind, event.at, ev.to_json(event)))
    assert folded == story.state
    assert fx.Draw(round=2) in rounds.pending(folded)
    assert fx.Wake(devices=("d", "e")) in rounds.pending(folded)


def test_what_a_device_names_is_logged_with_the_round_under_way() -> None:
    story = Buffer()
    story.drawn("a", "b", "c")
    story.round_of("a", "b")
    sent = ev.TrainingStarted(at=story.at, round=1, attempt=0, device="c")
    named: Any = rounds.KINDS["buffered"].addressed(story.state, sent)
    assert (named.round, named.attempt) == (2, 1)
    story.happens(named)
    assert story.state.current.members["c"].status == "training"
    assert rounds.KINDS["buffered"].assigned(story.state, 1, "c") == (0, 160.0)
    assert rounds.KINDS["buffered"].assigned(story.state, 2, "c") is None


def test_a_plans_table_is_whole_never_rises_and_never_is_zero() -> None:
    def section(**fields: Any) -> Any:
        return plan(cohort=COHORT, buffered={"concurrency": 4, **fields}).buffered

    assert section(most_stale=4).in_parts == (64, 45, 37, 32, 29)
    assert section(most_stale=2, staleness=[64, 32]).in_parts == (64, 32, 32)
    assert min(section(most_stale=1000).in_parts) == 2
    for wrong, said in (
        ({"most_stale": 1, "staleness": [64, 64, 64]}, "most_stale = 1 takes at most 2"),
        ({"most_stale": 1, "staleness": []}, "staleness"),
        ({"most_stale": 1, "staleness": [32, 64]}, "never rise"),
        ({"most_stale": 1, "staleness": [64, 0]}, "staleness"),
        ({"most_stale": 0, "staleness": [65]}, "staleness"),
    ):
        with pytest.raises(PlanError, match=said):
            section(**wrong)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"datacenter": {"data": "proxy", "patience": 1}}, r"buffered with \[datacenter\]"),
        ({"strategy": {"name": "ditto", "parameters": {"lambda": 1}}}, "ditto, of which devices run a half"),
        ({"strategy": {"name": "fednova"}, "schedule": {"mu": {"last": 1}}}, "of different rates"),
        ({"secure": {"max_norm": 1, "max_abs": 1}}, r"buffered with \[secure\]"),
        ({"aggregation": {"inverse_participation": 4}}, "inverse_participation"),
        ({"task": {"score_held_out": True}}, "score_held_out"),
        ({"cohort": {"select": 300, "choose": "by_examples", "pool": 900}}, 'only "uniform"'),
        ({"cohort": {"quorum": 0.5}}, "cohort.quorum has no meaning"),
        ({"cohort": {"select": 77}}, "cohort.select has no meaning"),
        ({"aggregation": {"weight_cap": 2**20}, "cohort": {"goal": 10}}, "in 1/64 of an example"),
    ],
)
def test_what_a_buffered_plan_cannot_have_is_refused_in_a_sentence(sections: dict[str, Any], said: str) -> None:
    cohort = {**COHORT, **sections.pop("cohort", {})}
    with pytest.raises(PlanError, match=said):
        plan(**{"cohort": cohort, "buffered": {"concurrency": 4}, **sections})


def test_a_strategy_that_only_combines_goes_with_buffered_rounds() -> None:
    def made(**sections: Any) -> Algorithm:
        return algorithm(plan(cohort=COHORT, buffered={"concurrency": 4}, **sections))

    assert made(strategy={"name": "fednova"}).needs == "whole"
    with pytest.raises(PlanError, match="adaptive-mu does not go with this plan: it decides for a whole cohort"):
        made(strategy={"name": "adaptive-mu"})
    with pytest.raises(PlanError, match="however stale"):
        made(strategy={"name": "q-ffl", "parameters": {"q": 1}}, aggregation={"weighting": "equal"})


def test_a_plan_without_the_section_has_the_digest_that_it_had() -> None:
    assert "buffered" not in plan().written_out
    buffered: Plan = plan(cohort=COHORT, buffered={"concurrency": 4})
    assert (buffered.kind, buffered.weight_unit, buffered.heaviest) == ("buffered", 64, 640_000)


def test_parts_of_an_example_are_as_many_as_leave_room_for_the_table() -> None:
    """2 updates of 10,000 examples, in 1/64 of 1/128 of an example, are below 2^28; of 1/256 they are not."""
    seen = {"partial": "examples_seen"}
    buffered: Plan = plan(cohort=COHORT, buffered={"concurrency": 4}, aggregation=seen)
    assert (buffered.weight_unit, buffered.heaviest * 2) == (64 * 128, 10_000 * 64 * 128 * 2)
    assert buffered.heaviest * 2 <= 2**28 < buffered.heaviest * 4
