"""Translates errors of database drivers into the port's errors, with one plain sentence each.

::

    a unique or primary key refuses a row          Conflict
    a foreign key refuses a row                    StoreError   (it names a run or device that does not exist)
    the disk is full                               StoreFull
    locked, read only, not a database ...          StoreError
    a number or a text that no column can hold     NoSuchValue  (the driver raises it, or PostgreSQL)
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from coordinator.store.gateway import Conflict, NoSuchValue, StoreError, StoreFull

_SENTENCES = {
    "SQLITE_BUSY": "The database was locked by another process for too long.",
    "SQLITE_LOCKED": "The database was locked by another connection for too long.",
    "SQLITE_READONLY": "The database could not be written: the file or its folder is read-only.",
    "SQLITE_CANTOPEN": "The database could not be opened: its folder is missing or not writable.",
    "SQLITE_NOTADB": "The file is not a SQLite database.",
    "SQLITE_CORRUPT": "The database file is damaged: restore it from a backup.",
    "SQLITE_IOERR": "The disk reported an error while the database was being read or written.",
}
_FULL = ("SQLITE_FULL", "53100")
_UNIQUE = {"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "23505"}
_FOREIGN = {"SQLITE_CONSTRAINT_FOREIGNKEY", "23503"}


def to_store_error(error: SQLAlchemyError | sqlite3.Error) -> StoreError:
    """The port's error for an error of SQLAlchemy, or of SQLite's driver."""
    if isinstance(error, PoolTimeout):
        return StoreError("All connections to the database were busy for too long.")
    cause = error if isinstance(error, sqlite3.Error) else error.orig if isinstance(error, DBAPIError) else None
    if cause is None:
        return StoreError(f"The database can't be used: {_first_line(error)}.")
    # SQLite's extended code by name; PostgreSQL's SQLSTATE.
    code = str(getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or "")
    if isinstance(error, DataError | sqlite3.DataError):
        return NoSuchValue(f"A value can't be stored, or looked for: {_first_line(cause)}.")
    if isinstance(error, IntegrityError | sqlite3.IntegrityError):
        if code in _UNIQUE:
            return Conflict(f"A unique key refused a row: {_first_line(cause)}.")
        if code in _FOREIGN:
            return StoreError("A row names a run, a device or a parent checkpoint that does not exist.")
    if code.startswith(_FULL):
        return StoreFull("The database could not be written: the disk is full.")
    for name, sentence in _SENTENCES.items():
        if code.startswith(name):
            return StoreError(sentence)
    return StoreError(f"The database reported an error: {_first_line(cause)}.")


class translated:  # noqa: N801 - used as a function, and made for each statement: a generator costs four times as much
    """Raises the port's errors in place of SQLAlchemy's, and of the drivers' for values that they cannot write."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SQLAlchemyError | sqlite3.Error):
            raise to_store_error(error) from error
        if isinstance(error, OverflowError | UnicodeEncodeError):
            why = f"{type(error).__name__}: {_first_line(error)}"
            raise NoSuchValue(f"A value can't be stored, or looked for: {why}.") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
