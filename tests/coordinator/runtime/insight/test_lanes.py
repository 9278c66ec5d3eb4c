"""A round's lanes are what its devices did, however each ended, and are read from the events of that round alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from client_sdk.protocol.insight import Lane, LanesView
from coordinator.runtime.insight.lanes import before_round, events_of_round, round_of
from coordinator.store.memory import MemoryStore
from coordinator.store.port import EventRow
from tests.coordinator.world import World


def view(world: World, round: int = 1, run: str = "marks", **more: Any) -> LanesView:
    return world.coordinator.insight.lanes.of_round(run, round, **more)


def ends(found: LanesView, world: World) -> dict[int, str]:
    return {world.index(lane.device): lane.end for lane in found.lanes}


def lane(found: LanesView, world: World, number: int) -> Lane:
    return next(lane for lane in found.lanes if world.index(lane.device) == number)


def begun(**sections: Any) -> tuple[World, list[int]]:
    """A round of eight devices, at second 5 of the world, and its cohort."""
    world = World(8)
    world.create(cohort={"select": 8, "goal": 4, "quorum": 0.5, "select_s": 10, "collect_s": 60}, **sections)
    world.clock.at += 5
    world.check_in()
    return world, world.cohort()


def test_each_device_of_a_round_ends_where_it_ended() -> None:
    world, (reporter, late, withdrawn, refused, silent, trainer, *_) = begun()
    began = world.clock.at
    assert set(ends(view(world), world).values()) == {"waiting"}
    world.clock.at += 1
    for number in (reporter, late, trainer):
        world.coordinator.devices.started(world.rows[number].device, "marks", 1, 0)()
    world.clock.at += 1
    world.coordinator.devices.withdraw(world.rows[withdrawn].device, "marks", 1, 0, "the battery is low")
    with world.refuses("invalid-update"):
        world.send(refused, world.body(refused, delta={"other": world.model()["marks"]}))
    world.clock.at += 1
    world.report(reporter)
    middle = ends(view(world), world)
    assert [middle[number] for number in (reporter, late, withdrawn, refused, silent, trainer)] == [
        "reported", "training", "withdrawn", "refused", "waiting", "training",
    ]  # fmt: skip
    world.clock.at += 60
    world.settle()
    world.clock.at += 1
    with world.refuses("late"):
        world.report(late)
    found = view(world)
    assert ends(found, world)[silent] == "dropped"
    assert ends(found, world)[trainer] == "dropped"
    assert ends(found, world)[late] == "late"
    assert found.ends == Counter(lane.end for lane in found.lanes)
    reported = lane(found, world, reporter)
    assert (reported.selected_at, reported.started_at, reported.reported_at) == (began, began + 1, began + 3)
    assert reported.ended_at == reported.reported_at
    assert reported.bytes == len(world.body(reporter))
    assert lane(found, world, withdrawn).reason == "the battery is low"
    assert lane(found, world, withdrawn).ended_at == began + 2
    assert "had not begun" in lane(found, world, silent).reason
    assert "was training" in lane(found, world, trainer).reason
    assert lane(found, world, silent).ended_at == world.coordinator.operators.round("marks", 1).closed_at


def test_the_lanes_add_up_to_the_funnel() -> None:
    world, cohort = begun()
    world.coordinator.devices.withdraw(world.rows[cohort[7]].device, "marks", 1, 0, "no")
    world.report(*cohort[:4])
    world.settle()
    funnel = world.coordinator.operators.round("marks", 1).funnel
    found = view(world)
    assert found.devices == funnel.selected == 8
    assert found.ends == {"reported": funnel.reported, "withdrawn": funnel.withdrawn, "dropped": funnel.dropped}


def test_lanes_are_paged_by_device() -> None:
    world, _ = begun()
    whole = view(world).lanes
    assert [lane.device for lane in whole] == sorted(lane.device for lane in whole)
    assert view(world, limit=3).lanes == whole[:3]
    assert view(world, after=whole[2].device, limit=3).lanes == whole[3:6]
    assert view(world, after=whole[-1].device).lanes == []


def test_a_round_that_is_followed_goes_on_where_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world, cohort = begun()
    assert view(world).ends == {"waiting": 8}
    read: list[int] = []
    events = MemoryStore.events

    def watched(self: MemoryStore, run: str, after: int, limit: int = 1000) -> Any:
        read.append(after)
        return events(self, run, after, limit)

    monkeypatch.setattr(MemoryStore, "events", watched)
    head = world.store.head("marks")
    world.coordinator.devices.started(world.rows[cohort[0]].device, "marks", 1, 0)()
    assert view(world).ends == {"waiting": 7, "training": 1}
    assert min(read) >= head, "what was read before is not read again"


def test_an_old_round_of_a_long_log_is_found_by_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(4)
    world.create(finish={"rounds": 15}, cohort={"select": 3, "goal": 3, "quorum": 0.6})
    for number in range(1, 16):
        world.play_round(number)
    assert world.coordinator.operators.run("marks").status == "finished"
    read = 0
    events = MemoryStore.events

    def counted(self: MemoryStore, run: str, after: int, limit: int = 1000) -> Any:
        nonlocal read
        found = events(self, run, after, limit)
        read += 1
        return found

    monkeypatch.setattr(MemoryStore, "events", counted)
    for number in range(1, 16):
        read = 0
        found = view(world, number)
        assert found.ends == {"reported": 3}
        assert read <= 2 + world.store.head("marks").bit_length()


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
def test_the_events_of_a_round_are_all_of_them_and_no_others(rounds: int) -> None:
    world = World(4)
    world.create(finish={"rounds": rounds}, cohort={"select": 3, "goal": 3, "quorum": 0.6})
    for number in range(1, rounds + 1):
        world.play_round(number)
        world.coordinator.operators.run("marks")
    log = world.store.events("marks", 0)
    for number in range(rounds + 2):
        expected = [row.seq for row in log if round_of(row) == number]
        assert [row.seq for row in events_of_round(world.store, "marks", number)] == expected
        seq = before_round(world.store, "marks", number)
        assert all(row.seq > seq for row in log if (round_of(row) or 0) >= number and round_of(row) is not None)


def test_the_deletion_of_an_older_round_names_no_round_under_way() -> None:
    assert round_of(EventRow(seq=9, at=1.0, kind="Discarded", body={"round": 1})) is None
    assert round_of(EventRow(seq=9, at=1.0, kind="Reported", body={"round": 4})) == 4
    assert round_of(EventRow(seq=9, at=1.0, kind="Tick", body={})) is None


def test_a_round_that_does_not_exist_is_refused() -> None:
    world, _ = begun()
    with world.refuses("unknown-round"):
        view(world, 2)
    with world.refuses("unknown-run"):
        view(world, 1, run="nobody")


def test_a_draw_that_was_too_small_has_no_lanes() -> None:
    world = World(1)
    world.create()
    world.check_in()
    world.pass_time(11)
    assert world.coordinator.operators.round("marks", 1).missed == 1
    assert view(world) == LanesView(devices=0)


def test_a_large_cohort_is_told_in_parts_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.runtime.insight.lanes.LANES_SHOWN", 7)
    world, cohort = begun()
    world.clock.at += 1
    world.coordinator.devices.started(world.rows[cohort[0]].device, "marks", 1, 0)()
    world.clock.at += 9
    world.report(*cohort[:4])
    world.settle()
    found = view(world, limit=2)
    assert len(found.lanes) == 2
    assert len(found.buckets) == 120
    assert found.buckets[0].from_at == found.lanes[0].selected_at
    assert found.buckets[-1].to_at == world.coordinator.operators.round("marks", 1).closed_at
    assert sum(part.started for part in found.buckets) == 1
    total: Counter[str] = Counter()
    for part in found.buckets:
        total.update(part.ends)
    assert total == found.ends == {"reported": 4, "dropped": 4}
