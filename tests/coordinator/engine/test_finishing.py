"""When a run is done: rounds, a target, patience; whose scores count, and which way they improve."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.engine import effects as fx
from tests.coordinator.engine.story import Story, every, only, refusal


def scored_at(story: Story, values: list[float], **more: Any) -> list[str]:
    """One committed round for each value, which is then the score of its version. The status after each."""
    statuses = []
    for value in values:
        if story.state.over:
            break
        story.whole_round()
        story.scored(story.state.version, value, **more)
        statuses.append(story.state.status)
    return statuses


def test_enough_committed_rounds_finish_the_run() -> None:
    story = Story(finish={"rounds": 2}).whole_round()
    assert story.state.status == "running"
    story.committing()
    effects = story.committed()
    assert (story.state.status, story.state.reason, story.state.phase) == ("finished", "reached 2 rounds", "idle")
    assert every(effects, fx.Draw) == []


def test_one_round_is_written_in_the_singular() -> None:
    assert Story(finish={"rounds": 1}).whole_round().state.reason == "reached 1 round"


def test_abandoned_rounds_do_not_count_as_rounds() -> None:
    story = Story(finish={"rounds": 2})
    story.collecting().tick(100)
    story.collecting().tick(100)
    story.whole_round()
    assert (story.state.status, story.state.round_number, story.state.version) == ("running", 4, 1)


def test_repro_a_round_that_nobody_began_was_not_needed_where_a_score_finishes_the_run() -> None:
    """It stood in the history as an abandoned round after each target that was reached."""
    story = Story(finish={"metric": "accuracy", "target": 0.9}).whole_round().whole_round()
    assert (story.state.phase, story.state.round_number) == ("selecting", 3)
    effects = story.scored(2, 0.95)
    assert only(effects, fx.RecordRound).reason == "not needed: accuracy 0.95 reached the target 0.9 at version 2"
    under_way = Story(finish={"metric": "accuracy", "target": 0.9}).whole_round().collecting()
    effects = under_way.scored(1, 0.95)
    assert only(effects, fx.RecordRound).reason == "the run ended: accuracy 0.95 reached the target 0.9 at version 1"


def test_the_target_finishes_the_run_and_abandons_the_round_under_way() -> None:
    story = Story(finish={"metric": "accuracy", "target": 0.9}).whole_round()
    story.collecting()
    story.reported("a")
    assert story.state.status == "running"
    effects = story.scored(1, 0.9)
    assert (story.state.status, story.state.phase) == ("finished", "idle")
    assert story.state.reason == "accuracy 0.9 reached the target 0.9 at version 1"
    assert only(effects, fx.RecordRefusal).device == "a"
    assert only(effects, fx.RecordRound).status == "abandoned"


def test_just_below_the_target_goes_on() -> None:
    story = Story(finish={"metric": "accuracy", "target": 0.9}).whole_round()
    story.scored(1, 0.8999)
    assert story.state.status == "running"


def test_the_target_of_a_metric_that_falls() -> None:
    story = Story(finish={"metric": "loss", "target": 0.2, "better": "lower"}).whole_round()
    story.scored(1, 0.3, name="loss")
    assert story.state.status == "running"
    story.scored(1, 0.2, name="loss")
    assert story.state.status == "finished"


def test_a_score_of_an_older_checkpoint_can_reach_the_target() -> None:
    story = Story(finish={"metric": "accuracy", "target": 0.9}).whole_round().whole_round()
    story.scored(2, 0.5)
    story.scored(1, 0.95)
    assert (story.state.status, story.state.reason) == (
        "finished",
        "accuracy 0.95 reached the target 0.9 at version 1",
    )


def test_while_committing_the_target_waits_for_the_commit() -> None:
    story = Story(finish={"metric": "accuracy", "target": 0.9}).committing()
    story.scored(0, 0.95)
    assert (story.state.status, story.state.phase) == ("running", "committing")
    story.committed()
    assert (story.state.status, story.state.version) == ("finished", 1)


@pytest.mark.parametrize(
    ("values", "statuses"),
    [
        ([0.5, 0.6, 0.7, 0.8], ["running"] * 4),
        ([0.5, 0.5, 0.5], ["running", "running", "finished"]),
        ([0.5, 0.4, 0.6, 0.5, 0.5], ["running", "running", "running", "running", "finished"]),
        ([0.5, 0.509, 0.5099], ["running", "running", "finished"]),  # above, but by no more than min_delta
        ([0.5, 0.509, 0.5101, 0.52], ["running", "running", "running", "running"]),
    ],
)
def test_patience_counts_scores_without_an_improvement(values: list[float], statuses: list[str]) -> None:
    story = Story(finish={"metric": "accuracy", "patience": 2, "min_delta": 0.01, "rounds": 100})
    assert scored_at(story, values) == statuses


def test_an_improvement_by_exactly_min_delta_is_none() -> None:
    story = Story(finish={"metric": "accuracy", "patience": 1, "min_delta": 0.25, "rounds": 100})
    assert scored_at(story, [0.25, 0.5]) == ["running", "finished"]


def test_patience_where_lower_is_better() -> None:
    story = Story(finish={"metric": "loss", "patience": 2, "better": "lower", "rounds": 100})
    assert scored_at(story, [1.0, 0.9, 0.95, 0.8, 0.9, 0.85], name="loss") == ["running"] * 5 + ["finished"]
    assert story.state.reason == "loss has not improved on 0.8 for 2 scored checkpoints"


def test_the_same_checkpoint_scored_again_does_not_wear_out_patience() -> None:
    story = Story(finish={"metric": "accuracy", "patience": 2, "rounds": 100}).whole_round()
    for _ in range(5):
        story.scored(1, 0.5)
    assert (story.state.status, story.state.unimproved) == ("running", 0)


def test_only_the_named_metric_of_the_named_source_counts() -> None:
    story = Story(finish={"metric": "accuracy", "target": 0.9, "source": "hospital"}).whole_round()
    story.scored(1, 0.99, source="evaluator")
    story.scored(1, 0.99, source="hospital", name="recall")
    assert story.state.status == "running"
    story.scored(1, 0.99, source="hospital")
    assert story.state.status == "finished"


def test_scores_are_recorded_whatever_they_finish_even_after_the_end() -> None:
    story = Story(finish={"rounds": 1}).whole_round()
    effects = story.scored(1, 0.7)
    assert effects == [fx.RecordMetrics(version=1, source="evaluator", examples=50, metrics={"accuracy": 0.7})]
    assert story.state.status == "finished"


@pytest.mark.parametrize("version", [-1, 2, 99])
def test_a_version_that_does_not_exist_cannot_be_scored(version: int) -> None:
    story = Story().whole_round()
    before = story.state
    assert refusal(story.scored(version, 0.5)) == "unknown-checkpoint"
    assert story.state is before


# ---------------------------------------------------------------- scores by devices

BY_DEVICES: dict[str, Any] = {
    "task": {"score_held_out": True},
    "finish": {"metric": "accuracy", "source": "devices", "target": 0.8, "rounds": 100},
}


def _round_with_scores(story: Story, *scores: tuple[float, int]) -> list[fx.Effect]:
    story.collecting()
    for device, (value, examples) in zip("abc", scores, strict=True):
        story.reported(device, held_out={"accuracy": value} if examples else {}, held_out_examples=examples)
    return story.committed()


def test_devices_score_the_model_they_received_by_their_held_out_examples() -> None:
    story = Story(**BY_DEVICES)
    effects = _round_with_scores(story, (0.5, 30), (0.9, 10), (0.0, 0))
    scores = only(effects, fx.RecordMetrics)
    assert (scores.version, scores.source, scores.examples) == (0, "devices", 40), "the model before the round"
    assert scores.metrics == {"accuracy": pytest.approx(0.6)}
    assert story.state.status == "running"


def test_devices_scores_can_finish_the_run() -> None:
    story = Story(**BY_DEVICES)
    _round_with_scores(story, (0.8, 10), (0.8, 10), (0.8, 10))
    assert (story.state.status, story.state.version) == ("finished", 1)
    assert "at version 0" in story.state.reason


def test_a_round_without_scores_records_none() -> None:
    story = Story(**BY_DEVICES)
    assert every(_round_with_scores(story, (0, 0), (0, 0), (0, 0)), fx.RecordMetrics) == []


def test_scores_of_an_abandoned_round_are_not_recorded() -> None:
    story = Story(**BY_DEVICES).collecting()
    story.reported("a", held_out={"accuracy": 0.9}, held_out_examples=5)
    assert every(story.tick(60), fx.RecordMetrics) == []
