"""What a plan says of aggregation and retention, done by the runtime."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.protocol.devices import Work
from coordinator.runtime import devices
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World

# ---------------------------------------------------------------- aggregation as the plan says


def test_sizes_are_capped_at_enrolment_and_by_the_plan(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(aggregation={"weight_cap": 300})
    world.check_in(examples=10**6)
    assert [examples for _, examples in world.drawn()["cohort"]] == [1000] * 4, "what they enrolled with"
    assert [receipt.weight for receipt in world.report(0, 1, examples=2**31)] == [300, 300]


def test_the_cap_of_enrolment_holds_without_a_cap_of_the_plan(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    assert world.report(number, examples=2**31)[0].weight == 1000


def test_partial_work_in_the_three_modes(make_world: MakeWorld) -> None:
    half = Work(steps=2, steps_planned=4, epochs=0.5, examples_seen=50, complete=False)
    for partial, weight in (("full", 100), ("examples_seen", 50 * 1024)):
        world = make_world(4)
        world.create(aggregation={"partial": partial})
        world.check_in()
        assert world.report(0, examples=100, work=half)[0].weight == weight
    world = make_world(4)
    world.create(aggregation={"partial": "refuse"})
    world.check_in()
    with world.refuses("invalid-update", "2 of 4 steps"):
        world.report(0, examples=100, work=half)
    assert world.refusals() == [(0, "invalid-update")]
    assert len(world.report(1, examples=100)) == 1


def test_the_coordinator_clips_each_update_to_the_norm(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(aggregation={"clip_norm": 5.0}, cohort={"select": 2, "goal": 2, "quorum": 1.0})
    world.check_in()
    first, second = world.cohort()
    long, short = np.zeros(4, np.float32), np.zeros(4, np.float32)
    long[[0, 1]], short[[2, 3]] = (30.0, 40.0), (0.3, 0.4)
    world.send(first, world.body(first, delta={"marks": long}))
    world.send(second, world.body(second, delta={"marks": short}))
    assert world.checkpoint()["marks"].tolist() == pytest.approx([1.5, 2.0, 0.15, 0.2], rel=1e-6)


def test_the_servers_learning_rate_scales_the_step(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(aggregation={"server_learning_rate": 0.25})
    counted = world.play_round(1)
    assert world.checkpoint()["marks"][counted].tolist() == [np.float32(0.25) * np.float32(2 / 3)] * 3


def test_the_median_ignores_one_wild_update(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(aggregation={"rule": "median", "weighting": "equal"})
    world.check_in()
    for number, value in zip(world.cohort()[:3], (1.0, 60_000.0, 2.0), strict=True):
        world.send(number, world.body(number, delta={"marks": np.full(4, value, np.float32)}))
    assert world.checkpoint()["marks"].tolist() == [2.0] * 4


def test_what_is_not_averaged_stays_bit_for_bit(make_world: MakeWorld) -> None:
    world = make_world(4)
    rng = np.random.default_rng(1)
    model = {
        "marks": np.zeros(4, np.float32),
        "body.weight": rng.normal(size=(3, 5)).astype(np.float32),
        "body.count": np.array([1, 2**62], np.int64),
        "body.seen": np.array([True, False]),
        "body.half": rng.normal(size=7).astype(np.float16),
    }
    world.create(model, task={"averaged": ["marks"]})
    counted = world.play_round(1)
    after = world.checkpoint()
    assert set(after) == set(model)
    for name in set(model) - {"marks"}:
        assert after[name].tobytes() == model[name].tobytes()
        assert after[name].dtype == model[name].dtype
    assert np.flatnonzero(after["marks"]).tolist() == sorted(counted)


def test_a_device_that_sends_what_is_not_averaged_is_refused(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create({**world.model(), "body": np.ones(2, np.float32)}, task={"averaged": ["marks"]})
    world.check_in()
    delta = {"marks": np.zeros(4, np.float32), "body": np.zeros(2, np.float32)}
    with world.refuses("invalid-update", "body"):
        world.send(0, world.body(0, delta=delta))


# ---------------------------------------------------------------- retention


@pytest.mark.parametrize(("rounds", "short"), [(0, 0), (1, 1 << 14), (2, 1 << 14), (2, 0)])
def test_raw_updates_are_kept_as_long_as_the_plan_says(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, rounds: int, short: int
) -> None:
    monkeypatch.setattr(devices, "SHORT_BYTES", short)
    world = make_world(8)
    world.create(retention={"rounds": rounds})
    kept: dict[int, list[str]] = {}
    for number in range(1, 5):
        world.play_round(number)
        kept[number] = [row.digest for row in world.store.contributions("marks", number)]
        for earlier, digests in kept.items():
            there = {world.stored(item) for item in digests}
            assert there == {earlier > number - rounds}, (earlier, number)
    assert all(world.blobs.has(row.digest) for row in world.store.checkpoints("marks"))


def test_raw_updates_of_an_abandoned_round_go_as_well(world: World) -> None:
    world.check_in()
    receipt = world.report(world.cohort()[0])[0]
    assert world.stored(receipt.digest)
    world.pass_time(60)
    assert not world.stored(receipt.digest)
