"""What every store's transactions must do: all or nothing, unseen until they end, one at a time for each run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.store.memory import MemoryStore
from coordinator.store.port import AuthorityRow, ClaimRow, Conflict, Store, StoreError, Transaction
from tests.coordinator.store import rows


def write_everything(tx: Transaction) -> None:
    """One row into every table, and a change of every row that ``rows.world`` made."""
    tx.insert_run(rows.run("new"))
    tx.append("r1", [(1.0, "opened", {})])
    tx.snapshot("r1", 1, {"state": 1})
    tx.raise_fence("r1")
    tx.insert_device(rows.device("new"))
    tx.certify_device("d1", "another key", "another certificate")
    tx.seen({"d1": {}}, 77.0)
    tx.put_waiting([rows.waiting("d1"), rows.waiting("d2")])
    tx.drop_waiting(["d3"])
    tx.put_claims([rows.claim("d1")])
    tx.drop_claims("r1", 9)
    tx.insert_checkpoint(rows.checkpoint(0))
    tx.insert_contributions([rows.contribution("d1")])
    tx.put_round(rows.round_(1))
    tx.put_round(rows.round_(9, status="committed"))
    tx.insert_refusals([rows.refusal("d1")])
    tx.insert_audit([rows.audit()])
    tx.put_metrics([rows.metric("loss")])
    tx.insert_worker(rows.worker("w1"))
    tx.put_revocations(rows.revocations("a", 1, b"list"))
    tx.insert_authority(AuthorityRow(authority="a", inside=False, since=5.5))


def before(store: Store) -> None:
    """What ``write_everything`` changes."""
    with store.transaction() as tx:
        rows.world(tx, devices=4)
        tx.put_waiting([rows.waiting("d3")])
        tx.put_claims([rows.claim("d4", round=9)])
        tx.put_round(rows.round_(9))


def written(store: Store, write: Callable[[Transaction], object]) -> None:
    with store.transaction() as tx:
        write(tx)


def everything(store: Store) -> dict[str, object]:
    """All that can be read of it."""
    return {
        "runs": store.runs(),
        "events": store.events("r1", 0),
        "devices": store.devices(),
        "workers": store.workers(),
        "revocations": store.revocations("a"),
        "authorities": store.authorities(),
        "keys": [store.device_by_key(key) for key in ("key of d1", "another key")],
        "key": store.device_by_key("key of new"),
        "waiting": store.waiting(0),
        "claims": store.claims(),
        "checkpoints": store.checkpoints("r1"),
        "served": store.runs_with_checkpoint(rows.checkpoint(0).digest),
        "contributions": store.contributions("r1", 1),
        "rounds": store.rounds("r1"),
        "refusals": store.refusals("r1", 1),
        "audit": store.audit("r1"),
        "metrics": store.metrics("r1"),
    }


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class TransactionContract:
    def test_an_exception_takes_back_everything(self, store: Store) -> None:
        before(store)
        was = everything(store)
        with pytest.raises(KeyError), store.transaction("r1") as tx:  # noqa: PT012
            write_everything(tx)
            raise KeyError("anything")
        assert everything(store) == was
        with store.transaction("r1") as tx:
            write_everything(tx)
        now = everything(store)
        assert [name for name in was if was[name] == now[name]] == [], "every part of the check above can fail"

    def test_a_conflict_takes_back_everything(self, store: Store) -> None:
        before(store)
        was = everything(store)
        with pytest.raises(Conflict), store.transaction("r1") as tx:  # noqa: PT012
            write_everything(tx)
            tx.insert_device(rows.device("d1"))
        assert everything(store) == was

    def test_a_conflict_that_is_swallowed_takes_back_everything(self, store: Store) -> None:
        before(store)
        was = everything(store)
        with pytest.raises(StoreError), store.transaction("r1") as tx:  # noqa: PT012
            write_everything(tx)
            with pytest.raises(Conflict):
                tx.insert_device(rows.device("d1"))
        assert everything(store) == was

    def test_a_transaction_reads_its_own_writes(self, store: Store) -> None:
        before(store)
        with store.transaction("r1") as tx:
            write_everything(tx)
            inside = everything(tx)  # type: ignore[arg-type]
        assert inside == everything(store)

    def test_a_reader_outside_never_sees_what_is_taken_back(self, store: Store) -> None:
        """A store may make the reader wait for the end, or show what was; never what is open."""
        before(store)
        was = everything(store)
        seen: list[object] = []
        with pytest.raises(KeyError), store.transaction("r1") as tx:  # noqa: PT012
            write_everything(tx)
            reader = in_thread(lambda: seen.append(everything(store)))
            reader.join(0.1)
            raise KeyError("anything")
        reader.join(10)
        assert seen == [was]

    def test_rows_are_put_as_another_store_has_them(self, store: Store) -> None:
        """Of whichever tables, written, changed and deleted; but those of other runs and of real devices."""
        other = MemoryStore()
        changes = other.follow()
        for write in (before, lambda source: written(source, write_everything)):
            write(other)
            with store.transaction() as tx:
                tx.put_rows("r1", changes)
            changes.clear()
        was = everything(other) | {"devices": None, "keys": None}  # real ones stay as they were
        assert everything(store) | {"devices": None, "keys": None} == was
        assert [row.link for row in store.events("r1", 0)] == [row.link for row in other.events("r1", 0)]
        assert {row.device for row in store.devices()} == {row.device for row in other.devices()}
        device, certified = store.device("d1"), other.device("d1")
        assert device is not None
        assert certified is not None
        assert (device.key_id, certified.key_id) == ("key of d1", "another key")

    def test_what_another_run_claims_is_neither_put_nor_deleted(self, store: Store) -> None:
        before(store)
        written(store, lambda tx: tx.insert_run(rows.run("r2")))
        claim = rows.claim("d4")
        assert claim.run == "r1"
        for found in (replace(claim, run="r2"), None):
            written(store, lambda tx, found=found: tx.put_rows("r2", {ClaimRow: {("d4",): found}}))  # type: ignore[misc]
            assert [(row.device, row.run) for row in store.claims()] == [("d4", "r1")]
        written(store, lambda tx: tx.put_rows("r1", {ClaimRow: {("d4",): None}}))
        assert store.claims() == []

    def test_a_lock_keeps_updates_from_being_lost(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_metrics([rows.metric("count", value=0.0)])

        def add() -> None:
            for _ in range(10):
                with store.transaction("r1") as tx:
                    old = tx.metrics("r1")[0]
                    tx.append("r1", [(0.0, "added", {})])
                    tx.put_metrics([rows.metric("count", value=old.value + 1)])

        threads = [in_thread(add) for _ in range(4)]
        for thread in threads:
            thread.join(60)
        assert store.metrics("r1")[0].value == 40.0
        assert [event.seq for event in store.events("r1", 0)] == list(range(1, 41))

    def test_the_lock_is_held_from_the_first_statement_to_the_end(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
        order: list[str] = []

        def second() -> None:
            with store.transaction("r1") as tx:
                order.append(f"second starts at {tx.head('r1')}")

        with store.transaction("r1") as tx:
            waiter = in_thread(second)
            waiter.join(0.05)
            tx.append("r1", [(0.0, "k", {})])
            order.append("first ends")
        waiter.join(10)
        assert order == ["first ends", "second starts at 1"]

    def test_two_rounds_never_claim_one_device(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, runs=2, devices=20)
            tx.put_waiting(rows.waiting(f"d{n}") for n in range(1, 21))

        def draw(run: str) -> None:
            """Until nobody waits. Where another run was first with a device, the whole draw is made again."""
            while store.waiting(0):
                with contextlib.suppress(Conflict), store.transaction(run) as tx:
                    pool = tx.waiting(0)
                    tx.put_claims([rows.claim(row.device, run=run) for row in pool[:2]])

        threads = [in_thread(lambda run=run: draw(run)) for run in ("r1", "r2")]  # type: ignore[misc]
        for thread in threads:
            thread.join(60)
        claimed = [claim.device for claim in store.claims()]
        assert len(claimed) == len(set(claimed)) == 20
        assert store.waiting(0) == []

    def test_a_second_transaction_in_the_same_thread_is_refused(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            with pytest.raises(StoreError, match="already"), store.transaction():
                pass
            tx.append("r1", [(0.0, "k", {})])
        assert store.head("r1") == 1
        with store.transaction("r1") as tx:
            assert tx.append("r1", [(0.0, "k", {})]).seq == 2

    def test_the_lock_is_free_again_after_an_exception(self, store: Store) -> None:
        for _ in range(3):
            with pytest.raises(KeyError), store.transaction("r1"):
                raise KeyError("anything")
        done: list[bool] = []

        def work() -> None:
            with store.transaction("r1"):
                done.append(True)

        in_thread(work).join(10)
        assert done == [True]
