"""Two coordinators on one store and its blobs: devices ask either, both may commit, and there is one line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from client_sdk.protocol.devices import Assignment, Receipt
from coordinator.blobs import BlobError
from coordinator.engine import effects as fx
from coordinator.folding.aggregator import NewCheckpoint
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.fleet import PoolPlace
from coordinator.store.port import FenceLost
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


class Pair:
    """``one`` and ``two``: replicas. Neither performs an action until the test calls it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.one, self.two = world.coordinator, world.replica()

    def send(self, via: Coordinator, number: int, round: int = 1) -> Receipt:
        """A device's whole request at one replica, nothing else."""
        device = self.world.rows[number]
        with via.core.blobs.spool(via.devices.update_limit(device.device, "marks", round, 0)) as spool:
            spool.write(self.world.body(number, round))
            return via.devices.report(device, "marks", round, 0, spool)()

    def perform(self, via: Coordinator, *kinds: type) -> None:
        """Performs what one replica has to do, of these kinds only (all, when none is named)."""
        left = []
        while (task := via.core.take_task()) is not None:
            if kinds and not isinstance(task[1], kinds):
                left.append(task)
            else:
                via.perform(task)
        for task in left:
            via.core.put_back(task)

    def settle(self) -> None:
        for _ in range(3):
            for replica in (self.one, self.two):
                replica.tick()
                self.perform(replica)


@pytest.fixture
def pair(world: World) -> Pair:
    return Pair(world)


def commit_of(via: Coordinator) -> fx.Commit:
    return next(action for _, action in list(via.core._tasks) if isinstance(action, fx.Commit))


def test_reports_by_either_replica_make_one_round(pair: Pair) -> None:
    world = pair.world
    world.check_in()
    first, second, third, _ = world.cohort()
    for via, number in ((pair.one, first), (pair.two, second), (pair.one, third)):
        pair.send(via, number)
    pair.settle()
    world.require({1: [first, second, third]})
    assert pair.two.operators.run("marks").checkpoint == pair.one.operators.run("marks").checkpoint


def test_the_partial_sums_of_both_lead_to_the_same_bits(make_world: MakeWorld) -> None:
    """Whichever replica closes the round refolds what the other had folded."""
    digests = set()
    for order in ("112", "121", "222", "111", "211"):
        pair = Pair(_created(make_world()))
        pair.world.check_in()
        for number, via in zip(pair.world.cohort()[:3], order, strict=True):
            replica = pair.one if via == "1" else pair.two
            pair.send(replica, number)
            pair.perform(replica, fx.Fold)
        pair.settle()
        digests.add(pair.one.operators.run("marks").checkpoint)
    assert len(digests) == 1


def _created(world: World) -> World:
    world.create()
    return world


def test_both_perform_the_same_commit_and_the_line_has_one_child(pair: Pair) -> None:
    world = pair.world
    world.check_in()
    counted = world.cohort()[:3]
    for number in counted:
        pair.send(pair.one, number)
    pair.two.recover()
    assert commit_of(pair.one) == commit_of(pair.two)
    pair.perform(pair.two)
    pair.perform(pair.one)
    world.require({1: counted})
    assert len(world.store.checkpoints("marks")) == 2


def test_a_commit_that_was_taken_over_gives_way_to_the_newer_fence(pair: Pair) -> None:
    """One has written the checkpoint and is about to commit it; Two takes the commit and finishes first."""
    world = pair.world
    world.check_in()
    counted = world.cohort()[:3]
    for number in counted:
        pair.send(pair.one, number)
    aggregator = pair.one.core.aggregator("marks")
    commit = aggregator.commit

    def overtaken(*args: object) -> NewCheckpoint:
        written = commit(*args)  # type: ignore[arg-type]
        pair.two.recover()
        pair.perform(pair.two, fx.Fold, fx.Commit)
        return written

    aggregator.commit = overtaken  # type: ignore[method-assign]
    pair.perform(pair.one)
    world.require({1: counted})
    kinds = [row.kind for row in pair.one.operators.events("marks")]
    assert kinds.count("Committed") == 1
    row = world.store.run("marks")
    assert row is not None
    assert row.fence == 2


def test_an_event_under_an_older_fence_is_refused_and_no_other_of_its_batch(pair: Pair) -> None:
    world = pair.world
    world.check_in()
    log = pair.one.core.log("marks")
    with world.store.transaction("marks") as tx:
        fence = tx.raise_fence("marks")
    with world.store.transaction("marks") as tx:
        tx.raise_fence("marks")
    with pytest.raises(FenceLost):
        log.submit(lambda tx, state, at: None, fence=fence)
    assert log.submit(lambda tx, state, at: None, fence=fence + 1) == []


def test_repro_a_commit_that_is_over_does_not_break_into_the_next_one(pair: Pair) -> None:
    """One still has round 1's commit to do. Its fence took round 2's commit from Two, and then nobody did it."""
    world = pair.world
    world.check_in()
    counted = {1: world.cohort()[:3]}
    for number in counted[1]:
        pair.send(pair.one, number)
    pair.two.recover()
    pair.perform(pair.two)
    for row in world.rows:
        pair.two.devices.check_in(row, world.message())()
    pair.two.tick()
    pair.perform(pair.two)
    counted[2] = [world.index(claim.device) for claim in world.store.claims()][:3]  # One is not asked
    for number in counted[2]:
        pair.send(pair.two, number, 2)
    aggregator = pair.two.core.aggregator("marks")
    commit = aggregator.commit

    def disturbed(*args: object) -> NewCheckpoint:
        with suppress(BlobError):
            pair.perform(pair.one, fx.Commit)
        return commit(*args)  # type: ignore[arg-type]

    aggregator.commit = disturbed  # type: ignore[method-assign]
    pair.perform(pair.two)
    world.require(counted)


