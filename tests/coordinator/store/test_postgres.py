"""The SQL store fulfils the contract on PostgreSQL, where it is installed; and what only several connections show."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from client_sdk.identity import DeviceKey
from coordinator.store import open_store
from coordinator.store.gateway import NoSuchValue
from coordinator.store.port import Conflict, ContributionRow, Store, StoreError
from coordinator.store.sql import SqlStore
from coordinator.store.tables import metadata
from coordinator.verify import AuditWitness, verify
from tests.coordinator.store import flower_rows, postgres, rows
from tests.coordinator.store.contract import StoreContract
from tests.coordinator.store.contract_privacy import DEBIT

PROGRAMS = postgres.programs()
pytestmark = [
    pytest.mark.service,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAMS is None, reason="no PostgreSQL here: scripts/debian.sh postgresql"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    assert PROGRAMS is not None
    with postgres.running(PROGRAMS) as server:
        yield server


@pytest.fixture(scope="module")
def template(server: postgres.Server) -> str:
    """The name of a database that is migrated, and has no rows."""
    name = server.create()
    open_store(server.url(name)).close()
    return name


class TestPostgres(StoreContract):
    @pytest.fixture
    def store(self, server: postgres.Server, template: str) -> Iterator[Store]:
        store = open_store(server.url(server.create(template)))
        yield store
        store.close()


def test_the_migrations_build_the_tables_that_the_code_expects(server: postgres.Server, template: str) -> None:
    store = open_store(server.url(server.create(template)))
    assert isinstance(store, SqlStore)
    with store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    store.close()


@pytest.mark.parametrize(
    "wrong",
    [rows.contribution("d4", weight=2**63), rows.contribution("d4", digest="\ud800"), rows.contribution("d\0")],
    ids=["more than 64 bits", "half of a surrogate pair", "zero byte"],
)
def test_a_value_that_cannot_be_stored_takes_back_its_transaction_also_where_it_is_swallowed(
    server: postgres.Server, template: str, wrong: ContributionRow
) -> None:
    store = open_store(server.url(server.create(template)))
    with store.transaction() as tx:
        rows.world(tx)
    with pytest.raises(StoreError, match="was ignored"), store.transaction("r1") as tx:
        with pytest.raises(NoSuchValue):
            tx.insert_contributions([rows.contribution("d3"), wrong])
    assert store.contributions("r1", 1) == []
    store.close()


def test_of_two_runs_of_one_name_that_are_created_at_the_same_moment_one_is_refused(
    server: postgres.Server, template: str
) -> None:
    store = open_store(server.url(server.create(template)))
    refused: list[object] = []

    def create() -> None:
        try:
            with store.transaction() as tx:
                tx.insert_flower_run(flower_rows.run("same"))
        except Conflict as error:
            refused.append(error)

    other = threading.Thread(target=create)
    with store.transaction() as tx:
        tx.insert_run(rows.run("same"))
        other.start()
        other.join(0.2)
        assert other.is_alive()
    other.join(30)
    assert len(refused) == 1
    assert store.flower_runs() == []
    assert store.run_ids() == ["same"]
    store.close()


def test_who_looks_for_room_in_a_ledger_waits_for_a_debit_under_way_also_of_another_ledger(
    server: postgres.Server, template: str
) -> None:
    store = open_store(server.url(server.create(template)))
    with store.transaction() as tx:
        rows.world(tx, runs=2)
    found: list[float] = []

    def look() -> None:
        with store.transaction("r2") as tx:
            tx.hold_privacy_ledgers()
            found.extend(row.rho for row in tx.privacy_spending(["d1"]))

    other = threading.Thread(target=look)
    with store.transaction("r1") as tx:
        tx.hold_privacy_ledgers()
        other.start()
        tx.debit_privacy(DEBIT, ["d1"])
        other.join(0.2)
        assert other.is_alive()
    other.join(30)
    assert found == [0.25]
    store.close()


def test_changes_of_the_pool_are_numbered_as_they_are_committed(server: postgres.Server, template: str) -> None:
    """Who changes the pool while another change is not committed waits, so nobody reads the later number alone."""
    store = open_store(server.url(server.create(template)))
    with store.transaction() as tx:
        rows.world(tx)
    found: list[object] = []

    def later() -> None:
        with store.transaction() as tx:
            tx.put_waiting([rows.waiting("d2")])
        found.append(store.pool_changes(0))

    other = threading.Thread(target=later)
    with store.transaction() as tx:
        tx.put_waiting([rows.waiting("d1")])
        other.start()
        other.join(0.2)
        assert (found, other.is_alive()) == ([], True)
    other.join(30)
    assert found == [(2, ["d1", "d2"])]
    with suppress(KeyError), store.transaction() as tx:
        tx.drop_waiting(["d1"])
        raise KeyError
    with store.transaction() as tx:
        tx.drop_waiting(["d2"])
    assert store.pool_changes(2) == (4, ["d2"]), "a number that was rolled back is missing, and no change is"
    store.close()


def test_replicas_that_write_the_audit_at_once_make_one_chain(server: postgres.Server, template: str) -> None:
    """Transactions of two runs and of none, with other writes before the audit's, on two stores: no one waits for ever,
    and no number is missing."""
    url, keys = server.url(server.create(template)), [DeviceKey.create(), DeviceKey.create()]
    stores = [open_store(url, audit_signer=key) for key in keys]
    with stores[0].transaction() as tx:
        rows.world(tx, runs=2)
    failures: list[BaseException] = []

    def write(store: Store, run: str | None, own: str | None) -> None:
        try:
            for number in range(20):
                with store.transaction(own) as tx:
                    if own is not None:
                        tx.append(own, [(1.0, "k", {"n": number})])
                    tx.insert_audit([rows.audit(run=run), rows.audit(run=None)])
        except BaseException as error:
            failures.append(error)

    work = [("r1", "r1"), ("r2", "r2"), (None, None), ("r1", None), ("r2", None)]
    threads = [threading.Thread(target=write, args=(store, run, own)) for store in stores for run, own in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    head = stores[0].audit_head()
    assert head is not None
    assert head.count == len(threads) * 20 * 2
    public = [key.public_hex for key in keys]
    assert [wrong for wrong in verify(stores[1], audit=AuditWitness(public)) if wrong.invariant == "audit"] == []
    (wrong, *_) = [wrong for wrong in verify(stores[1], audit=AuditWitness(public[:1])) if wrong.invariant == "audit"]
    assert "a key that was not given" in wrong.what
    for store in stores:
        store.close()
