"""SQLAlchemy engines, configured so that a commit is durable and readers do not wait for writers.

SQLite: WAL with synchronous=FULL (a commit is on the disk when it returns), foreign keys on, deleted rows overwritten
(messages of secure rounds hold shares; some builds of SQLite leave them in the file), a busy timeout, and no
transaction that the driver opens by itself: one read is one statement, and writers execute BEGIN IMMEDIATE. In memory
all threads share one connection. Any other database: SQLAlchemy's pool, and READ COMMITTED.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool, StaticPool

from coordinator.datafolder import sync_folder
from coordinator.store.errors import StoreError

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
