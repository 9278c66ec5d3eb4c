"""The memory store fulfils the contract, and what it promises alone."""

from __future__ import annotations

import threading

import pytest

from coordinator.store.memory import MemoryStore
from coordinator.store.port import StoreError
from coordinator.store.rows import WaitingRow
from tests.coordinator.store import rows
from tests.coordinator.store.contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


def test_reads_do_not_wait_for_an_open_transaction() -> None:
    store = MemoryStore()
    with store.transaction() as tx:
        rows.world(tx)
    with store.transaction("r1") as tx:
        tx.insert_run(rows.run("open"))
        seen: list[object] = []
        reader = threading.Thread(target=lambda: seen.append([row.run for row in store.runs()]))
        reader.start()
        reader.join(10)
        assert seen == [["r1"]]
        assert store.run("open") is None


def test_a_lock_that_is_not_freed_is_an_error_and_no_hang() -> None:
    store = MemoryStore(lock_timeout_s=0.01)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store.transaction():
            held.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    with pytest.raises(StoreError, match="locked"), store.transaction():
        pass
    done.set()
    holder.join(10)
    with store.transaction() as tx:
        rows.world(tx)
    assert store.run("r1") is not None


def test_what_was_stored_outlives_close() -> None:
    store = MemoryStore()
    with store.transaction() as tx:
        rows.world(tx)
    store.close()
    assert store.run("r1") == rows.run("r1", created_at=1001.0)


def test_rows_are_named_by_thousands_without_a_walk_over_the_names_for_each() -> None:
    """A draw takes its devices out of the pool: each look at the whole list would cost the square of the cohort."""

    class Names(list[str]):
        def __contains__(self, name: object) -> bool:
            raise AssertionError(f"the list was searched for {name}")

    store = MemoryStore()
    named = Names(f"d{number}" for number in range(100))
    with store.transaction() as tx:
        for device in (*named, "other"):
            tx.insert_device(rows.device(device))
        tx.put_waiting([rows.waiting(device) for device in (*named, "other")])
    with store.transaction() as tx:
        tx._delete(WaitingRow, {"device in": named})
    assert [row.device for row in store.waiting(0.0)] == ["other"]
