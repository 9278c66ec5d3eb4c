"""When the coordinator looks again: soon where a deadline has passed and its work waits, never in a busy loop."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.engine import effects as fx
from coordinator.engine.state import RunState
from coordinator.runtime.fleet import Counts, Fleet
from coordinator.runtime.identities import SignedBy
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.timekeeping import Timekeeping
from coordinator.store.port import Reader
from tests.coordinator.certified import key_id
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


def test_a_draw_that_waits_for_a_thread_is_looked_after_ten_times_a_second(world: World) -> None:
    world.clock.at += 10
    for _ in range(2):
        assert world.coordinator.tick() == world.clock.at + 0.1
    task = world.coordinator.core.take_task()
    assert task is not None
    assert isinstance(task[1], fx.Draw)
    assert world.coordinator.core.take_task() is None, "it is handed out once"


def test_the_next_deadline_is_the_nearest_of_all_runs(world: World) -> None:
    assert world.coordinator.tick() == world.clock.at + 10, "select_s"
    world.create(name="others", cohort={"select_s": 4})
    assert world.coordinator.tick() == world.clock.at + 4


def test_a_run_of_another_replica_is_found_within_half_a_minute(make_world: MakeWorld) -> None:
    world = make_world()
    other = world.replica()
    world.create()
    world.clock.at += 29.5
    assert other.tick() is None
    world.clock.at += 0.5
    assert other.tick() is not None


@pytest.mark.parametrize("seconds", [3, 30])
def test_a_clock_that_falls_in_the_middle_of_a_round_takes_the_deadline_along(world: World, seconds: int) -> None:
    """Also by less than two replicas may differ, and by less than has passed of the round."""
    world.check_in()
    world.pass_time(40)
    world.clock.at -= seconds
    assert world.coordinator.tick() == world.clock.at + 20
    world.pass_time(20)
    assert world.coordinator.operators.round("marks", 1).status == "abandoned"


def test_repro_what_was_read_before_the_clock_was_set_back_counts_no_longer_than_else(world: World) -> None:
    """Rows that another replica had changed counted as they were, for as long as the clock was set back."""
    signed = SignedBy(key_id(world.keys[0]).hex(), world.clock.at)
    world.coordinator.identities.device(signed)
    with world.store.transaction() as tx:  # another replica
        tx.forget_device(world.rows[0].device, world.clock.at)
    world.clock.at -= 20
    world.coordinator.tick()
    world.clock.at += 22
    with world.refuses("unregistered", "register again"):
        world.coordinator.identities.device(signed)


def test_the_clock_of_another_replica_may_be_a_little_behind(world: World) -> None:
    world.check_in()
    other = world.replica()
    deadline = other.tick()
    world.clock.at -= 5
    behind = world.replica()
    assert behind.tick() == deadline, "5 s"
    world.clock.at -= 0.5
    assert world.replica().tick() == world.clock.at + 60, "a clock that fell while the coordinator was down"


def test_a_pool_that_takes_long_to_count_is_not_counted_at_each_check_in(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who fills it is not forgotten: the coordinator looks again as soon as it counts again."""
    world = make_world(4)
    world.create()
    world.settle()
    pool = world.coordinator.core.process.pool
    plain, counted = pool.by_offer, []

    def slowly(reader: Reader, now: float) -> dict[str, int]:
        counted.append(now)
        world.clock.at += 0.05
        return plain(reader, now)

    monkeypatch.setattr(pool, "by_offer", slowly)
    message = world.message()
    for row in world.rows:
        world.coordinator.devices.check_in(row, message)()
        again = world.coordinator.tick()
    assert len(counted) == 1, "half a second long"
    assert again == pytest.approx(world.clock.at + 0.5)
    assert world.coordinator.core.take_task() is None
    world.clock.at = again
    world.coordinator.tick()
    task = world.coordinator.core.take_task()
    assert task is not None
    assert isinstance(task[1], fx.Draw)


def test_a_pool_of_many_different_offers_is_not_looked_through_at_each_check_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device may have a policy of its own, and whom a run can use is looked at offer by offer."""
    world.settle()
    plain, looked = Fleet._count_eligible, list[int]()

    def slowly(self: Fleet, state: RunState, counts: Counts) -> int:
        looked.append(len(counts.by_offer))
        world.clock.at += 0.05
        return plain(self, state, counts)

    monkeypatch.setattr(Fleet, "_count_eligible", slowly)
    for epochs, row in enumerate(world.rows, 1):
        world.coordinator.devices.check_in(row, world.message(max_epochs=epochs))()
        again = world.coordinator.tick()
    assert looked == [1]
    assert again == pytest.approx(world.clock.at + 0.5)
    assert world.coordinator.core.take_task() is None
    world.clock.at = again
    world.coordinator.tick()
    assert looked == [1, len(world.rows)]
    task = world.coordinator.core.take_task()
    assert task is not None
    assert isinstance(task[1], fx.Draw), "who fills the pool is not forgotten"


def test_runs_that_have_ended_are_looked_at_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except where an error of theirs was noted, which is over then."""
    for name in ("first", "second"):
        world.create(name=name)
        world.coordinator.operators.stop(name)
    core, handle, handled = world.coordinator.core, Timekeeping._handle, list[str]()

    def noting(self: Timekeeping, log: RunLog, *more: Any) -> list[float]:
        handled.append(log.run)
        return handle(self, log, *more)

    monkeypatch.setattr(Timekeeping, "_handle", noting)
    for looked, left in ((["marks", "second"], {}), (["marks"], {}), (["marks"], {})):
        if "second" in looked:
            core.process.run_errors.note("second", ValueError("it could not be shown"))
        handled.clear()
        world.coordinator.tick()
        assert (handled, core.process.run_errors.all()) == (looked, left)
    assert [state.run for state in core.states()] == ["marks"]
    assert [log.run for log in core.logs()] == ["marks", "first", "second"]
    world.create(name="third")
    assert [state.run for state in core.states()] == ["marks", "third"]
