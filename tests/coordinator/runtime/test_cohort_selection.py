"""The draw of a cohort: from the list of who waits, which is stored, by a seed and the round, so it can be repeated."""

from __future__ import annotations

import json

from coordinator.engine import selection
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


def test_the_pool_is_listed_by_device_and_drawn_again_from_its_list(world: World) -> None:
    world.check_in()
    listed = [tuple(entry) for entry in json.loads(world.pool())]
    assert listed == sorted((row.device, 10) for row in world.rows)
    row = world.store.run("marks")
    assert row is not None
    again = selection.draw(listed, 4, choose="uniform", seed=row.selection_seed, round=1)
    assert sorted(world.index(device) for device in again) == world.cohort()


def test_the_draw_of_every_round_can_be_repeated_from_its_list_seed_and_round(make_world: MakeWorld) -> None:
    world = make_world()
    world.create(cohort={"pool": 8})
    row = world.store.run("marks")
    assert row is not None
    cohorts = []
    for number in (1, 2, 3):
        world.check_in()
        assert len(json.loads(world.pool())) == 8
        cohorts.append(world.cohort())
        again = selection.draw(json.loads(world.pool()), 4, choose="uniform", seed=row.selection_seed, round=number)
        assert sorted(world.index(device) for device in again) == cohorts[-1]
        world.report(*cohorts[-1][:3], round=number)
    assert any(cohort != cohorts[0] for cohort in cohorts), "one pool, but each round has its own draw"


def test_selection_by_examples_prefers_the_large(make_world: MakeWorld) -> None:
    world = make_world(8)
    world.create(
        cohort={"choose": "by_examples", "select": 2, "goal": 2, "pool": 8}, aggregation={"weighting": "equal"}
    )
    for number, row in enumerate(world.rows):
        world.coordinator.devices.check_in(row, world.message(examples=1000 if number in (3, 6) else 1))()
    world.settle()
    assert world.cohort() == [3, 6]
