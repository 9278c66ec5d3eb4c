"""A commit that nobody performs is issued again, less often each time."""

from __future__ import annotations

from coordinator.engine import effects as fx
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


def lose_tasks(world: World) -> list[fx.Action]:
    """Takes every task out of the queue, as a replica that dies with it."""
    lost = []
    while (task := world.coordinator.core.take_task()) is not None:
        lost.append(task[1])
    return lost


def committing(world: World, round: int) -> None:
    """Brings a round to its commit, which is lost."""
    world.check_in()
    for number in world.cohort()[:3]:
        device = world.rows[number]
        with world.coordinator.core.blobs.spool() as spool:
            spool.write(world.body(number, round))
            world.coordinator.devices.report(device, "marks", round, 0, spool)()
    assert any(isinstance(action, fx.Commit) for action in lose_tasks(world))


def issued_at(world: World, seconds: int) -> list[int]:
    """Ticks once a second. The seconds at which the commit was issued, each time lost again."""
    began, found = world.clock.at, []
    for second in range(seconds):
        world.clock.at = began + second
        world.coordinator.tick()
        found += [second for action in lose_tasks(world) if isinstance(action, fx.Commit)]
    return found


def test_a_lost_commit_is_issued_again_after_10_20_40_seconds(world: World) -> None:
    """Two replicas would otherwise take a commit that lasts longer than 10 s from each other for ever."""
    committing(world, 1)
    assert issued_at(world, 151) == [10, 30, 70, 150]


def test_the_next_round_begins_with_10_seconds_again(make_world: MakeWorld) -> None:
    world = make_world()
    world.create(cohort={"collect_s": 1000})
    committing(world, 1)
    assert issued_at(world, 35) == [10, 30]
    world.coordinator.recover()
    world.settle()
    committing(world, 2)
    assert issued_at(world, 12) == [10]