def test_the_one_that_holds_the_fence_dies_and_the_other_commits(pair: Pair) -> None:
    world = pair.world
    world.check_in()
    counted = world.cohort()[:3]
    for number in counted:
        pair.send(pair.one, number)
    with world.store.transaction("marks") as tx:
        tx.raise_fence("marks")  # One began to commit; then it was gone
    pair.two.recover()
    pair.perform(pair.two)
    world.require({1: counted})


def test_the_same_update_by_both_replicas_counts_once(pair: Pair) -> None:
    world = pair.world
    world.check_in()
    first, second, third, _ = world.cohort()
    assert pair.send(pair.one, first) == pair.send(pair.two, first)
    assert pair.two.operators.round("marks", 1).funnel.reported == 1
    for number in (second, third):
        pair.send(pair.two, number)
    pair.settle()
    assert pair.send(pair.one, first) == pair.send(pair.two, first)
    world.require({1: [first, second, third]})


def test_a_device_gets_its_assignment_from_the_replica_that_did_not_draw(pair: Pair) -> None:
    world = pair.world
    for number in range(4):
        via = pair.one if number % 2 else pair.two
        message = world.message()
        assert isinstance(via.devices.check_in(world.rows[number], message)(), PoolPlace)
    pair.one.tick()
    pair.perform(pair.one)
    for number in range(4):
        device = world.rows[number].device
        here, there = pair.one.devices.assignment(device), pair.two.devices.assignment(device)
        assert isinstance(here, Assignment)
        assert here == there


ASKS: dict[str, Callable[[Pair, str], object]] = {
    "limit": lambda pair, device: pair.two.devices.update_limit(device, "marks", 1, 0),
    "started": lambda pair, device: pair.two.devices.started(device, "marks", 1, 0)(),
    "withdraw": lambda pair, device: pair.two.devices.withdraw(device, "marks", 1, 0, "moved"),
    "outcome": lambda pair, device: pair.two.devices.outcome(device, "marks", 1),
    "assignment": lambda pair, device: pair.two.devices.assignment(device),
    "round": lambda pair, device: pair.two.operators.round("marks", 1),
}


@pytest.mark.parametrize("ask", ASKS)
def test_repro_a_replica_that_has_not_read_the_draw_refuses_no_device(pair: Pair, ask: str) -> None:
    """Its own state was still selecting round 1: a selected device was refused, and dropped its work."""
    world = pair.world
    world.check_in()
    assert pair.two.core.log("marks").state.phase == "selecting"
    assert ASKS[ask](pair, world.rows[world.cohort()[0]].device) is not False
    if ask in ("limit", "assignment"):
        assert ASKS[ask](pair, world.rows[world.cohort()[0]].device) is not None


def test_repro_a_replica_that_has_not_read_the_next_round_serves_it(pair: Pair) -> None:
    world = pair.world
    counted = {1: world.play_round(1)}
    world.check_in()
    counted[2] = world.cohort()[:3]
    for number in counted[2]:
        pair.send(pair.two, number, 2)
    pair.settle()
    world.require(counted)


def test_a_run_created_at_one_is_served_by_the_other(make_world: MakeWorld) -> None:
    world = make_world()
    pair = Pair(world)
    world.create()
    assert [view.run for view in pair.two.operators.runs()] == ["marks"]
    world.check_in()
    number = world.cohort()[0]
    assert pair.two.devices.assignment(world.rows[number].device) == world.assignment(number)
    pair.send(pair.two, number)
    assert pair.one.operators.round("marks", 1).funnel.reported == 1


def test_a_deadline_is_kept_by_whichever_replica_looks(pair: Pair) -> None:
    world = pair.world
    world.check_in()
    counted = world.cohort()[:2]
    for number in counted:
        pair.send(pair.one, number)
    world.clock.at += 60
    pair.two.tick()
    pair.perform(pair.two)
    world.require({1: counted})
    pair.one.tick()
    pair.perform(pair.one)
    world.require({1: counted})


def test_an_operators_word_at_one_is_law_at_the_other(pair: Pair) -> None:
    pair.one.operators.pause("marks")
    with pair.world.refuses("conflict", "the run is paused and cannot be paused"):
        pair.two.operators.pause("marks")
    pair.two.operators.stop("marks")
    with pair.world.refuses("conflict", "the run is stopped"):
        pair.one.operators.resume("marks")


def test_replicas_draw_one_cohort_between_them(pair: Pair) -> None:
    world = pair.world
    for row in world.rows:
        pair.two.devices.check_in(row, world.message())()
    for replica in (pair.one, pair.two):
        replica.tick()
    pair.perform(pair.two)
    pair.perform(pair.one)
    assert len(world.store.claims()) == 4
    assert [row.kind for row in pair.one.operators.events("marks")] == ["Created", "Drawn"]


def test_a_device_that_reports_to_both_at_once_counts_once(make_world: MakeWorld) -> None:
    """Threads, for what only real concurrency can show."""
    pair = Pair(_created(make_world()))
    world = pair.world
    world.check_in()
    counted = world.cohort()[:3]
    failures: list[BaseException] = []
    receipts: list[Receipt] = []

    def device(number: int, via: Coordinator) -> None:
        try:
            receipts.append(pair.send(via, number))
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=device, args=(number, via)) for number in counted for via in (pair.one, pair.two) * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len(receipts) == 12
    assert len({receipt.digest for receipt in receipts}) == 3
    pair.settle()
    world.require({1: counted})
