"""SQLite's statements give through the driver what they give through SQLAlchemy: the same values of the same types."""

from __future__ import annotations

import inspect
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.store import open_store, sql
from coordinator.store.port import AuthorityRow, ContributionRow, Reader, RoundRow, StoreError
from coordinator.store.rows import MessageRow
from coordinator.store.sql import DatabaseConnection, SqliteConnection, SqlReads, SqlStore
from tests.coordinator.store import flower_rows as flower
from tests.coordinator.store import rows
from tests.coordinator.store.contract_messages import message

pytestmark = pytest.mark.whole


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    made = open_store(f"sqlite:///{tmp_path / 'quorate.sqlite3'}")
    assert isinstance(made, SqlStore)
    with made.transaction() as tx:
        tx.insert_run(rows.run("r1"))
        for name in ("d1", "d2"):
            tx.insert_device(rows.device(name))
        tx.append("r1", [(1.5, "Created", {"a": 1}), (2.0, "Ended", {"b": [1.25]})])
        tx.insert_messages([message("a"), message("b")])
        tx.insert_marks([rows.mark("d1"), rows.mark("d2")])
        tx.insert_contributions([rows.contribution("d1"), rows.contribution("d2")])
        tx.insert_refusals([rows.refusal("d2")])
        tx.put_round(rows.round_())
        tx.insert_audit([rows.audit("rita")])
        tx.insert_flower_run(flower.run("f1"))
        tx.put_flower_node("d1", 7, {"apps": []}, 5.5)
        for digest in ("a" * 64, "c" * 64):
            tx.put_flower_content(flower.content(digest, stored_at=-1.0))
        tx.insert_flower_messages([flower.message(1), flower.message(2)])
        tx.answer_flower_message(flower.answered(flower.message(1), reply="a" * 64))
    yield made
    made.close()


class Through(SqlReads, Reader):
    """Reads over a connection, which notes each statement."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        self.asked: list[tuple[Any, Any]] = []

    def _read(self, statement: Any, parameters: Any, /) -> Any:
        self.asked.append((statement, parameters))
        return self._connection.execute(statement, parameters).fetchall()


GIVEN: dict[str, Any] = {
    "row": RoundRow,
    "run": "r1",
    "round": 1,
    "device": "d1",
    "devices": ["d1", "d2"],
    "key_id": "key of d1",
    "key_ids": ["key of d1", "key of d2"],
    "digests": ["a" * 64, "b" * 64],
    "nodes": [7],
    "messages": ["1".zfill(64), "2".zfill(64)],
    "after": 0,
    "limit": 10,
    "ledger": "phones",
    "ledgers": ["pumps"],
    "tensors": "t" * 64,
    "kind": "Created",
    "beginning": {"a": 1},
    "digest": "a" * 64,
    "message": "1".zfill(64),
    "group_id": "1",
    "version": 0,
}
READS = sorted(name for name, found in inspect.getmembers(Reader, inspect.isfunction) if not name.startswith("_"))


def _called(reader: Any, name: str) -> Any:
    method = getattr(reader, name)
    given = {}
    for parameter in inspect.signature(method).parameters.values():
        text = parameter.name == "after" and "str" in str(parameter.annotation)
        given[parameter.name] = "" if text else GIVEN.get(parameter.name, 0)
        if parameter.name == "run" and name.startswith("flower_"):
            given["run"] = "f1"
        if parameter.name in ("runs", "among"):
            given[parameter.name] = None
    return method(**given)


@pytest.mark.parametrize("name", READS)
def test_a_read_gives_what_it_gives_through_sqlalchemy(store: SqlStore, name: str) -> None:
    with store.engine.connect() as connection:
        wanted = _called(Through(connection), name)
    ours = SqliteConnection(store.engine)
    found = _called(Through(ours), name)
    ours.close()
    assert found == wanted
    assert repr(found) == repr(wanted), "the same types"


def test_most_reads_give_rows_here(store: SqlStore) -> None:
    """Or the test above compares nothing with nothing."""
    full = [name for name in READS if _called(store, name)]
    assert len(full) > len(READS) / 2, sorted(set(READS) - set(full))


def test_an_empty_list_is_a_condition_that_nothing_meets(store: SqlStore) -> None:
    assert store.messages("r1", []) == {}
    assert store.labels([]) == {}
    assert store.waiting(0.0, []) == []


def test_a_list_of_many_is_read_in_parts(store: SqlStore) -> None:
    assert store.labels([*(f"x{number}" for number in range(1200)), "d1", "d2"]) == {"d1": "a phone", "d2": "a phone"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (rows.contribution("d4", weight=2**63), "OverflowError: Python int too large to convert to SQLite INTEGER"),
        (rows.contribution("d4", digest="\ud800"), "UnicodeEncodeError: 'utf-8' codec can't encode character"),
    ],
    ids=["more than 64 bits", "half of a surrogate pair"],
)
def test_repro_a_value_that_cannot_be_stored_takes_back_its_transaction_also_where_it_is_swallowed(
    store: SqlStore, wrong: ContributionRow, words: str
) -> None:
    """The rows before it were stored, and the error was none of the store's."""
    with pytest.raises(StoreError, match="was ignored"), store.transaction("r1") as tx:  # noqa: PT012
        with pytest.raises(StoreError) as caught:
            tx.insert_contributions([rows.contribution("d3"), wrong])
        assert str(caught.value).startswith(f"A value can't be stored, or looked for: {words}")
    assert [row.device for row in store.contributions("r1", 1)] == ["d1", "d2"]


