"""Opening a database: made, migrated, or refused in one plain sentence."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect
from sqlalchemy.exc import DatabaseError

from coordinator.store import StoreError, chain, open_store
from coordinator.store.migrate import newest
from coordinator.store.port import AuditHeadRow
from coordinator.store.sql import SqlStore, connect
from coordinator.store.tables import metadata
from tests.coordinator.store import rows

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
    # The order of columns and constraints inside a table has no meaning.
    return {name: sorted(part.strip().rstrip(",") for part in text.splitlines()) for name, text in found}


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
        patch.setattr(op, "bulk_insert", fail)
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


def test_a_new_database_has_the_one_head_of_an_empty_audit(tmp_path: Path) -> None:
    store = opened(url_of(tmp_path))
    assert store.audit_head() == AuditHeadRow(count=0, link=chain.audit_beginning())
    with pytest.raises(DatabaseError), store.engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO audit_head (id, count, link) VALUES (2, 0, '')")
    store.close()
