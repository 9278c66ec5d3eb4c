"""SqlStore: the store contract on SQLite, and on PostgreSQL with the same statements (``sql_gateway.py``).

The lock of a run is the database's: SELECT ... FOR UPDATE of its row, or the single writing transaction of SQLite
(BEGIN IMMEDIATE). Threads of this process first wait at a lock of their own, because waiters at SQLite's lock poll.
The schema is made by ``migrate.py``.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from client_sdk.identity import Signer
from coordinator.datafolder import sync_folder
from coordinator.store.driver_errors import translated
from coordinator.store.port import Reader, Store, StoreError, Transaction
from coordinator.store.sql_gateway import (
    DatabaseConnection,
    Result,
    SqliteConnection,
    SqlReads,
    SqlWrites,
    Values,
    lock_run,
)

_SQLITE_BYTES = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
_POSTGRESQL_BYTES = text("SELECT pg_database_size(current_database())")
_INTEGRITY = text("PRAGMA integrity_check")


class SqlTransaction(SqlWrites, Transaction):
    """The Transaction port on one connection."""

    def __init__(self, connection: DatabaseConnection, dialect: str, audit_signer: Signer | None) -> None:
        super().__init__(connection, dialect)
        self._audit_signer = audit_signer


class _OneConnection(SqlReads, Reader):
    """Reads of the transaction that is open on this connection."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection

    def _read(self, statement: Any, parameters: Values, /) -> Result:
        with translated():
            return cast("Result", self._connection.execute(statement, parameters).fetchall())


class SqlStore(SqlReads, Store):
    """The Store port on a database that has been migrated.

    ``lock_timeout_s``: how long a transaction waits for the lock of another thread, process or replica. On SQLite in
    memory all threads share one connection, so reads wait for an open transaction. ``audit_signer``: as in
    ``open_store``.
    """

    def __init__(self, url: str, *, lock_timeout_s: float = 30.0, audit_signer: Signer | None = None) -> None:
        self.engine = connect(url, lock_timeout_s)
        self._audit_signer = audit_signer
        self._lock_timeout_s = lock_timeout_s
        self._sqlite = self.engine.dialect.name == "sqlite"
        self._one_connection = in_memory(self.engine)
        self._lock = threading.Lock()
        self._thread = threading.local()

    @contextmanager
    def transaction(self, run: str | None = None) -> Iterator[SqlTransaction]:
        """Opens a writing transaction. StoreError as in the port."""
        self._refuse_nesting()
        with self._exclusive(self._sqlite), self._connected() as connection:
            self._thread.open = True
            try:
                with translated():
                    if self._sqlite:
                        connection.exec_driver_sql("BEGIN IMMEDIATE")
                    elif run is not None:
                        lock_run(connection, run)
                transaction = SqlTransaction(connection, self.engine.dialect.name, self._audit_signer)
                yield transaction
                transaction.require_valid()
                with translated():
                    connection.commit()
            except BaseException:
                with suppress(SQLAlchemyError, sqlite3.Error):
                    connection.rollback()
                raise
            finally:
                self._thread.open = False

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Opens a transaction that only reads. On SQLite in memory it excludes writers."""
        self._refuse_nesting()
        with self._exclusive(self._one_connection), self._connected() as connection:
            self._thread.open = True
            try:
                with translated():
                    connection.exec_driver_sql(
                        "BEGIN" if self._sqlite else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
                    )
                yield _OneConnection(connection)
            finally:
                self._thread.open = False
                with suppress(SQLAlchemyError, sqlite3.Error):
                    connection.rollback()

    def size_bytes(self) -> int | None:
        """The size of the database in bytes."""
        return int(self._read(_SQLITE_BYTES if self._sqlite else _POSTGRESQL_BYTES, {})[0][0])

    def damage(self) -> list[str]:
        """What ``PRAGMA integrity_check`` finds in the file of SQLite; of another database nothing."""
        rows = self._read(_INTEGRITY, {}) if self._sqlite else []
        return [str(row[0]) for row in rows if row[0] != "ok"]

    def close(self) -> None:
        """Closes the connections. The store must not be used afterwards."""
        self.engine.dispose()

    def _read(self, statement: Any, parameters: Values, /) -> Result:
        if self._one_connection:
            self._refuse_nesting()
        with self._exclusive(self._one_connection), self._connected() as connection, translated():
            return cast("Result", connection.execute(statement, parameters).fetchall())

    def _connected(self) -> closing[DatabaseConnection]:
        with translated():
            return closing(SqliteConnection(self.engine) if self._sqlite else self.engine.connect())

    def _refuse_nesting(self) -> None:
        if getattr(self._thread, "open", False):
            raise StoreError("This thread has a transaction open already: read and write through that one.")

    def _exclusive(self, needed: bool) -> AbstractContextManager[None]:
        return self._locked() if needed else nullcontext()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=self._lock_timeout_s):
            raise StoreError(f"The store was locked for {self._lock_timeout_s:g} s by another transaction.")
        try:
            yield
        finally:
            self._lock.release()


# ------------------------------------------------------------ engines
# They are configured so that a commit is durable and readers do not wait for writers.
#
# SQLite: WAL with synchronous=FULL (a commit is on the disk when it returns), foreign keys on, deleted rows overwritten
# (messages of secure rounds hold shares; some builds of SQLite leave them in the file), a busy timeout, and no
# transaction that the driver opens by itself: one read is one statement, and writers execute BEGIN IMMEDIATE. In memory
# all threads share one connection. Any other database: SQLAlchemy's pool, and READ COMMITTED.

_CONNECTIONS = 16
_MORE_CONNECTIONS = 48
"""More connections than threads that serve requests, so that a read does not wait for another one's connection."""
_RETRY_S = 0.005


