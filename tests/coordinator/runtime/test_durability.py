"""What is left behind, and what is synced when, where the database or the disk fails at a given point."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.blobs import FileBlobs
from coordinator.datafolder import locked
from coordinator.store import open_store
from coordinator.store.memory import MemoryStore
from coordinator.store.port import Store, StoreError, Transaction
from tests.coordinator.world import World


class FailingStore:
    """The Store port over another. ``fails`` decides for each transaction, by the kinds of events that it appends:
    *before* nothing of it is stored, *after* all of it is, and the acknowledgement is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fails: Callable[[set[str]], str] = lambda kinds: ""
        self.open = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(self, run: str | None = None) -> Iterator[Transaction]:
        kinds: set[str] = set()
        with self._store.transaction(run) as tx:
            append = tx.append

            def noted(run: str, events: Any) -> Any:
                kinds.update(kind for _, kind, _ in events)
                return append(run, events)

            tx.append = noted  # type: ignore[method-assign]
            self.open = True
            try:
                yield tx
                how = self.fails(kinds)
                if how == "before":
                    raise StoreError("the disk reported an error")
            finally:
                self.open = False
        if how == "after":
            raise StoreError("the connection was lost during the commit")


@pytest.fixture
def store() -> FailingStore:
    return FailingStore(MemoryStore())


@pytest.fixture
def world(store: FailingStore) -> World:
    return World(8, store=store)


def housekeeping(world: World) -> None:
    """Time passes that is not enough for a deadline, and the housekeeping is due."""
    world.pass_time(31)


# ---------------------------------------------------------------- raw updates whose transaction failed


@pytest.mark.usefixtures("updates_as_files")
def test_the_bytes_of_an_update_whose_transaction_failed_are_deleted_without_a_restart(
    world: World, store: FailingStore
) -> None:
    world.create(cohort={"collect_s": 600})
    world.check_in()
    device = world.cohort()[0]
    before = set(world.blobs.digests())
    store.fails = lambda kinds: "before" if "Reported" in kinds else ""
    with pytest.raises(StoreError):
        world.report(device)
    (left,) = set(world.blobs.digests()) - before
    store.fails = lambda kinds: ""
    housekeeping(world)
    assert not world.blobs.has(left)
    assert world.report(device)[0].digest == left, "the device sends it again"
    housekeeping(world)
    assert world.blobs.has(left)


def test_the_bytes_stay_where_only_the_acknowledgement_was_lost(world: World, store: FailingStore) -> None:
    world.create()
    world.check_in()
    first, *others = world.cohort()[:3]
    store.fails = lambda kinds: "after" if "Reported" in kinds else ""
    with pytest.raises(StoreError):
        world.report(first)
    store.fails = lambda kinds: ""
    housekeeping(world)
    world.report(*others)
    world.require({1: [first, *others]})


@pytest.mark.usefixtures("updates_as_files")
def test_the_bytes_stay_until_the_database_answers_again(world: World, store: FailingStore) -> None:
    world.create()
    world.check_in()
    before = set(world.blobs.digests())
    store.fails = lambda kinds: "before" if "Reported" in kinds else ""
    with pytest.raises(StoreError):
        world.report(world.cohort()[0])
    (left,) = set(world.blobs.digests()) - before
    log = world.coordinator.core.log("marks")
    submit = log.submit

    def unreachable(*given: Any, **named: Any) -> Any:
        raise StoreError("the database was locked")

    log.submit = unreachable  # type: ignore[method-assign]
    world.pass_time(31)
    assert world.blobs.has(left), "nobody knows whether it counts"
    log.submit = submit  # type: ignore[method-assign]
    store.fails = lambda kinds: ""
    world.pass_time(31)
    assert not world.blobs.has(left)


# ---------------------------------------------------------------- discards


def test_a_discard_is_repeated_where_the_commit_lost_the_databases_acknowledgement(
    world: World, store: FailingStore
) -> None:
    world.create()
    world.check_in()
    cohort = world.cohort()[:3]
    world.report(*cohort[:2])
    lost: list[str] = []

    def once(kinds: set[str]) -> str:
        if "Committed" in kinds and not lost:
            lost.append("Committed")
            return "after"
        return ""

    store.fails = once
    with pytest.raises(StoreError):
        world.report(cohort[2])
    assert lost
    updates = [row.digest for row in world.store.contributions("marks", 1)]
    assert len(updates) == 3
    assert all(world.stored(digest) for digest in updates)
    world.play_round(2)
    assert not any(world.stored(digest) for digest in updates)


# ---------------------------------------------------------------- syncs


class Syncs:
    """Notes which folders are synced, and how many syncs happen while a transaction is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[Path] = []
        self.inside = 0
        self.store: FailingStore | None = None
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            self.paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            self.inside += self.store is not None and self.store.open
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)


@pytest.mark.usefixtures("needs_proc")
def test_each_new_folder_is_synced_into_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    data = tmp_path / "srv" / "quorate"
    with locked(data):
        assert {tmp_path, tmp_path / "srv"} <= set(syncs.paths)
        open_store(f"sqlite:///{data / 'quorate.sqlite3'}").close()
        assert data in syncs.paths, "the name of the database"
        syncs.paths.clear()
        FileBlobs(data / "blobs")
        assert {data, data / "blobs"} <= set(syncs.paths)


@pytest.mark.usefixtures("needs_proc")
def test_a_folder_that_was_there_is_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made it may have died before its name was on the disk."""
    (tmp_path / "quorate").mkdir()
    syncs = Syncs(monkeypatch)
    with locked(tmp_path / "quorate"):
        assert tmp_path in syncs.paths


def test_repro_a_folder_is_free_at_once_though_a_fork_of_its_process_ends_later(tmp_path: Path) -> None:
    """The second call of a simulation was refused while the process that had checked the first for state went away."""
    with locked(tmp_path / "quorate"):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    try:
        with locked(tmp_path / "quorate"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.usefixtures("needs_proc")
def test_a_draw_syncs_nothing_while_its_transaction_is_open(
    store: FailingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(8, store=store, blobs=FileBlobs(tmp_path / "blobs"))
    world.create()
    syncs = Syncs(monkeypatch)
    syncs.store = store
    world.check_in()
    assert len(world.cohort()) == 4
    assert len(syncs.paths) >= 2, "the list and its folder"
    assert syncs.inside == 0
    assert len(world.pool()) > 2


def leave(world: World, device: str) -> None:
    with world.store.transaction() as tx:
        tx.drop_waiting([device])


def test_a_pool_that_changes_before_the_transaction_is_written_anew(
    world: World, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device leaves between the first look and the transaction: it is neither listed nor drawn."""
    world.create()
    put, left = world.blobs.put, world.rows[0].device

    def put_late(data: bytes) -> str:
        leave(world, left)
        return put(data)

    monkeypatch.setattr(world.blobs, "put", put_late)
    world.check_in()
    assert left.encode() not in world.pool()
    assert 0 not in world.cohort()


def test_a_pool_that_always_changes_is_written_inside_the_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create()
    put, leaving = world.blobs.put, [row.device for row in world.rows[:3]]

    def put_late(data: bytes) -> str:
        if leaving:
            leave(world, leaving.pop())
        return put(data)

    monkeypatch.setattr(world.blobs, "put", put_late)
    world.check_in()
    assert world.cohort() == [3, 4, 5, 6] or len(world.cohort()) == 4
    assert not leaving
