"""What every store must do with the audit: number, chain and sign the rows of all runs and of none."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from client_sdk.identity import DeviceKey
from coordinator.store import chain
from coordinator.store.chain import AuditHead
from coordinator.store.port import AuditHeadRow, Store, StoreError
from tests.coordinator.store import rows

SIGNER = DeviceKey(bytes(range(32)))


def sign_with(store: Store, key: DeviceKey | None) -> None:
    """As if the store had been opened with this key."""
    store.audit_signer = key  # type: ignore[attr-defined]


class AuditContract:
    def test_rows_of_runs_and_of_none_make_one_chain(self, store: Store) -> None:
        assert store.audit_head() == AuditHeadRow(count=0, link=chain.audit_beginning())
        with store.transaction() as tx:
            rows.world(tx, runs=2)
            tx.insert_audit([rows.audit("a", run="r2"), rows.audit("b", run=None)])
        with store.transaction("r1") as tx:
            tx.insert_audit([rows.audit("c")])
        with store.transaction() as tx:
            tx.insert_audit([])
        found = store.audit_of_all(0, 10)
        assert [(number, row.by) for number, row in found] == [(1, "a"), (2, "b"), (3, "c")]
        link = chain.audit_beginning()
        for number, row in found:
            link = chain.audit_link(link, number, row)
            assert (row.link, row.signed_by, row.signature) == (link, "", "")
        assert store.audit_head() == AuditHeadRow(count=3, link=link)
        assert [row.link for row in store.audit("r1")] == [link]

    def test_each_row_is_signed_by_the_key_that_the_store_was_opened_with(self, store: Store) -> None:
        sign_with(store, SIGNER)
        with store.transaction() as tx:
            rows.world(tx)
            tx.insert_audit([rows.audit("a"), rows.audit("b", run=None)])
        sign_with(store, DeviceKey.create())
        with store.transaction() as tx:
            tx.insert_audit([rows.audit("c", at=7)])
        heads = [AuditHead.of(number, row) for number, row in store.audit_of_all(0, 10)]
        assert [head.is_signed() for head in heads] == [True, True, True]
        assert [head.key == SIGNER.public_hex for head in heads] == [True, True, False]
        assert [AuditHead.parse(str(head)) for head in heads] == heads

    def test_links_and_signatures_of_the_audit_are_a_format(self, store: Store) -> None:
        """Golden values: a row that was written once is never chained or signed anew."""
        sign_with(store, SIGNER)
        with store.transaction() as tx:
            rows.world(tx)
            tx.insert_audit([rows.audit(), rows.audit("ü\n", run=None)])
        assert [(row.link, row.signature) for _, row in store.audit_of_all(0, 10)] == GOLDEN

    def test_what_was_rolled_back_took_no_number(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
        with suppress(KeyError), store.transaction("r1") as tx:
            tx.insert_audit([rows.audit("lost")])
            raise KeyError("anything")
        with pytest.raises(StoreError), store.transaction() as tx:
            tx.insert_audit([rows.audit("lost", run=None), rows.audit("lost", run="nowhere")])
        with store.transaction() as tx:
            tx.insert_audit([rows.audit("kept")])
        ((number, row),) = store.audit_of_all(0, 10)
        assert (number, row.by, row.link) == (1, "kept", chain.audit_link(chain.audit_beginning(), 1, row))

    def test_threads_that_write_the_audit_at_once_make_one_chain(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, runs=2)
        failures: list[BaseException] = []

        def write(run: str | None) -> None:
            try:
                for _ in range(10):
                    with store.transaction(run) as tx:
                        tx.insert_audit([rows.audit(run=run), rows.audit(run="r2")])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(run,)) for run in ("r1", "r2", None, None)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        link = chain.audit_beginning()
        found = store.audit_of_all(0, 100)
        assert [number for number, _ in found] == list(range(1, 81))
        for number, row in found:
            link = chain.audit_link(link, number, row)
            assert row.link == link


GOLDEN = [
    (
        "403b6ef2c2069830cb52968821a2128acb7696288cd920017eaabf329d06fe66",
        (
            "617baf13fac30da540f8d2b56c2a26279f6fdee5e975d20cb56e40f16cbcbed7"
            "81864bb7815aa9a8b9d388bf560b582bd53d5cac852d134bb6c797af1b2a630a"
        ),
    ),
    (
        "bf854f6af57107ea47bbfc8e3c213cae0649cb205e6297abf7b26066daa02c12",
        (
            "86aeeb457388b1fe3c4fcb23f8787d6eca343ecc902a5eadb889bf64e3ffd755"
            "c2d1ec3974c03d6fdbd5b640f576718267027904a92af0ef2382873965430a03"
        ),
    ),
]
"""(link, signature) of a row of a run and of one of none."""
