"""A coordinator that starts again gives devices the time back that they could not use."""

from __future__ import annotations

from coordinator.engine import events as ev
from coordinator.engine.event_fields import Group
from coordinator.verify import verify
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.secure_runs import check_in, happens, says, secure_run, state, to_the_list
from tests.coordinator.world import World


def kinds(world: World, run: str) -> list[str]:
    return [row.kind for row in world.store.events(run, 0)]


def test_signatures_come_after_an_outage_and_the_log_says_why(make_world: MakeWorld) -> None:
    world = make_world(4)
    secure_run(world)
    check_in(world)
    cohort = to_the_list(world)
    world.clock.at += 300
    world.boot()
    world.settle()
    assert (state(world).phase, state(world).deadline) == ("agreeing", world.clock.at + 20)
    says(world, ev.Signed, *cohort)
    assert state(world).phase == "unmasking"
    world.boot()
    assert kinds(world, "secret").count("Recovered") == 1, "a restart that takes no time gives none back"
    assert list(verify(world.store, world.blobs)) == []


def test_restarts_give_no_exchange_more_time_than_its_attempt_has(make_world: MakeWorld) -> None:
    world = make_world(4)
    secure_run(world)
    check_in(world)
    happens(world, ev.Announced, header="00" * 32, expires_at=int(world.clock.at) + 200)
    cohort = tuple(sorted(state(world).current.members))
    says(world, ev.Advertised, *cohort)
    roster = world.blobs.put(b"a roster")
    group = Group(order=cohort, threshold=3, signers=3, fewest=3)
    happens(world, ev.Rostered, digest=roster, groups=(group,))
    says(world, ev.Shared, *cohort)
    restarts = 0
    while state(world).phase == "masking":
        world.clock.at += 15
        world.boot()
        world.settle()
        restarts += 1
    assert (restarts, state(world).phase, state(world).current.attempt) == (14, "collecting", 1)
    assert state(world).current.excluded == {}, "nobody is blamed for an outage"
    assert state(world).spent == ()
    assert list(verify(world.store, world.blobs)) == []


def test_a_report_counts_that_an_outage_kept_back(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create()
    world.check_in()
    drawn = world.cohort()
    world.clock.at += 70
    world.boot()
    world.settle()
    world.report(*drawn[:3])
    world.settle()
    assert world.coordinator.operators.run("marks").version == 1
    assert list(verify(world.store, world.blobs)) == []
