"""Short updates: rows that are written in the transaction of their event, and read as blobs are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.runtime import devices
from coordinator.runtime.sweeping import sweep
from coordinator.store.memory import MemoryStore
from coordinator.store.port import MessageRow, StoreError
from coordinator.verify import verify
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.runtime.test_durability import FailingStore
from tests.coordinator.world import World


def rows(world: World) -> list[MessageRow]:
    found: list[MessageRow] = world.store._all(MessageRow)
    return found


def violations(world: World) -> list[str]:
    return [str(found) for found in verify(world.store, world.blobs)]


def spoiled(world: World, row: MessageRow) -> None:
    with world.store.transaction() as tx:
        tx.insert_messages([replace(row, content=row.content[:-1] + bytes([row.content[-1] ^ 1]))])


@pytest.mark.parametrize("when", ["before", "after"])
def test_its_bytes_are_stored_exactly_if_its_event_is(when: str) -> None:
    store = FailingStore(MemoryStore())
    world = World(8, store=store)
    world.create()
    world.check_in()
    device, blobs = world.cohort()[0], set(world.blobs.digests())
    store.fails = lambda kinds: when if "Reported" in kinds else ""
    with pytest.raises(StoreError):
        world.report(device)
    logged = [event.kind for event in store.events("marks", 0)].count("Reported")
    assert len(rows(world)) == logged == (when == "after")
    store.fails = lambda kinds: ""
    receipt = world.report(device)[0]
    assert [row.digest for row in rows(world)] == [receipt.digest]
    assert set(world.blobs.digests()) == blobs
    assert violations(world) == []


def test_a_sum_that_was_lost_is_folded_again_from_rows_to_the_same_bits(make_world: MakeWorld) -> None:
    made = []
    for restarted in (False, True):
        world = make_world()
        world.create(retention={"rounds": 1})
        world.check_in()
        first, *others = world.cohort()[:3]
        world.report(first)
        if restarted:
            world.boot()
        world.report(*others)
        made.append(world.store.checkpoints("marks")[-1].digest)
        assert world.coordinator.core.log("marks")._unfolded == {}
        assert violations(world) == []
    assert made[0] == made[1]


def test_an_update_that_is_refused_leaves_nothing(world: World) -> None:
    world.check_in()
    first = world.cohort()[0]
    receipt = world.report(first)[0]
    blobs = set(world.blobs.digests())
    with world.refuses("duplicate"):
        world.send(first, world.body(first, 1, metrics={"loss": 0.25}))
    assert [row.digest for row in rows(world)] == [receipt.digest]
    assert set(world.blobs.digests()) == blobs


def test_equal_bytes_of_two_devices_both_count(world: World) -> None:
    world.check_in()
    first, second, third = world.cohort()[:3]
    body = world.body(first)
    assert world.send(first, body).digest == world.send(second, body).digest
    assert len(rows(world)) == 1
    world.report(third)
    assert len(world.store.contributions("marks", 1)) == 3
    assert violations(world) == []


def test_a_damaged_row_is_named_before_use_and_its_device_asked_again() -> None:
    world = World(8)
    world.create(retention={"rounds": 1})
    world.check_in()
    first, *others = world.cohort()[:3]
    world.report(first)
    (row,) = rows(world)
    world.boot()
    spoiled(world, row)
    assert any("update cannot be read" in found and "damaged" in found for found in violations(world))
    world.report(others[0])
    assert [event.kind for event in world.store.events("marks", 0)].count("UpdateLost") == 1
    world.report(first, others[1])
    world.require({1: [first, *others]})
    assert violations(world) == []


def test_verify_names_bytes_that_no_event_names(world: World) -> None:
    world.play_round(1)
    with world.store.transaction() as tx:
        tx.insert_messages([MessageRow(run="marks", digest="a" * 64, round=1, content=b"a")])
    assert any("the log does not name: aaaaaaaaaaaa" in found for found in violations(world))


def test_rows_whose_deletion_a_crash_prevented_go_at_the_next_start(make_world: MakeWorld) -> None:
    world = make_world()
    world.create(retention={"rounds": 1})
    world.play_round(1)
    old = rows(world)
    world.play_round(2)
    kept = rows(world)
    assert old
    assert kept
    assert not set(old) & set(kept)
    with world.store.transaction() as tx:
        tx.insert_messages(old)
    sweep(world.boot().core)
    assert rows(world) == kept


@pytest.mark.parametrize(("longer", "is_row"), [(0, True), (1, False)])
def test_one_byte_more_is_a_blob(monkeypatch: pytest.MonkeyPatch, longer: int, is_row: bool) -> None:
    world = World(8)
    world.create()
    world.check_in()
    first, *others = world.cohort()[:3]
    body = world.body(first)
    monkeypatch.setattr(devices, "SHORT_BYTES", len(body) - longer)
    digest = world.send(first, body).digest
    assert ([row.digest for row in rows(world)] == [digest]) == is_row
    assert world.blobs.has(digest) != is_row
    world.report(*others)
    world.require({1: [first, *others]})


def test_verify_names_an_update_that_is_stored_for_another_round() -> None:
    world = World(8)
    world.create(retention={"rounds": 3})
    for number in (1, 2):
        world.play_round(number)
    assert violations(world) == []
    row = next(row for row in rows(world) if row.round == 1)
    with world.store.transaction() as tx:
        tx.insert_messages([replace(row, round=2)])
    assert any(f"the log does not name: {row.digest[:12]}" in found for found in violations(world))