def test_any_error_in_a_statement_takes_back_its_transaction(store: SqlStore) -> None:
    with pytest.raises(StoreError, match="was ignored"), store.transaction("r1") as tx:  # noqa: PT012
        tx.insert_contributions([rows.contribution("d3")])
        with pytest.raises(TypeError):
            tx.insert_marks(None)  # type: ignore[arg-type]
    assert [row.device for row in store.contributions("r1", 1)] == ["d1", "d2"]


def test_what_cannot_be_in_a_database_is_not_found_but_refused(store: SqlStore) -> None:
    with pytest.raises(StoreError, match="UnicodeEncodeError"):
        store.device_by_key("\ud800")
    with pytest.raises(StoreError, match="OverflowError"):
        store.rounds("r1", 2**63)


def test_a_connection_that_died_is_not_used_again(store: SqlStore) -> None:
    """It is found out by the first statement, which fails; nothing that follows does."""
    pooled = store.engine.raw_connection()
    assert pooled.driver_connection is not None
    pooled.driver_connection.close()
    pooled.close()
    died = store.engine.raw_connection()
    driver = died.driver_connection
    died.close()
    assert driver is not None
    driver.close()  # in the pool
    with pytest.raises(StoreError, match="closed database"):
        store.head("r1")
    assert store.head("r1") == 2
    with store.transaction("r1") as tx:
        assert tx.append("r1", [(3.0, "Ended", {})]).seq == 3
    assert store.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_truth_values_and_missing_ones_come_back_as_they_are(store: SqlStore) -> None:
    with store.transaction() as tx:
        for inside in (True, False):
            tx.insert_authority(AuthorityRow(authority="a", inside=inside, since=1.0))
        tx.insert_device(rows.device("d3", key_id=None, last_seen_at=None))
    assert [row.inside for row in store.authorities()] == [True, False]
    found = store.device("d3")
    assert found is not None
    assert (found.key_id, found.last_seen_at, found.left_at) == (None, None, None)


def test_threads_that_compile_the_same_statements_at_once_get_their_own_rows(store: SqlStore) -> None:
    sql._compiled.cache_clear()
    barrier, wrong = threading.Barrier(8), list[object]()

    def read(device: str) -> None:
        barrier.wait(10)
        for _ in range(50):
            found = store.device(device)
            if found is None or found.device != device:
                wrong.append(found)

    threads = [threading.Thread(target=read, args=(f"d{1 + number % 2}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_lists_of_any_length_find_the_same_rows_and_few_texts_are_compiled(store: SqlStore) -> None:
    sql._expanded.cache_clear()
    names = [f"d{number}" for number in range(1, 300)]
    for count in range(len(names)):
        found = store.labels(names[:count])
        assert sorted(found) == ["d1", "d2"][:count]
    assert sql._expanded.cache_info().currsize == 11, "0, 1, 2, 4 ... 512"
    assert sorted(store.labels(["d2", *(f"e{number}" for number in range(20_000))])) == ["d2"]


def test_errors_show_no_values(store: SqlStore) -> None:
    ours = SqliteConnection(store.engine)
    values = {"run": "r9", "digest": "0" * 64, "round": 1, "content": b"a share"}
    with pytest.raises(sqlite3.IntegrityError) as caught:
        ours.execute(sql._insert(MessageRow), [values])
    assert "a share" not in str(caught.value)
    ours.close()
    assert store.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
