"""Empty databases for tests that do not ask how one is made: migrated once in a process, then copied.

Tests of opening and migrating open their own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from coordinator.store import Store, open_store
from coordinator.store.sql import SqlStore

_idle: list[Engine] = []
"""Engines of databases in memory that no test uses now: the statements that they have compiled serve the next one."""


@functools.cache
def empty() -> bytes:
    """A database without rows, of the schema that ``open_store`` makes."""
    store = open_store("sqlite://")
    assert isinstance(store, SqlStore)
    try:
        return bytes(_driver(store.engine).serialize())
    finally:
        store.close()


@contextmanager
def in_memory() -> Iterator[SqlStore]:
    """A store of its own on an empty database in memory; only the engine below may have served another test."""
    store = SqlStore("sqlite://")
    if _idle:
        store.engine = _idle.pop()
    driver = _driver(store.engine)
    driver.rollback()
    driver.deserialize(empty())
    yield store
    _idle.append(store.engine)


def in_file(path: Path) -> Store:
    """A store on an empty database in a new file."""
    path.write_bytes(empty())
    return open_store(f"sqlite:///{path}")


def _driver(engine: Engine) -> Any:
    """SQLite's own connection. In memory there is only one."""
    connection = engine.raw_connection()
    driver = connection.driver_connection
    connection.close()
    return driver
