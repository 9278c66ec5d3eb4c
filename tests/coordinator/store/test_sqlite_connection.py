"""SQLite's statements give through the driver what they give through SQLAlchemy: the same values of the same types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import CompoundSelect, Select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError, OperationalError

from coordinator.store import open_store
from coordinator.store import statements as sql
from coordinator.store.sql import SqlStore
from coordinator.store.sqlite_connection import SqliteConnection
from tests.coordinator.store import rows
from tests.coordinator.store.contract_messages import message

READS = {
    name: found for name, found in sql.all_statements("sqlite").items() if isinstance(found, Select | CompoundSelect)
}
GIVEN: dict[str, Any] = {
    "run": "r1",
    "round": 1,
    "device": "d1",
    "devices": ["d1", "d2"],
    "runs": ["r1"],
    "digests": ["a" * 64, "b" * 64],
    "kinds": ["spent", "declined"],
    "after": 0,
    "since": 0,
    "now": 0.0,
    "at": 0.0,
    "limit": 10,
    "tensors": "t" * 64,
    "kind": "Created",
    "length": 1,
    "beginning": "{",
    "version": 0,
}


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
        tx.insert_marks([rows.mark("d1"), rows.mark("d2", kind="declined")])
        tx.insert_contributions([rows.contribution("d1"), rows.contribution("d2")])
        tx.insert_refusals([rows.refusal("d2")])
        tx.put_round(rows.round_())
        tx.insert_audit([rows.audit("rita")])
    yield made
    made.close()


@pytest.mark.parametrize("name", sorted(READS))
def test_a_statement_gives_what_it_gives_through_sqlalchemy(store: SqlStore, name: str) -> None:
    statement = READS[name]
    binds = statement.compile(dialect=sqlite.dialect()).bind_names  # type: ignore[no-untyped-call]
    given = {bind: GIVEN.get(bind, "x") for one, bind in binds.items() if one.required}
    with store.engine.connect() as connection:
        wanted = [tuple(row) for row in connection.execute(statement, given)]
    ours = SqliteConnection(store.engine)
    found = [tuple(row) for row in ours.execute(statement, given).fetchall()]
    ours.close()
    assert found == wanted
    assert [[type(value) for value in row] for row in found] == [[type(value) for value in row] for row in wanted]


def test_most_statements_give_rows_here(store: SqlStore) -> None:
    """Or the test above compares nothing with nothing."""
    ours, full = SqliteConnection(store.engine), []
    for name, statement in READS.items():
        binds = statement.compile(dialect=sqlite.dialect()).bind_names  # type: ignore[no-untyped-call]
        given = {bind: GIVEN.get(bind, "x") for one, bind in binds.items() if one.required}
        if ours.execute(statement, given).fetchall():
            full.append(name)
    ours.close()
    assert len(full) > len(READS) / 2, sorted(set(READS) - set(full))


def test_an_empty_list_is_a_condition_that_nothing_meets(store: SqlStore) -> None:
    assert store.messages("r1", []) == {}
    assert store.labels([]) == {}
    ours = SqliteConnection(store.engine)
    assert not ours.execute(sql.message_statements.MESSAGES, {"run": "r1", "digests": []}).fetchall()
    ours.close()


def test_errors_are_those_of_sqlalchemy_and_show_no_values(store: SqlStore) -> None:
    ours = SqliteConnection(store.engine)
    with pytest.raises(OperationalError):
        ours.exec_driver_sql("SELECT * FROM nowhere")
    values = {"run": "r9", "digest": "0" * 64, "round": 1, "content": b"a share"}
    with pytest.raises(IntegrityError) as caught:
        ours.execute(sql.Upserts("sqlite").insert_messages, [values])
    assert "a share" not in str(caught.value)
    ours.close()
    assert store.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
