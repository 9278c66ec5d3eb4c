"""The fleet: which devices wait and how long, and the answers to devices without work."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from client_sdk.protocol.devices import CheckIn, Wait
from coordinator.runtime.fleet import PoolPlace
from coordinator.store import MemoryStore
from coordinator.store.port import DeviceRow
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.runtime.fragile import FragileStore, Points
from tests.coordinator.world import LEARNER, World


def waiting(world: World) -> list[int]:
    return sorted(world.index(row.device) for row in world.store.waiting(world.clock.now()))


def test_a_device_waits_for_its_hold_and_some_time_to_come_back(world: World) -> None:
    world.coordinator.devices.check_in(world.rows[0], world.message())()
    assert waiting(world) == [0]
    world.clock.at += 25 + 60 - 0.5
    assert waiting(world) == [0]
    world.clock.at += 0.5
    assert waiting(world) == []


def test_a_hold_is_capped_by_the_coordinator(world: World) -> None:
    world.coordinator.devices.check_in(world.rows[0], world.message().model_copy(update={"hold_s": 300.0}))()
    (row,) = world.store.waiting(world.clock.now())
    assert row.expires == world.clock.now() + world.settings.max_hold_s + world.settings.waiting_s


def test_checking_in_again_keeps_the_place_and_moves_the_expiry(world: World) -> None:
    world.coordinator.devices.check_in(world.rows[0], world.message())()
    since = world.clock.now()
    world.clock.at += 5
    world.coordinator.devices.check_in(world.rows[0], world.message(examples=20))()
    (row,) = world.store.waiting(world.clock.now())
    assert (row.since, row.examples, row.expires) == (since, 20, world.clock.now() + 85)


@pytest.mark.parametrize("waits", [True, False])
def test_repro_a_check_in_under_way_brings_nothing_back_of_a_device_that_has_left(world: World, waits: bool) -> None:
    """It waited in the pool until its hold ended, and what it had said of itself was stored again."""
    here = world.coordinator
    queued = here.fleet.wait(world.rows[0], world.message())
    here.identities.leave(world.rows[0])
    if waits:
        queued()
    else:
        here.fleet.seen(world.rows[0], world.message())()
    assert waiting(world) == []
    left = world.store.device(world.rows[0].device)
    assert left is not None
    assert left.facts == {}
    world.check_in(1)
    assert waiting(world) == [1]


def test_a_device_that_leaves_waits_no_more(world: World) -> None:
    world.check_in(1)
    place = world.coordinator.devices.check_in(world.rows[0], world.message())()
    assert isinstance(place, PoolPlace)
    world.coordinator.fleet.stop_waiting(place)
    world.coordinator.fleet.stop_waiting(place)
    world.coordinator.fleet.stop_waiting(PoolPlace(world.rows[5].device, place.expires))
    assert waiting(world) == [1]


def test_repro_a_device_that_has_checked_in_again_stays_when_its_old_connection_is_found_closed(world: World) -> None:
    """It was dropped from the pool, and waited for a whole hold in vain."""
    other = world.replica()
    old = world.coordinator.devices.check_in(world.rows[0], world.message())()
    world.clock.at += 0.001
    for replica in (world.coordinator, other):
        new = replica.devices.check_in(world.rows[0], world.message())()
        assert isinstance(old, PoolPlace)
        world.coordinator.fleet.stop_waiting(old)
        assert waiting(world) == [0]
        world.clock.at += 0.001
        old = new
    assert isinstance(old, PoolPlace)
    other.fleet.stop_waiting(old)
    assert waiting(world) == []


def test_expired_devices_are_not_drawn(world: World) -> None:
    world.coordinator.devices.check_in(world.rows[0], world.message())()
    world.clock.at += 1000
    world.coordinator.tick()
    world.check_in(1, 2)
    world.pass_time(10)
    assert world.cohort() == [1, 2]


def test_expired_rows_are_deleted_in_time(world: World) -> None:
    world.coordinator.devices.check_in(world.rows[0], world.message())()
    world.pass_time(1000)
    world.clock.at -= 1000
    assert waiting(world) == [], "not only hidden"


def test_a_larger_pool_is_waited_for(make_world: MakeWorld) -> None:
    world = make_world(8)
    world.create(cohort={"pool": 6})
    world.check_in(0, 1, 2, 3, 4)
    assert world.cohort() == []
    world.check_in(5)
    assert len(world.cohort()) == 4


def test_selected_devices_leave_the_pool_and_the_rest_wait_on(world: World) -> None:
    world.check_in()
    cohort = world.cohort()
    assert len(cohort) == 4
    assert waiting(world) == [number for number in range(8) if number not in cohort]


def test_check_ins_that_arrive_together_share_a_transaction() -> None:
    points = Points()
    world = World(20, store=FragileStore(MemoryStore(), points))  # type: ignore[arg-type]
    world.create(cohort={"select": 100, "goal": 100})

    def check_in(row: DeviceRow) -> None:
        world.coordinator.devices.check_in(row, world.message())()

    threads = [threading.Thread(target=check_in, args=(row,)) for row in world.rows]
    with world.store.transaction():
        points.armed = True
        for thread in threads:
            thread.start()
        queue = world.coordinator.fleet.arrivals
        while len(queue._queue) < 19:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join(30)
    assert points.names.count("after a transaction is durable") == 3
    assert waiting(world) == list(range(20))


def test_a_check_in_wakes_the_clock_once_it_is_durable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a pool that is full is seen at once."""
    signals, arrivals = world.coordinator.core.signals, world.coordinator.fleet.arrivals
    write, before = arrivals._commit, list[int]()

    def written(rows: Any) -> Any:
        before.append(signals.version("fleet"))
        return write(rows)

    monkeypatch.setattr(arrivals, "_commit", written)
    first = signals.version("fleet")
    world.check_in(2)
    world.check_in(3)
    assert before[0] == first
    assert first < before[1] < signals.version("fleet")


