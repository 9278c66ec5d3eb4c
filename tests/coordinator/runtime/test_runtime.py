"""The runtime as devices see it: whole rounds, and repeated requests, which get the same answers."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Assignment
from coordinator.engine import events as ev
from coordinator.store.port import StoreError
from coordinator.verify import verify
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import LEARNER, World

# ---------------------------------------------------------------- whole rounds


def test_a_run_from_its_first_round_to_its_last(world: World) -> None:
    counted = {number: world.play_round(number) for number in range(1, 6)}
    view = world.coordinator.operators.run("marks")
    assert (view.status, view.reason, view.phase) == ("finished", "reached 5 rounds", "idle")
    assert (view.version, view.rounds_committed, view.rounds_wanted) == (5, 5, 5)
    world.require(counted)
    assert [(row.status, row.version) for row in world.coordinator.operators.rounds("marks")] == [
        ("committed", version) for version in range(1, 6)
    ]
    assert world.store.claims() == []


def test_repro_bytes_of_a_late_update_that_could_not_be_deleted_now_are_deleted_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the store failed in that moment they stayed until the next start."""
    world.check_in()
    *three, fourth = world.cohort()
    world.report(*three)
    world.settle()
    digest = world.blobs.put(world.body(fourth))
    log = world.coordinator.core.log("marks")
    submit, failed = log.submit, list[object]()

    def once(make: Any, **more: Any) -> Any:
        if getattr(make, "__name__", "") == "drop" and not failed:
            failed.append(make)
            raise StoreError("The database was locked.")
        return submit(make, **more)

    monkeypatch.setattr(log, "submit", once)
    with pytest.raises(StoreError):
        world.coordinator.devices._uncertain.drop_unless_counted("marks", 1, digest)
    assert world.blobs.has(digest)
    for _ in range(2):
        world.pass_time(31)
    assert failed
    assert not world.blobs.has(digest)


@pytest.mark.usefixtures("updates_as_files")
def test_repro_an_update_of_a_round_that_ends_in_the_same_transaction_is_not_deleted(make_world: MakeWorld) -> None:
    """Its round was over in the state, and who counts in it was not yet among the rows."""
    world = make_world(4)
    world.create(retention={"rounds": 2})
    world.check_in()
    first = world.cohort()[0]
    world.report(first)
    log = world.coordinator.core.log("marks")
    (digest,) = (member.digest for member in log.state.current.members.values() if member.digest)
    world.clock.at += 3600
    ends = log.enter(lambda tx, state, at: ev.Tick(at=at))
    world.coordinator.devices._uncertain.drop_unless_counted("marks", 1, digest)
    ends()
    assert world.coordinator.operators.round("marks", 1).status == "abandoned"
    assert world.blobs.has(digest)
    world.pass_time(31)
    world.pass_time(31)
    assert world.blobs.has(digest)


def test_select_4_goal_3_the_fourth_is_refused_as_late(world: World) -> None:
    world.check_in()
    first, second, third, fourth = world.cohort()
    receipts = world.report(first, second, third)
    assert [(receipt.weight, receipt.round) for receipt in receipts] == [(10, 1)] * 3
    world.require({1: [first, second, third]})
    with world.refuses("late", "round 1 is over"):
        world.report(fourth)
    assert world.refusals() == [(fourth, "late")]
    row = world.coordinator.operators.round("marks", 1)
    assert (row.funnel.selected, row.funnel.reported, row.funnel.late, row.funnel.dropped) == (4, 3, 1, 0)


def test_at_the_deadline_a_quorum_commits(world: World) -> None:
    world.check_in()
    first, second, *_ = world.cohort()
    world.report(first, second)
    world.pass_time(59)
    assert world.coordinator.operators.run("marks").phase == "collecting"
    world.pass_time(1)
    world.require({1: [first, second]})


def test_below_the_quorum_the_round_is_abandoned_and_the_acknowledged_update_is_refused(world: World) -> None:
    world.check_in()
    first, second, *_ = world.cohort()
    world.report(first)
    world.pass_time(60)
    world.require({})
    assert world.refusals() == [(first, "abandoned")]
    row = world.coordinator.operators.round("marks", 1)
    assert (row.status, row.reason) == ("abandoned", "1 of 4 devices reported by the deadline; the quorum is 2")
    outcome = world.coordinator.devices.outcome(world.rows[first].device, "marks", 1)
    assert (outcome.result, outcome.reason) == (
        "refused",
        "the round was abandoned: 1 of 4 devices reported by the deadline; the quorum is 2",
    )
    with world.refuses("late", "the round was abandoned"):
        world.report(first)
    with world.refuses("late", "round 1 is over"):
        world.report(second)
    assert {claim.round for claim in world.store.claims()} == {2}, "the waiting devices are free for the next round"


