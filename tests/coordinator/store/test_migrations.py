"""Opening a database: made, migrated, or refused in one plain sentence."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect
from sqlalchemy.exc import DatabaseError

from client_sdk.credentials.revocations import sign_revocations
from client_sdk.identity import DeviceKey
from coordinator.store import StoreError, chain, open_store
from coordinator.store.connect import connect
from coordinator.store.migrate import _config, newest
from coordinator.store.port import AuditHeadRow, Conflict
from coordinator.store.sql import SqlStore
from coordinator.store.tables import metadata
from coordinator.verify import AuditWitness, verify
from tests.coordinator.store import flower_rows, rows

pytestmark = pytest.mark.whole


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'quorate.db'}"


def opened(url: str) -> SqlStore:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    return store


def test_the_migrations_build_the_tables_that_the_code_expects(tmp_path: Path) -> None:
    store = opened(url_of(tmp_path))
    with store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        migrated = _schema(connection)
    store.close()

    plain = SqlStore("sqlite://")
    with plain.engine.connect() as connection:
        metadata.create_all(connection)
        assert _schema(connection) == migrated, "word for word, also what alembic's comparison does not look at"
    plain.close()


def _schema(connection: object) -> dict[str, list[str]]:
    found = connection.exec_driver_sql(  # type: ignore[attr-defined]
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name != 'alembic_version'"
    )
    # The order of columns and constraints inside a table is nobody's business.
    # Nor are the quotes that SQLite writes around the name of a renamed table.
    plain = {name: text.replace(f'"{name}"', name) for name, text in found}
    return {name: sorted(part.strip().rstrip(", )") for part in _parts(text)) for name, text in plain.items()}


def _parts(text: str) -> list[str]:
    """The columns and constraints of a statement: a column that was added later follows on the same line."""
    between = r"\n|, (?=\w+ (?:TEXT|BIGINT|BOOLEAN))|\) (?=WITHOUT)"
    return [part for part in re.split(between, text) if part.strip(" \t,)")]


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    first = opened(url_of(tmp_path))
    with first.transaction() as tx:
        rows.world(tx)
    again = opened(url_of(tmp_path))
    assert [row.run for row in again.runs()] == ["r1"]
    with again.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == newest()
    first.close()
    again.close()


def test_several_that_open_a_new_database_at_once_migrate_once(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def start() -> None:
        try:
            open_store(url_of(tmp_path)).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_several_that_connect_to_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    """SQLite refuses to change the journal of a file that another connection changes, and does not wait."""
    failures: list[BaseException] = []

    def start(url: str, together: threading.Barrier) -> None:
        engine = connect(url, lock_timeout_s=30)
        together.wait()
        try:
            engine.connect().close()
        except BaseException as error:
            failures.append(error)
        engine.dispose()

    for k in range(40):
        url, together = f"sqlite:///{tmp_path / str(k)}", threading.Barrier(4)
        threads = [threading.Thread(target=start, args=(url, together)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failures == []


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    def fail(*_: object, **__: object) -> None:
        raise KeyError("killed in between")

    with monkeypatch.context() as patch:
        patch.setattr(op, "create_index", fail)
        with pytest.raises(KeyError):
            open_store(url_of(tmp_path))
    store = opened(url_of(tmp_path))
    assert "runs" in inspect(store.engine).get_table_names()
    store.close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    store = opened(url_of(tmp_path))
    with store.engine.connect() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    store.close()
    with pytest.raises(StoreError, match=r"written by a newer version of Quorate .*9999.*: update Quorate\."):
        open_store(url_of(tmp_path))


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "quorate.db") as connection:
        connection.execute("CREATE TABLE recipes (name)")
    connection.close()
    with pytest.raises(StoreError, match=r"another program \(recipes\)"):
        open_store(url_of(tmp_path))
    with sqlite3.connect(tmp_path / "quorate.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]
    connection.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "quorate.db"
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(StoreError) as caught:
        open_store(url_of(tmp_path))
    assert str(caught.value) == "The file is not a SQLite database."
    assert path.read_bytes() == b"Dear diary, " * 1000


def test_a_folder_that_is_missing_or_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be opened for writing: No such file or directory"):
        open_store(url_of(tmp_path / "missing"))
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't be opened for writing: Not a directory"):
        open_store(url_of(tmp_path / "file"))
    with pytest.raises(StoreError, match="can't be opened for writing: Is a directory"):
        open_store(f"sqlite:///{tmp_path}")


def test_an_unwritable_folder_is_refused() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(StoreError, match="can't be opened for writing: Permission denied"):
                open_store(url_of(folder))
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    store = opened(url_of(tmp_path))
    with store.transaction() as tx:
        rows.world(tx)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    store.close()


@pytest.mark.parametrize("url", ["quorate.db", "", "sqlite:/x", "nonsense://host/x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"database URL|driver"):
        open_store(url)


def test_a_database_of_the_first_schema_keeps_its_rows_and_learns_of_workers(tmp_path: Path) -> None:
    plain = SqlStore(url_of(tmp_path))
    with plain.engine.connect() as connection:
        command.upgrade(_config(connection), "0001")
        connection.commit()
        connection.exec_driver_sql("INSERT INTO devices VALUES ('d1', 'k', 't', '', 500, 10.25, NULL)")
        connection.commit()
    plain.close()
    store = opened(url_of(tmp_path))
    assert [row.device for row in store.devices()] == ["d1"]
    with store.transaction() as tx:
        tx.insert_worker(rows.worker("w1"))
    assert store.workers() == [rows.worker("w1")]
    store.close()


def test_devices_of_the_fifth_schema_keep_their_ids_and_times_and_lose_their_tokens(tmp_path: Path) -> None:
    plain = SqlStore(url_of(tmp_path))
    with plain.engine.connect() as connection:
        command.upgrade(_config(connection), "0005")
        connection.commit()
    with plain.engine.connect() as connection:
        for statement in (
            rows.OLD_RUN,
            "INSERT INTO devices VALUES ('d1', 'key', 'token', 'a phone', 500, 10.25, 20.5)",
            "INSERT INTO devices VALUES ('d2', 'same', 'same', 'simulated', 7, 11.25, NULL)",
            "INSERT INTO workers VALUES ('w1', 'token', 'a cluster', 12.25, NULL, 30.5)",
            "INSERT INTO waiting VALUES ('d1', 7, '{}', 20.0, 100.0)",
            "INSERT INTO claims VALUES ('d2', 'r1', 1, 0, 60.5)",
        ):
            connection.exec_driver_sql(statement)
        connection.commit()
    plain.close()
    store = opened(url_of(tmp_path))
    assert store.devices() == [
        rows.device("d1", key_id=None, certificate="", last_seen_at=20.5),
        rows.device("d2", key_id="d2", certificate="", label="simulated", examples_cap=7, enrolled_at=11.25),
    ]
    assert store.workers() == [rows.worker("w1", key_id=None, certificate="", revoked_at=30.5)]
    assert [row.device for row in store.waiting(0)] == ["d1"]
    assert store.claims() == [rows.claim("d2")]
    with pytest.raises(StoreError, match="does not exist"), store.transaction() as tx:
        tx.put_waiting([rows.waiting("d9")])
    store.close()


def test_a_run_of_the_eleventh_schema_keeps_its_name_to_itself(tmp_path: Path) -> None:
    plain = SqlStore(url_of(tmp_path))
    with plain.engine.connect() as connection:
        command.upgrade(_config(connection), "0011")
        connection.exec_driver_sql(rows.OLD_RUN)
        connection.commit()
    plain.close()
    store = opened(url_of(tmp_path))
    with pytest.raises(Conflict), store.transaction() as tx:
        tx.insert_flower_run(flower_rows.run("r1"))
    assert store.flower_runs() == []
    store.close()


def test_the_revocation_list_of_the_eighth_schema_is_found_by_its_digest(tmp_path: Path) -> None:
    held = sign_revocations(DeviceKey.create(), counter=7, issued=1000, next_update=9000, revoked=[b"k" * 16])
    plain = SqlStore(url_of(tmp_path))
    with plain.engine.connect() as connection:
        command.upgrade(_config(connection), "0008")
        row = (held.authority.hex(), held.counter, held.encoded)
        connection.exec_driver_sql("INSERT INTO revocations (authority, counter, encoded) VALUES (?, ?, ?)", row)
        connection.commit()
    plain.close()
    store = opened(url_of(tmp_path))
    assert store.revocations(held.authority.hex()) == held.encoded
    assert store.revocation_list(held.digest.hex()) == held.encoded
    for at, left in ((9000, held.encoded), (9000.5, None)):
        with store.transaction() as tx:
            tx.drop_revocations(held.authority.hex(), 8, at)
        assert store.revocation_list(held.digest.hex()) == left
    store.close()


_RUN = {
    "run": "r1", "name": "r1", "plan": "{}", "plan_digest": "p", "selection_seed": 1, "init": "i", "origin": "o",
    "created_at": 1.5, "seq": 0, "fence": 0, "snapshot_seq": 0,
}  # fmt: skip
_BEFORE = [(1, "r1", 1.5, "olga", "advance", ""), (4, "r1", 2.5, "paul", "stop", "x=1"), (7, "r1", 3.5, "é\n", "", "")]
"""Rows of the audit as version 0.1.0 wrote them. PostgreSQL leaves gaps."""


def test_the_audit_of_an_older_schema_becomes_one_chain_and_is_marked_as_older(tmp_path: Path) -> None:
    plain = SqlStore(url_of(tmp_path))
    with plain.engine.connect() as connection:
        command.upgrade(_config(connection), "0005")
        names = ", ".join(_RUN)
        marks = ", ".join("?" * len(_RUN))
        connection.exec_driver_sql(f"INSERT INTO runs ({names}) VALUES ({marks})", tuple(_RUN.values()))
        statement = "INSERT INTO audit (number, run, at, by, action, detail, link) VALUES (?, ?, ?, ?, ?, ?, 'old')"
        for row in [*_BEFORE, (9, None, 4.5, "", "refused", "a key")]:
            connection.exec_driver_sql(statement, row)
        connection.commit()
    plain.close()
    key = DeviceKey.create()
    store = open_store(url_of(tmp_path), audit_signer=key)
    head = store.audit_head()
    assert head is not None
    assert (head.count, head.chained_from) == (4, 4)
    link = chain.audit_beginning(4)
    for number, row in store.audit_of_all(0, 10):
        link = chain.audit_link(link, number, row)
        assert row.link == link
    kept = [(row.run, row.at, row.by, row.action, row.detail) for _, row in store.audit_of_all(0, 10)]
    assert kept == [*(row[1:] for row in _BEFORE), (None, 4.5, "", "refused", "a key")]
    with store.transaction() as tx:
        tx.insert_audit([rows.audit("rita"), rows.audit(run=None)])
    assert [number for number, _ in store.audit_of_all(0, 10)] == [1, 2, 3, 4, 5, 6]
    notes: list[str] = []
    found = list(verify(store, note=notes.append, audit=AuditWitness({key.public_hex})))
    assert [wrong for wrong in found if wrong.invariant == "audit"] == []
    assert notes[0].startswith("the audit: rows up to 4 were written before")
    store.close()


def test_a_new_database_has_an_audit_without_older_rows(tmp_path: Path) -> None:
    store = opened(url_of(tmp_path))
    assert store.audit_head() == AuditHeadRow(count=0, link=chain.audit_beginning(0), chained_from=0)
    with pytest.raises(DatabaseError), store.engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO audit_head (id, count, link, chained_from) VALUES (2, 0, '', 0)")
    store.close()