def test_a_check_in_is_remembered_as_the_last_word_of_a_device(world: World) -> None:
    world.clock.at += 77
    world.check_in(2)
    seen = {world.index(view.device): view.last_seen_at for view in world.coordinator.insight.fleet.devices()}
    assert seen[2] == world.clock.now()
    assert seen[3] is None


# ---------------------------------------------------------------- answers to devices without work


def test_every_refusal_has_a_window(world: World) -> None:
    (answer,) = world.check_in(0, version="7", secure_only=True)
    assert isinstance(answer, Wait)
    assert (answer.min_s, answer.max_s) == (world.settings.pace_min_s, world.settings.pace_max_s)


def test_every_run_says_its_own_reason(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.create(task={"learner": "tests:other"})
    world.create(name="big", cohort={"min_examples": 100})
    (answer,) = world.check_in(0, examples=10)
    assert answer.reason == (
        f"run marks: the plan wants the learner tests:other, which this device does not have (it offers: {LEARNER} 1); "
        "run big: the plan wants devices with at least 100 examples; this one has fewer"
    )


def test_repro_a_claim_above_the_enrolments_cap_does_not_wait_for_what_never_comes(make_world: MakeWorld) -> None:
    """It was let into the pool by its word, and never drawn by its cap."""
    world = make_world(2)
    world.create(cohort={"min_examples": 1001})
    (answer,) = world.check_in(0, examples=5000)
    assert isinstance(answer, Wait)
    assert "at least 1001 examples; this one has fewer" in answer.reason


def test_paused_runs_refuse_nobody(world: World) -> None:
    """With no running run there is no reason against a device: it waits."""
    world.coordinator.operators.pause("marks")
    assert world.check_in(0, version="7") == [None]
    answer = world.coordinator.devices.hold_over(world.rows[0].device, CheckIn(examples=5, learners={LEARNER: "1"}))
    assert answer.reason == "no run is under way; paused: marks"


def test_a_round_that_found_too_few_gives_the_reasons_of_the_others(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(task={"learner_version": "2"})
    world.check_in(0, 1, version="1")
    world.check_in(2, version="2")
    world.pass_time(10)
    view = world.coordinator.operators.round("marks", 1)
    assert (view.status, view.missed, view.missed_at) == ("open", 1, world.clock.at)
    row = world.store.round("marks", 1)
    assert row is not None
    assert row.reason == (
        "1 eligible devices waited; a round needs at least 2. "
        f"2 devices were ineligible: the plan wants {LEARNER} 2; this device has 1"
    )
    world.pass_time(1000)
    view = world.coordinator.operators.round("marks", 1)
    assert "ineligible" not in view.reason, "no device has asked since"
    assert view.missed == 2


def test_devices_that_wait_for_another_run_are_counted_in_the_reason(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(name="large", cohort={"min_examples": 100, "select_s": 10})
    world.create(name="any", cohort={"select_s": 1000, "pool": 4})
    world.check_in(0, 1, 2)
    world.pass_time(10)
    row = world.store.round("large", 1)
    assert row is not None
    assert row.reason.endswith(
        ". 3 devices were ineligible: the plan wants devices with at least 100 examples; this one has fewer"
    )
