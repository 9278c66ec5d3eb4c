"""A run is copied as the coordinator wrote it: whole, what is new after each round, and back again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.blobs import FileBlobs, MemoryBlobs, Missing
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.settings import Settings
from coordinator.store import open_store
from coordinator.store.declared import TABLES
from coordinator.store.memory import MemoryStore
from coordinator.store.port import AuditRow, Conflict, LedgerRow, Reader, RefusalRow, Store, StoreError, Transaction
from coordinator.store.rows import MarkRow, MessageRow
from coordinator.verify import verify
from simulation.history.ledger import copy_blobs, copy_run, follow
from tests.coordinator.runtime.test_private_rounds import create
from tests.coordinator.world import World
from tests.simulation.history.runs import play, played, score


def ledger(reader: Reader, run: str = "marks") -> dict[str, Any]:
    """Every row that a store holds of a run, in every column but the numbers that each store has of its own and what
    hangs on them; and the devices of its rounds, but for what they said last: that is the fleet's."""
    names = sorted({device for item in reader.rounds(run) for device in item.body.get("cohort", ())})  # type: ignore[attr-defined]
    tables: dict[str, Any] = {
        about.name: [asdict(row) for row in reader.of_run(about.row, run)]
        for about in TABLES.values()
        if "run" in about.names
    }
    for row in (*tables["refusals"], *tables["audit"]):
        del row["number"]
    for row in tables["audit"]:
        del row["link"]
    devices = [row for row in map(reader.device, names) if row is not None]
    return tables | {"devices": [replace(row, last_seen_at=None, facts={}) for row in devices]}