def connect(url: str, lock_timeout_s: float) -> Engine:
    """An engine for this URL. StoreError, in one sentence, when the URL or the file behind it can't be used."""
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed, lock_timeout_s)
        return create_engine(
            parsed, pool_size=_CONNECTIONS, max_overflow=_MORE_CONNECTIONS, pool_pre_ping=True, hide_parameters=True
        )
    except (ArgumentError, ValueError):
        # Not shown: it may have a password, where only a parsed URL could say.
        raise StoreError("That is not a database URL (example: sqlite:////var/lib/quorate/quorate.db).") from None
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise StoreError(f"The database {_shown(url)} needs a driver that is not installed: {error}.") from None


def in_memory(engine: Engine) -> bool:
    """Whether this is SQLite in memory, with one connection that all threads share."""
    return isinstance(engine.pool, StaticPool)


def _sqlite(url: URL, lock_timeout_s: float) -> Engine:
    arguments = {"check_same_thread": False, "timeout": lock_timeout_s, "isolation_level": None}
    if url.database in (None, "", ":memory:"):
        engine = create_engine(url, poolclass=StaticPool, connect_args=arguments, hide_parameters=True)
    else:
        _make_file(Path(str(url.database)))
        engine = create_engine(
            url,
            poolclass=QueuePool,
            pool_size=_CONNECTIONS,
            max_overflow=_MORE_CONNECTIONS,
            connect_args=arguments,
            hide_parameters=True,
        )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        _use_wal(connection, lock_timeout_s)
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.text_factory = _any_text

    return engine


def _use_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Of several connections that change a new file's journal at once, one succeeds; SQLite refuses the others at once,
    whatever their busy timeout is."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > until:
                raise
        time.sleep(_RETRY_S)


def _any_text(stored: bytes) -> str:
    """Also of a text that is no UTF-8, which somebody else has stored: SQLite would fail for all rows of the query."""
    return stored.decode("utf-8", "surrogateescape")


def _make_file(path: Path) -> None:
    """Makes the file durably if it is missing, readable by its owner only, since it contains the runs' selection
    seeds."""
    try:
        new = not path.exists()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        if new:
            sync_folder(path.absolute().parent)
    except OSError as error:
        raise StoreError(f"The database {path} can't be opened for writing: {error.strerror}.") from None


def _shown(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)
