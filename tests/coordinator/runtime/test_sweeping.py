"""What a coordinator that died left behind is deleted before the next one serves; what anything refers to stays."""

from __future__ import annotations

import pytest

from client_sdk.protocol.problems import ProblemError
from coordinator.runtime.sweeping import sweep
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


def test_an_update_without_its_event_goes_and_all_that_is_referred_to_stays(make_world: MakeWorld) -> None:
    world = make_world()
    world.create(retention={"rounds": 1})
    world.play_round(1)
    world.check_in()
    reporter = world.cohort()[0]
    world.report(reporter, round=2)
    before = set(world.blobs.digests())
    orphan = world.blobs.put(world.body(7, 2))
    assert sweep(world.boot().core) == 1
    assert set(world.blobs.digests()) == before
    assert not world.blobs.has(orphan)
    # The run goes on as if nothing had been: the update that was acknowledged still counts.
    world.settle()
    world.report(*world.cohort()[:2], round=2)
    assert world.coordinator.operators.run("marks").version == 2
    assert reporter in [world.index(row.device) for row in world.store.contributions("marks", 2)]


def test_without_retention_no_raw_update_outlives_its_round(world: World) -> None:
    world.play_round(1)
    sent = [row.digest for row in world.store.contributions("marks", 1)]
    assert sent
    assert not any(world.blobs.has(digest) for digest in sent)
    world.blobs.put(world.body(0, 1))
    sweep(world.boot().core)
    assert not any(world.blobs.has(digest) for digest in sent)
    assert world.checkpoint()["marks"].any()


def test_a_selected_device_that_sends_nothing_is_dropped_and_an_unknown_one_is_refused(world: World) -> None:
    counted = world.play_round(1)
    body = world.store.round("marks", 1).body  # type: ignore[union-attr]
    selected = {world.index(device) for device in body["cohort"]}  # type: ignore[attr-defined]
    silent = next(iter(selected - set(counted)))
    stranger = next(number for number in range(world.size) if number not in selected)
    assert world.coordinator.devices.outcome(world.rows[silent].device, "marks", 1).result == "dropped"
    assert world.coordinator.devices.outcome(world.rows[stranger].device, "marks", 1).result == "unknown"
    for number, kind in ((silent, "late"), (stranger, "not-selected")):
        with pytest.raises(ProblemError) as refused:
            world.send(number, world.body(number, 1), 1)
        assert refused.value.kind == kind
    funnel = world.coordinator.operators.round("marks", 1).funnel
    assert (funnel.selected, funnel.reported, funnel.late, funnel.dropped) == (4, 3, 1, 0)


@pytest.mark.usefixtures("updates_as_files")
def test_an_acknowledged_update_whose_file_is_lost_is_asked_for_again_and_abandons_the_round(world: World) -> None:
    world.check_in()
    cohort = world.cohort()
    world.report(*cohort[:2])
    lost = str(world.coordinator.core.state("marks").current.members[world.rows[cohort[0]].device].digest)
    world.boot()  # the running sum is gone too
    world.blobs.delete(lost)
    world.settle()
    assert world.cohort()[0] == cohort[0], "the device has its assignment again"
    world.report(cohort[2])
    world.pass_time(61)
    row = world.coordinator.operators.round("marks", 1)
    assert row.status == "abandoned"
    assert f"gone: blob {lost}" in row.reason
    assert {refusal.digest for refusal in world.store.refusals("marks", 1) if refusal.kind == "abandoned"} >= {lost}


@pytest.mark.usefixtures("updates_as_files")
def test_repro_bytes_whose_refusal_was_recorded_and_whose_deletion_was_not_reached_go_at_the_next_start(
    world: World,
) -> None:
    """Found by the fault explorer: the coordinator died between the refusal and the deletion, in a round still open."""
    world.check_in()
    first = world.cohort()[0]
    world.report(first)
    other = world.body(first, 1, metrics={"loss": 0.25})
    with world.refuses("duplicate"):
        world.send(first, other)
    digest = world.blobs.put(other)  # as if the deletion had not been reached
    assert digest in {row.digest for row in world.store.refusals("marks", 1)}
    assert sweep(world.boot().core) == 1
    assert not world.blobs.has(digest)
    assert world.blobs.has(str(world.coordinator.core.state("marks").current.members[world.rows[first].device].digest))


def test_a_start_deletes_raw_updates_as_soon_as_the_plan_says_and_no_sooner(make_world: MakeWorld) -> None:
    """After a start they were kept one round longer than the plan says."""
    world = make_world(4)
    world.create(retention={"rounds": 1})
    counted = {number: world.play_round(number) for number in (1, 2, 3)}
    bodies = {number: [world.body(device, number) for device in found] for number, found in counted.items()}
    digests = {number: {world.blobs.put(body) for body in found} for number, found in bodies.items()}
    world.boot()
    sweep(world.coordinator.core)
    kept = {number: [world.blobs.has(digest) for digest in found] for number, found in digests.items()}
    assert kept == {1: [False] * 3, 2: [False] * 3, 3: [True] * 3}


def test_a_receipt_that_is_sent_again_names_the_same_event(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create()
    world.check_in()
    first, second, *_ = world.cohort()
    (receipt,) = world.report(first)
    (other,) = world.report(second)
    assert receipt.logged is not None
    assert world.report(first) == [receipt]
    assert world.report(second) == [other]
    world.boot()
    assert world.report(first)[0].logged == receipt.logged


def test_repro_a_receipt_names_its_event_where_the_run_was_resumed_after_it_and_the_process_is_new(
    make_world: MakeWorld,
) -> None:
    """To resume a run whose rounds were abandoned stores its state, from which a new process reads the log on."""
    world = make_world(4)
    world.create()
    world.check_in()
    world.pass_time(600)
    world.check_in()
    first = world.cohort()[0]
    (receipt,) = world.report(first, round=2)
    before = world.store.run("marks")
    world.coordinator.operators.pause("marks")
    world.coordinator.operators.resume("marks")
    after = world.store.run("marks")
    assert before is not None
    assert after is not None
    assert receipt.logged is not None
    assert before.snapshot_seq < receipt.logged.seq < after.snapshot_seq
    world.boot()
    assert world.report(first, round=2) == [receipt]