@pytest.fixture(params=["memory", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = MemoryStore() if request.param == "memory" else open_store(f"sqlite:///{tmp_path / 'copy.sqlite3'}")
    yield store
    store.close()


def test_a_copy_holds_every_row_and_copying_again_changes_nothing(target: Store) -> None:
    world = played()
    device = world.rows[0].device
    with world.store.transaction("marks") as tx:  # also of tables that plain rounds leave empty
        tx.insert_marks([MarkRow(tensors="t" * 64, device=device, run="marks", round=1)])
        tx.insert_audit([AuditRow(run="marks", at=5.0, by="operator", action="advance", detail="")])
    for _ in range(2):
        copy_run(world.store, target, "marks")
        assert ledger(target) == ledger(world.store)
    empty = {name for name, rows in ledger(target).items() if not rows and not name.startswith("flower_")}
    assert empty == {"privacy_debits", "privacy_spending", "messages"}


def test_a_private_run_is_copied_with_its_named_ledger(target: Store) -> None:
    world = World()
    row = LedgerRow(ledger="phones", epsilon=20.0, delta=1e-6, created_at=5.0, created_by="k")
    with world.store.transaction() as tx:
        tx.insert_privacy_ledger(row)
    create(world, privacy={"ledger": "phones"})
    world.play_round(1)
    for _ in range(2):
        copy_run(world.store, target, "marks", blobs=(world.blobs, world.blobs))
        assert target.privacy_ledger("phones") == row
        assert ledger(target)["privacy_spending"] == ledger(world.store)["privacy_spending"] != []
        assert not [one for one in verify(target, None) if one.invariant == "ledger"]


def test_what_the_owner_did_is_copied_once(target: Store) -> None:
    world = played()
    copy_run(world.store, target, "marks")
    for detail in ("first", "second"):
        with world.store.transaction("marks") as tx:
            tx.insert_audit([AuditRow(run="marks", at=5.0, by="operator", action="advance", detail=detail)])
        copy_run(world.store, target, "marks")
    assert [row.detail for row in target.audit("marks")] == ["first", "second"]
    assert ledger(target) == ledger(world.store)


def test_shares_stay_where_they_are(target: Store) -> None:
    world = played()
    with world.store.transaction("marks") as tx:
        tx.insert_messages([MessageRow(run="marks", digest="d" * 64, round=4, content=b"share")])
    copy_run(world.store, target, "marks")
    assert target.message_rounds("marks") == {}


def test_what_a_run_has_no_more_is_deleted_in_the_copy(target: Store) -> None:
    world = played()
    copy_run(world.store, target, "marks")
    assert target.claims("marks")
    world.coordinator.operators.stop("marks")
    world.settle()
    copy_run(world.store, target, "marks")
    assert target.claims("marks") == []
    assert ledger(target) == ledger(world.store)


def followed(target: Store) -> tuple[World, Callable[[], None]]:
    """A world, and a function that brings the target up to date."""
    store = MemoryStore()
    changes = store.follow()
    return World(8, store=store), lambda: follow(target, store, "marks", changes)


def test_after_each_happening_the_copy_is_brought_up_to_date(target: Store) -> None:
    """At any moment: with a cohort at work, after refusals, scores, commits and rounds that were given up."""
    world, bring = followed(target)
    seen = 0

    def settle() -> None:
        nonlocal seen
        settled()
        bring()
        assert ledger(target) == ledger(world.store)
        seen += 1

    settled, world.settle = world.settle, settle  # type: ignore[method-assign]
    world.create()
    play(world)
    world.coordinator.operators.stop("marks")
    world.settle()
    assert seen > 10
    assert target.claims() == []
    world.check_in()
    bring()
    assert (len(world.store.waiting(0)), target.waiting(0)) == (8, [])


def test_what_could_not_be_written_is_written_the_next_time(target: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bring = followed(target)
    world.create()
    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "insert_audit", full)  # the last write of all
        with pytest.raises(StoreError, match="disk is full"):
            bring()
    assert target.runs() == []
    world.play_round(1)
    bring()
    bring()
    assert ledger(target) == ledger(world.store)


def full(*_: object) -> None:
    raise StoreError("The disk is full.")


def test_a_target_that_somebody_wrote_to_meanwhile_is_refused(target: Store) -> None:
    world, bring = followed(target)
    world.create()
    bring()
    with target.transaction("marks") as tx:
        tx.append("marks", [(5.0, "Paused", {})])
    was = ledger(target)
    world.play_round(1)
    with pytest.raises(StoreError, match="Somebody else has written to run marks"):
        bring()
    assert ledger(target) == was


def test_a_run_goes_on_from_its_copy_and_the_copy_of_a_copy_is_equal(tmp_path: Path) -> None:
    """Memory to a file, and from the file to the memory of a simulation that is resumed."""
    world = played()
    file, disk = open_store(f"sqlite:///{tmp_path / 'a.sqlite3'}"), FileBlobs(tmp_path / "blobs")
    copy_run(world.store, file, "marks", blobs=(world.blobs, disk))
    again, blobs = MemoryStore(), MemoryBlobs()
    copy_run(file, again, "marks", blobs=(disk, blobs))
    file.close()
    assert ledger(again) == ledger(world.store)
    assert list(verify(again, blobs)) == []
    world.store, world.blobs = again, blobs
    world.boot()
    world.settle()
    cohort = world.cohort()
    assert len(cohort) == 4, "round 4 was at work, and its cohort is still assigned"
    world.report(*cohort[:3], round=4)
    counted = {
        number: [world.index(row.device) for row in again.contributions("marks", number)] for number in (1, 3, 4)
    }
    assert sorted(counted[4]) == sorted(cohort[:3])
    world.require(counted)
    assert list(verify(again, blobs)) == []


def test_updates_of_the_round_under_way_are_carried_and_count(tmp_path: Path) -> None:
    world = World(8)
    world.create()
    world.check_in()
    first, *others = world.cohort()
    world.report(first)
    store, blobs = MemoryStore(), FileBlobs(tmp_path)
    copy_run(world.store, store, "marks", blobs=(world.blobs, blobs))
    world.store, world.blobs = store, blobs
    world.boot()
    world.settle()
    world.report(*others[:2])
    world.require({1: [first, *others[:2]]})


def test_updates_under_retention_are_carried_and_can_be_added_up_again(tmp_path: Path) -> None:
    world = World(8)
    world.create(retention={"rounds": 2})
    play(world)
    blobs = FileBlobs(tmp_path)
    store = MemoryStore()
    copy_run(world.store, store, "marks", blobs=(world.blobs, blobs))
    for number in (1, 3):
        counted = {row.digest for row in store.contributions("marks", number)}
        assert store.messages("marks", counted).keys() == (counted if number == 3 else set()), number
    assert list(verify(store, blobs)) == []


def test_a_score_that_is_given_again_replaces_the_old_one(target: Store) -> None:
    world = played()
    copy_run(world.store, target, "marks")
    score(world, accuracy=0.875)
    copy_run(world.store, target, "marks")
    found = {(row.version, row.source, row.name): row.value for row in target.metrics("marks")}
    assert found[2, "evaluator", "accuracy"] == 0.875
    assert ledger(target) == ledger(world.store)


def test_several_runs_share_one_target(target: Store) -> None:
    world = played()
    copy_run(world.store, target, "marks")
    world.coordinator.operators.stop("marks")
    world.create(name="other")
    world.check_in()
    for number in world.cohort()[:3]:
        world.send(number, world.body(number, run="other"), run="other")
    copy_run(world.store, target, "other")
    assert len(target.claims("other")) < 4, "in the target they still work for marks"
    copy_run(world.store, target, "marks")
    copy_run(world.store, target, "other")
    for run in ("marks", "other"):
        assert ledger(target, run) == ledger(world.store, run)


def test_nothing_is_written_when_a_checkpoints_bytes_are_gone() -> None:
    world, target = played(), MemoryStore()
    world.blobs.delete(world.store.checkpoints("marks")[1].digest)
    with pytest.raises(Missing):
        copy_run(world.store, target, "marks", blobs=(world.blobs, MemoryBlobs()))
    assert target.runs() == []


def test_another_run_of_the_same_name_is_refused() -> None:
    first, second = played(), World(8)
    second.clock.at += 1
    second.create(cohort={"select": 5, "goal": 4})
    target = MemoryStore()
    copy_run(first.store, target, "marks")
    with pytest.raises(StoreError, match="another run named marks"):
        copy_run(second.store, target, "marks")
    with pytest.raises(StoreError, match="no run 'nobody'"):
        copy_run(first.store, target, "nobody")


def test_a_run_that_went_on_in_the_target_is_refused() -> None:
    """As where a coordinator served the folder, and the simulation's memory is older."""
    world = World(8)
    world.create()
    world.play_round(1)
    target, blobs = MemoryStore(), MemoryBlobs()
    copy_run(world.store, target, "marks", blobs=(world.blobs, blobs))
    other = Coordinator(Core(target, blobs, clock=world.clock, settings=Settings()))
    other.recover()
    other.operators.pause("marks")
    with pytest.raises(StoreError, match="has gone on in the target"):
        copy_run(world.store, target, "marks")
    world.coordinator.operators.stop("marks")
    with pytest.raises(StoreError, match="has gone on in the target"):
        copy_run(world.store, target, "marks")


def test_a_conflict_that_stays_is_an_error() -> None:
    world, target = played(), MemoryStore()
    device = world.rows[0]
    with target.transaction() as tx:
        tx.insert_device(replace(device, device="dother"))
    with pytest.raises(Conflict, match="has key_id"):
        copy_run(world.store, target, "marks")
    assert target.runs() == []


def test_refusals_of_unknown_devices_are_copied(target: Store) -> None:
    """They outlive their devices."""
    world = played()
    row = RefusalRow(run="marks", round=1, device="dgone", digest=None, kind="late", reason="round 1 is over", at=1.0)
    with world.store.transaction("marks") as tx:
        tx.insert_refusals([row])
    copy_run(world.store, target, "marks")
    assert row in target.refusals("marks", 1)


def test_blobs_are_copied_once_and_checked() -> None:
    source, target = MemoryBlobs(), MemoryBlobs()
    digest = source.put(b"x" * 3_000_000)
    assert copy_blobs(source, target, [digest, None, digest]) == 1
    assert target.open(digest).read() == b"x" * 3_000_000
    assert copy_blobs(source, target, [digest]) == 0
    with pytest.raises(Missing):
        copy_blobs(source, target, ["0" * 64])
