"""Who takes part in a run of a coordinator: all registered devices, those of the run for who sees no more."""

from __future__ import annotations

import pytest

from client_sdk.protocol.participation import RunParticipation
from coordinator.runtime.insight import participation as module
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


def shown(world: World, *, fleet: bool = True, skip: int = 0, limit: int = 100) -> RunParticipation:
    return world.coordinator.insight.participation.of_run("marks", skip, limit, fleet=fleet)


def play(world: World, round: int) -> list[int]:
    """A round of four: three report, and the last one comes late. Returns their numbers."""
    world.check_in()
    cohort = world.cohort()
    for number in cohort[:3]:
        world.report(number, round=round)
    world.settle()
    with world.refuses("late", "."):
        world.send(cohort[3], world.body(cohort[3], round), round)
    return cohort


def test_each_device_is_told_from_the_log_and_again_after_a_restart(make_world: MakeWorld) -> None:
    world = make_world()
    world.create()
    world.clock.at += 5
    cohort = play(world, 1)
    found = shown(world)
    assert (found.devices, found.never_counted, found.from_round, found.lateness) == (8, 5, 1, "")
    told = {world.index(one.device): (one.selected, one.reported, one.counted, one.late) for one in found.page}
    expected = dict.fromkeys(range(8), (0, 0, 0, 0)) | dict.fromkeys(cohort[:3], (1, 1, 1, 0))
    assert told == expected | {cohort[3]: (1, 0, 0, 1)}
    (one,) = found.by_class
    assert (one.device_class, one.devices, one.never_counted, one.missed) == ("no class", 8, 5, 1)
    world.boot()
    assert shown(world) == found
    play(world, 2)
    assert sum(one.selected for one in shown(world).page) == 8, "a round more is read"
    world.check_in()
    assert sum(one.selected for one in shown(world).page) == 8, "a round under way is left out"


def test_pages_and_who_does_not_see_the_fleet(world: World) -> None:
    cohort = play(world, 1)
    whole = shown(world)
    assert [one.counted for one in whole.page] == [0] * 5 + [1] * 3, "the least counted first"
    assert whole.page[0].late == 1
    assert shown(world, skip=2, limit=3).page == whole.page[2:5]
    few = shown(world, fleet=False)
    assert {world.index(one.device) for one in few.page} == set(cohort)
    assert few.devices == 4


def test_only_the_last_rounds_are_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUNDS", 2)  # the round under way and the one before
    play(world, 1)
    play(world, 2)
    found = shown(world)
    assert found.from_round == 2
    assert sum(one.selected for one in found.page) == 4