def test_a_select_deadline_draws_from_the_devices_that_wait(world: World) -> None:
    world.check_in(1, 5)
    assert world.cohort() == []
    world.pass_time(10)
    assert world.cohort() == [1, 5]
    world.report(1, 5)
    world.require({1: [1, 5]})


def test_an_unchanged_want_of_devices_is_one_round_with_a_count_and_the_last_time(world: World) -> None:
    for times in range(1, 6):
        world.pass_time(10)
        (row,) = world.store.rounds("marks")
        assert row.reason == "0 eligible devices waited; a round needs at least 2"
        (view,) = world.coordinator.operators.rounds("marks")
        assert (view.status, view.missed, view.missed_at) == ("open", times, world.clock.at)
    world.boot()
    assert world.coordinator.operators.rounds("marks")[0].missed == 5
    assert world.play_round(1)
    assert world.coordinator.operators.round("marks", 1).missed == 5
    assert list(verify(world.store, world.blobs)) == []


def test_the_same_updates_in_every_order_give_the_same_bits() -> None:
    """Values that no float sum would add alike in two orders."""
    rng = np.random.default_rng(4)
    deltas = [{"marks": (rng.normal(size=4) * 10.0**place).astype(np.float32)} for place in (-4, 0, 2, 3)]
    digests = set()
    for order in itertools.permutations(range(4)):
        world = World(4)
        world.create(cohort={"select": 4, "goal": 4, "quorum": 1.0})
        world.check_in()
        for number in order:
            world.send(number, world.body(number, delta=deltas[number], examples=number * 7 + 1))
        digests.add(world.coordinator.operators.run("marks").checkpoint)
    assert len(digests) == 1


def test_the_next_model_is_the_weighted_mean_of_the_deltas(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    for number, examples in ((first, 10), (second, 20), (third, 70)):
        world.report(number, examples=examples)
    marks = world.checkpoint()["marks"]
    assert marks[[first, second, third]].tolist() == [np.float32(0.2), np.float32(0.4), np.float32(1.4)]


# ---------------------------------------------------------------- idempotence


def test_the_same_bytes_get_the_same_receipt_at_every_later_time(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    body = world.body(first)
    receipt = world.send(first, body)
    assert world.send(first, body) == receipt, "while collecting"
    world.boot()
    assert world.send(first, body) == receipt, "after a restart"
    world.report(second, third)
    assert world.send(first, body) == receipt, "after the commit, when the raw update is gone"
    assert not world.blobs.has(receipt.digest)
    world.play_round(2)
    world.boot()
    assert world.send(first, body) == receipt, "a round later, after another restart"
    assert world.coordinator.devices.outcome(world.rows[first].device, "marks", 1).version == 1


def test_repro_a_device_that_asks_for_its_outcome_reads_the_rows_of_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All devices of a secure round ask for it at its end."""
    counted = world.play_round(1)

    def all_rows(run: str, round: int) -> None:
        raise AssertionError("the rows of all devices are read")

    monkeypatch.setattr(world.store, "contributions", all_rows)
    for number in counted:
        outcome = world.coordinator.devices.outcome(world.rows[number].device, "marks", 1)
        assert (outcome.result, outcome.version) == ("counted", 1)


def test_other_bytes_are_refused_and_the_first_count(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    receipt = world.report(first)[0]
    other = world.body(first, metrics={"loss": 0.25})
    with world.refuses("duplicate", "the first one counts"):
        world.send(first, other)
    assert world.refusals() == [(first, "duplicate")]
    assert not world.blobs.has(hashlib.sha256(other).hexdigest())
    world.report(second, third)
    with world.refuses("duplicate", "the first one counts"):
        world.send(first, other)
    assert receipt.digest in [row.digest for row in world.store.contributions("marks", 1)]


def test_checking_in_again_while_assigned_gives_the_same_assignment(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    first = world.assignment(number)
    (again,) = world.check_in(number)
    assert again == first
    world.pass_time(20)
    (later,) = world.check_in(number)
    assert isinstance(first, Assignment)
    assert isinstance(later, Assignment)
    assert first.report_within_s - later.report_within_s == pytest.approx(20)
    assert later.model_copy(update={"report_within_s": 0}) == first.model_copy(update={"report_within_s": 0})


def test_an_assignment_says_all_that_a_device_needs(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    work, view = world.assignment(number), world.coordinator.operators.run("marks")
    assert work is not None
    assert (work.run, work.round, work.attempt, work.device) == ("marks", 1, 0, world.rows[number].device)
    assert (work.checkpoint.version, work.checkpoint.digest) == (0, view.checkpoint)
    assert work.checkpoint.bytes == len(world.blobs.open(view.checkpoint).read())
    assert work.plan_digest == view.plan_digest
    assert (work.task.learner, work.partial, work.secure) == (LEARNER, "full", None)
    assert len(world.body(number)) <= work.max_update_bytes
