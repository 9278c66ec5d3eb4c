"""The runtime as operators see it: pause, stop, scores, the log, what is listed."""

from __future__ import annotations

import pytest

from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import MetricReport
from client_sdk.tensors import digest
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


def test_pausing_lets_the_round_end_and_resuming_opens_the_next(world: World) -> None:
    world.check_in()
    assert world.coordinator.operators.pause("marks").status == "paused"
    counted = world.cohort()[:3]
    world.report(*counted)
    assert (world.coordinator.operators.run("marks").phase, world.coordinator.operators.run("marks").version) == (
        "idle",
        1,
    )
    world.pass_time(1000)
    assert world.coordinator.operators.run("marks").round == 1
    assert world.coordinator.operators.resume("marks").phase == "selecting"
    world.settle()
    world.require({1: counted, 2: world.play_round(2)})


def test_a_run_is_stopped_for_good(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    world.report(number)
    view = world.coordinator.operators.stop("marks")
    assert (view.status, view.reason) == ("stopped", "stopped by the operator")
    assert world.refusals() == [(number, "abandoned")]
    assert world.store.claims() == []
    for again in (
        world.coordinator.operators.stop,
        world.coordinator.operators.pause,
        world.coordinator.operators.resume,
    ):
        with world.refuses("conflict"):
            again("marks")
    assert world.check_in(1) == [None]
    world.boot()
    assert world.coordinator.operators.run("marks").status == "stopped"


def test_a_score_at_the_target_finishes_the_run(make_world: MakeWorld) -> None:
    world = make_world(8)
    world.create(finish={"metric": "accuracy", "target": 0.9})
    world.play_round(1)
    view = world.coordinator.operators.run("marks")
    report = MetricReport(version=1, digest=view.checkpoint, score=Score(examples=100, metrics={"accuracy": 0.93}))
    (row,) = world.coordinator.operators.report_metrics("marks", report)
    assert (row.version, row.name, row.value, row.examples, row.source) == (1, "accuracy", 0.93, 100, "evaluator")
    after = world.coordinator.operators.run("marks")
    assert (after.status, after.reason) == ("finished", "accuracy 0.93 reached the target 0.9 at version 1")


def test_scores_of_another_checkpoint_or_source_are_refused(world: World) -> None:
    view = world.coordinator.operators.run("marks")
    score = Score(examples=1, metrics={"accuracy": 0.5})
    with world.refuses("conflict", "was scored"):
        world.coordinator.operators.report_metrics("marks", MetricReport(version=0, digest="0" * 64, score=score))
    for version in (1, 2**31, 10**30):
        with world.refuses("unknown-checkpoint", f"no version {version}"):
            world.coordinator.operators.report_metrics(
                "marks", MetricReport(version=version, digest="0" * 64, score=score)
            )
    with world.refuses("conflict", "reserved for the scores that devices report"):
        world.coordinator.operators.report_metrics(
            "marks", MetricReport(version=0, digest=view.checkpoint, source="devices", score=score)
        )
    assert world.coordinator.operators.metrics("marks") == []


def test_devices_score_the_model_they_received(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(task={"score_held_out": True})
    world.check_in()
    for number, accuracy in zip(world.cohort()[:3], (0.5, 0.7, 0.9), strict=True):
        world.report(number, held_out=Score(examples=20, metrics={"accuracy": accuracy}))
    (row,) = world.coordinator.operators.metrics("marks")
    assert (row.version, row.source, row.name, row.examples) == (0, "devices", "accuracy", 60)
    assert row.value == pytest.approx(0.7)


def test_a_device_outweighs_no_other_by_claiming_more_held_out_examples_than_it_enrolled_with(
    make_world: MakeWorld,
) -> None:
    world = make_world(4)
    world.create(task={"score_held_out": True})
    world.check_in()
    for number, examples, accuracy in zip(world.cohort()[:3], (10**9, 1000, 1000), (0.0, 0.9, 0.9), strict=True):
        world.report(number, held_out=Score(examples=examples, metrics={"accuracy": accuracy}))
    (row,) = world.coordinator.operators.metrics("marks")
    assert row.examples == 3000, "each is capped at 1000"
    assert row.value == pytest.approx(0.6)


@pytest.mark.parametrize("examples", [2**31, 2**70])
def test_a_device_that_claims_absurdly_many_held_out_examples_cannot_stop_the_round(
    make_world: MakeWorld, examples: int
) -> None:
    world = make_world(4)
    world.create(task={"score_held_out": True})
    world.check_in()
    counted = world.cohort()[:3]
    for number in counted:
        try:
            world.report(number, held_out=Score(examples=examples, metrics={"accuracy": 1.0}))
        except ValueError:
            world.report(number)
    world.require({1: counted})


def test_a_device_with_a_huge_metric_cannot_stop_the_round(world: World) -> None:
    world.check_in()
    counted = world.cohort()[:3]
    world.report(*counted, metrics={"loss": 1.7e308})
    world.require({1: counted})
    assert world.coordinator.operators.round("marks", 1).metrics == {"loss": 1.7e308}


def test_the_log_can_be_read_from_anywhere(world: World) -> None:
    world.play_round(1)
    world.check_in()
    whole = world.coordinator.operators.events("marks")
    assert [row.seq for row in whole] == list(range(1, len(whole) + 1))
    kinds = ["Created", "Drawn", "Reported", "Reported", "Reported", "Committed", "Drawn"]
    assert [row.kind for row in whole] == kinds
    assert world.coordinator.operators.run("marks").seq == len(whole)
    paged = [row for after in range(0, len(whole), 2) for row in world.coordinator.operators.events("marks", after, 2)]
    assert paged == whole
    assert world.coordinator.operators.events("marks", whole[-1].seq) == []
    world.boot()
    assert world.coordinator.operators.events("marks", 2) == whole[2:]


def test_only_checkpoints_of_runs_are_served(world: World) -> None:
    world.check_in()
    receipt = world.report(world.cohort()[0])[0]
    for unknown in (receipt.digest, "0" * 64, "../../etc/passwd"):
        with world.refuses("unknown-checkpoint"):
            world.coordinator.operators.require_checkpoint(unknown)
    body = world.blobs.open(world.coordinator.operators.run("marks").checkpoint).read()
    assert digest(body) == world.coordinator.operators.run("marks").checkpoint


def test_checkpoints_name_their_parents(world: World) -> None:
    for number in (1, 2):
        world.play_round(number)
    line = world.coordinator.operators.checkpoints("marks")
    assert [row.version for row in line] == [0, 1, 2]
    assert [row.parent for row in line] == [None, line[0].digest, line[1].digest]
    assert [row.origin for row in line] == ["test", "round 1", "round 2"]


def test_the_line_of_checkpoints_and_the_metrics_are_paged(world: World) -> None:
    for number in (1, 2, 3):
        world.play_round(number)
    operators = world.coordinator.operators
    line = operators.checkpoints("marks")
    for row in line:
        score = Score(examples=10, metrics={"loss": 1.0 + row.version, "accuracy": 0.5})
        for source in ("one", "other"):
            operators.report_metrics(
                "marks", MetricReport(version=row.version, digest=row.digest, source=source, score=score)
            )
    assert [row for after in range(-1, 3) for row in operators.checkpoints("marks", after, 1)] == line
    assert operators.checkpoints("marks", after=1) == line[2:]
    assert operators.checkpoints("marks", after=3) == []
    whole = operators.metrics("marks")
    assert [(row.version, row.source, row.name) for row in whole if row.version == 2] == [
        (2, source, name) for source in ("one", "other") for name in ("accuracy", "loss")
    ]
    assert operators.metrics("marks", limit=1) == whole[:4], "those of a version are not divided"
    assert operators.metrics("marks", after=0, limit=5) == whole[4:12]
    assert operators.metrics("marks", after=2, limit=5) == whole[12:]
    assert operators.metrics("marks", after=3, limit=4) == []


def test_repro_whether_a_run_out_of_scope_is_there_is_not_told_by_what_comes_after_it(world: World) -> None:
    world.clock.at += 1
    world.create(name="hidden")
    for after in ("hidden", "nowhere"):
        shown = world.coordinator.operators.runs(lambda run: run == "marks", after)
        assert [view.run for view in shown] == ["marks"], after


def test_devices_are_listed_with_what_they_do(world: World) -> None:
    world.check_in(0, 1, 2, 3, 4)
    states = {world.index(view.device): view.state for view in world.coordinator.insight.fleet.devices()}
    cohort = world.cohort()
    assert {number for number, state in states.items() if state == "assigned"} == set(cohort)
    assert {number for number, state in states.items() if state == "waiting"} == set(range(5)) - set(cohort)
    first = world.coordinator.insight.fleet.devices(limit=3)
    assert [
        *first,
        *world.coordinator.insight.fleet.devices(after=first[-1].device),
    ] == world.coordinator.insight.fleet.devices()


def test_when_the_clock_falls_the_round_keeps_its_length(world: World) -> None:
    world.check_in()
    world.clock.at -= 5000
    world.settle()
    world.pass_time(59)
    assert world.coordinator.operators.run("marks").phase == "collecting"
    assert world.assignment(world.cohort()[0]).report_within_s == pytest.approx(1)  # type: ignore[union-attr]
    world.pass_time(1)
    assert world.coordinator.operators.round("marks", 1).status == "abandoned"


def test_health_reads_the_database(world: World) -> None:
    world.check_in(0)
    assert world.coordinator.healthy() == {"runs": 1, "tasks": 0, "waiting": 1}
