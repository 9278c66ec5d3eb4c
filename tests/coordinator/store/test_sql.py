"""The SQL store fulfils the contract on SQLite, in a file and in memory; and what only a database promises."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.dialects import postgresql

from coordinator.store import flower, insight, open_store, port, sql
from coordinator.store.declared import TABLES, declared
from coordinator.store.gateway import Query
from coordinator.store.port import RoundRow, RunRow, Store, StoreError, StoreFull, WaitingRow
from coordinator.store.rows import MessageRow, RunNameRow
from coordinator.store.sql import SqlStore, SqlTransaction
from tests.coordinator import databases
from tests.coordinator.store import rows
from tests.coordinator.store.contract import StoreContract

TORN = Path(__file__).with_name("torn_writer.py")


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'quorate.db'}"


class TestSqliteFile(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = databases.in_file(tmp_path / "quorate.db")
        yield store
        store.close()


class TestSqliteMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with databases.in_memory() as store:
            yield store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_store(url_of(tmp_path))
    assert isinstance(store, SqlStore)
    yield store
    store.close()


def test_commits_are_durable_and_checked(store: SqlStore) -> None:
    with store.engine.connect() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "secure_delete")
        }
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 30_000,
        "secure_delete": 1,
    }


def test_readers_do_not_wait_for_a_writer(store: SqlStore) -> None:
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


def test_what_was_stored_is_there_after_reopening(store: SqlStore, tmp_path: Path) -> None:
    with store.transaction() as tx:
        rows.world(tx)
        tx.append("r1", [(1.0, "k", {"n": 1})])
    store.close()
    again = open_store(url_of(tmp_path))
    assert again.run("r1") == rows.run("r1", created_at=1001.0, seq=1)
    assert again.events("r1", 0)[0].body == {"n": 1}
    again.close()


def test_two_stores_on_one_file_wait_for_each_other(store: SqlStore, tmp_path: Path) -> None:
    """As two processes would: the lock is the database's."""
    other = open_store(url_of(tmp_path))
    with store.transaction() as tx:
        rows.world(tx)

    def add(to: Store) -> None:
        for _ in range(10):
            with to.transaction("r1") as tx:
                seq = tx.head("r1")
                assert tx.append("r1", [(0.0, "k", {"after": seq})]).seq == seq + 1

    threads = [threading.Thread(target=add, args=(each,)) for each in (store, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [event.body["after"] for event in other.events("r1", 0)] == list(range(20))
    other.close()


def test_a_database_that_stays_locked_is_an_error_and_no_hang(store: SqlStore, tmp_path: Path) -> None:
    impatient = open_store(url_of(tmp_path), lock_timeout_s=0.05)
    with store.transaction() as tx:
        rows.world(tx)
        with pytest.raises(StoreError, match="locked by another process"), impatient.transaction():
            pass
    with impatient.transaction("r1") as tx:
        assert tx.append("r1", [(0.0, "k", {})]).seq == 1
    impatient.close()


def test_threads_that_wait_too_long_for_each_other_get_an_error(tmp_path: Path) -> None:
    store = open_store(url_of(tmp_path), lock_timeout_s=0.05)
    refused: list[str] = []

    def second() -> None:
        try:
            with store.transaction():
                pass
        except StoreError as error:
            refused.append(str(error))

    with store.transaction() as tx:
        waiter = threading.Thread(target=second)
        waiter.start()
        waiter.join(10)
        rows.world(tx)
    assert refused == ["The store was locked for 0.05 s by another transaction."]
    store.close()


def test_a_full_disk_is_one_sentence_and_loses_nothing(store: SqlStore) -> None:
    with store.transaction() as tx:
        rows.world(tx)
        tx.append("r1", [(0.0, "k", {})])
    store.engine.dispose()

    def make_small(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count=60")

    event.listen(store.engine, "connect", make_small)
    with pytest.raises(StoreFull) as caught, store.transaction("r1") as tx:
        tx.append("r1", [(0.0, "k", {"text": "x" * 1_000_000})])
    assert str(caught.value) == "The database could not be written: the disk is full."
    assert [found.seq for found in store.events("r1", 0)] == [1]
    with store.transaction("r1") as tx:
        assert tx.append("r1", [(0.0, "small", {})]).seq == 2


def test_repro_nothing_more_is_written_by_a_transaction_that_the_full_disk_took_back(store: SqlStore) -> None:
    """SQLite ends the transaction itself. What was written after that, where the error was swallowed, was each a
    transaction of its own."""
    with store.transaction() as tx:
        rows.world(tx)
        tx.append("r1", [(0.0, "k", {})])
    store.engine.dispose()

    def make_small(connection: sqlite3.Connection, _record: object) -> None:
        for pragma in ("max_page_count=100", "cache_size=5"):
            connection.execute(f"PRAGMA {pragma}")

    event.listen(store.engine, "connect", make_small)
    with pytest.raises(StoreError, match="was ignored"), store.transaction("r1") as tx:  # noqa: PT012
        with pytest.raises(StoreFull):
            tx.append("r1", [(0.0, "k", {"text": "x" * 3000})] * 200)
        with pytest.raises(StoreError, match="was ignored"):
            tx.append("r1", [(0.0, "small", {})])
        with pytest.raises(StoreError, match="was ignored"):
            tx.head("r1")
    assert (store.head("r1"), [found.kind for found in store.events("r1", 0)]) == (1, ["k"])


def test_messages_that_are_dropped_are_in_no_file_of_the_database(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold shares and keys. A build of SQLite that does not overwrite by itself keeps their pages as they were,
    and the write-ahead log has them until it is emptied: at once, or where somebody reads, when that is over."""
    rng = random.Random(3)
    contents = [rng.randbytes(size) for size in (60_000, 9_000, 400)]

    def found() -> list[bool]:
        """Of each content, whether a piece of it that no two pages divide is in a file."""
        data = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("quorate.db*")))
        pieces = [[content[at : at + 16] for at in range(0, len(content), 16)] for content in contents]
        return [any(piece in data for piece in each) for each in pieces]

    messages = [
        MessageRow(run="r1", round=1, digest=f"{number:064x}", content=content)
        for number, content in enumerate(contents)
    ]
    with store.transaction() as tx:
        tx.insert_run(rows.run("r1"))
        tx.insert_messages(messages)
    assert found() == [True, True, True]
    with store.transaction("r1") as tx:
        tx.drop_messages("r1", 1)
    assert found() == [False, False, False]
    with store.transaction("r1") as tx:
        tx.insert_messages(messages)
    monkeypatch.setattr(sql, "_EMPTY_AGAIN_S", 0.0)
    with store.reading() as reader:
        assert len(reader.message_rounds("r1")) == 3
        thread = threading.Thread(target=_drop, args=(store,))
        thread.start()
        thread.join()
        assert len(reader.message_rounds("r1")) == 3
    assert found() == [True, True, True]
    with store.transaction():
        pass
    assert found() == [False, False, False]
    with store.transaction("r1") as tx:
        tx.insert_messages(messages)
    with store.transaction("r1") as tx:
        assert isinstance(tx, SqlTransaction)
        tx._connection.exec_driver_sql("PRAGMA secure_delete=OFF")
        tx.drop_messages("r1", 1)
    assert any(found()), "the control: the search finds what is in free pages"


def _drop(store: SqlStore) -> None:
    with store.transaction("r1") as tx:
        tx.drop_messages("r1", 1)


def test_what_a_process_that_died_has_dropped_is_gone_with_the_first_transaction_of_the_next(tmp_path: Path) -> None:
    store, secret = databases.in_file(tmp_path / "quorate.db"), random.Random(5).randbytes(32)
    store._empty_log = lambda connection: None  # type: ignore[method-assign]
    with store.transaction() as tx:
        tx.insert_run(rows.run("r1"))
        tx.insert_messages([MessageRow(run="r1", round=1, digest=f"{1:064x}", content=secret)])
    _drop(store)
    log = tmp_path / "quorate.db-wal"
    assert secret in log.read_bytes()
    with closing(open_store(url_of(tmp_path))) as other, other.transaction():
        pass
    assert log.read_bytes() == b""
    store.close()


def test_a_connection_is_given_back_after_every_error(store: SqlStore) -> None:
    with store.transaction() as tx:
        rows.world(tx)
    for _ in range(100):
        with pytest.raises(StoreError), store.transaction("r1") as tx:
            tx.insert_device(rows.device("d1"))
    assert store.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_every_query_compiles_for_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    found = [
        str(sql.statement_of(query).compile(dialect=dialect))
        for module in (port, insight, flower)
        for named in vars(module).values()
        for query in (named if isinstance(named, tuple) and not isinstance(named, Query) else (named,))
        if isinstance(query, Query)
    ]
    assert len(found) > 15


def test_locks_and_upserts_are_those_of_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]

    def text(statement: Any) -> str:
        return str(statement.compile(dialect=dialect))

    assert text(sql._locked(RunRow, "fence", False)).endswith("FOR UPDATE")
    assert text(sql._locked(RunNameRow, "run", True)).endswith("FOR KEY SHARE")
    waiting = text(sql._put("postgresql", WaitingRow, ("since",), None))
    assert "ON CONFLICT (device) DO UPDATE SET examples = excluded.examples" in waiting
    assert "since = excluded" not in waiting
    assert "WHERE rounds.status =" in text(sql._put("postgresql", RoundRow, (), port._still_open))


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_a_killed_process_leaves_whole_transactions_and_all_acknowledged_ones(tmp_path: Path, attempt: int) -> None:
    """Transaction n of ``torn_writer.py`` writes 7 events, 7 waiting rows and metric n, until it is killed."""
    open_store(url_of(tmp_path)).close()
    writer = subprocess.Popen(
        [sys.executable, str(TORN), url_of(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert writer.stdout is not None
    for _ in range(3 + 5 * attempt):
        assert writer.stdout.readline()
    # Between two acknowledgements the writer is inside a transaction nearly all the time.
    writer.send_signal(signal.SIGKILL)
    acknowledged = 3 + 5 * attempt + len(writer.stdout.read().splitlines())
    writer.wait(10)

    store = open_store(url_of(tmp_path))
    events = store.events("r1", 0)
    done = len(events) // 7
    assert done in (acknowledged, acknowledged + 1)
    assert [found.seq for found in events] == list(range(1, 7 * done + 1))
    assert [found.body["transaction"] for found in events] == [n for n in range(done) for _ in range(7)]
    assert store.metrics("r1")[0].value == done - 1
    assert {row.examples for row in store.waiting(0)} == {done - 1}
    assert len(store.waiting(0)) == 7
    with store.transaction("r1") as tx:
        assert tx.append("r1", [(0.0, "afterwards", {})]).seq == 7 * done + 1
    store.close()


@pytest.mark.parametrize("row", [about.row for about in TABLES.values()], ids=list(TABLES))
def test_a_list_is_ordered_by_its_statement(row: type) -> None:
    """SQLite gives most of them in order by its index; PostgreSQL gives rows as they lie, and a commit as it read
    them."""
    about = declared(row)
    for order in (about.key, (f"-{about.key[-1]}", about.names[-1])):
        text = str(sql._select(row, "", (), " ".join(order), False).compile(dialect=postgresql.dialect()))
        wanted = [f"{about.name}.{name[1:]} DESC" if name[0] == "-" else f"{about.name}.{name}" for name in order]
        assert text.partition(" ORDER BY ")[2].replace('"', "") == ", ".join(wanted)
