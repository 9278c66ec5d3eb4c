"""Runs the store's statements on SQLite with nothing between them and the driver.

SQLAlchemy compiles a statement once. For each call it still makes a context, a result and its rows, which costs four
times what SQLite itself needs for the short statements of a transaction, and a secure round has thousands of them. Here
SQLAlchemy compiles the statement and keeps the pool of connections; the driver does the rest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import Engine, Executable, Insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

_DIALECT: Any = sqlite.dialect(dbapi=sqlite3)
_STATEMENTS = 1024
"""The most statements that stay compiled; the store has some two hundred."""
_NO_VALUE = "SELECT 1 WHERE 0"

Convert = Callable[[Any], Any]
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Compiled:
    text: str
    names: tuple[str, ...]
    """The parameters, by place."""
    own: dict[str, object]
    """Parameters that have a value in the statement itself."""
    bound: dict[str, Convert]
    """How values are converted for the driver, where they are."""
    lists: frozenset[str]
    """Parameters that are lists of values."""
    columns: tuple[Convert | None, ...]
    """How the values of a row are converted, where one is; else empty."""

    def with_values(self, given: Values) -> tuple[str, list[object]]:
        """The text and the driver's parameters."""
        text, values = self.text, list[object]()
        for name in self.names:
            value = given[name] if name in given else self.own[name]
            if name in self.lists:
                several = cast("Sequence[object]", value)
                text = text.replace(f"__[POSTCOMPILE_{name}]", ",".join("?" * len(several)) or _NO_VALUE)
                values += several
            else:
                convert = self.bound.get(name)
                values.append(value if convert is None else convert(value))
        return text, values


class SqliteResult:
    """The rows that a statement returned, or how many it changed."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: Sequence[Sequence[Any]], rowcount: int) -> None:
        self._rows = rows
        self.rowcount = rowcount

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """All rows."""
        return self._rows

    def fetchone(self) -> Sequence[Any] | None:
        """The first row, or None."""
        return self._rows[0] if self._rows else None


class SqliteConnection:
    """What the store needs of ``sqlalchemy.Connection``, over a connection of the engine's pool. Errors of the driver
    are raised as SQLAlchemy's."""

    def __init__(self, engine: Engine) -> None:
        try:
            self._pooled = engine.raw_connection()
        except sqlite3.Error as error:
            raise _sqlalchemys("", error) from error
        self._driver = cast("sqlite3.Connection", self._pooled.driver_connection)

    def execute(self, statement: Executable, values: Values | Sequence[Values] = ()) -> SqliteResult:
        """Runs the statement once with these values, or once for each of them."""
        if isinstance(values, Mapping):
            compiled = _compiled(statement, tuple(values))
            text, parameters = compiled.with_values(values)
            try:
                cursor = self._driver.execute(text, parameters)
                rows = cursor.fetchall()
            except sqlite3.Error as error:
                raise _sqlalchemys(text, error) from error
            return SqliteResult(_converted(rows, compiled.columns), cursor.rowcount)
        if not values:
            return self.execute(statement, {})
        compiled = _compiled(statement, tuple(values[0]))
        rows_of_parameters = [compiled.with_values(row)[1] for row in values]
        try:
            cursor = self._driver.executemany(compiled.text, rows_of_parameters)
        except sqlite3.Error as error:
            raise _sqlalchemys(compiled.text, error) from error
        return SqliteResult([], cursor.rowcount)

    def exec_driver_sql(self, text: str) -> None:
        """Runs this text."""
        try:
            self._driver.execute(text)
        except sqlite3.Error as error:
            raise _sqlalchemys(text, error) from error

    def commit(self) -> None:
        try:
            self._driver.commit()
        except sqlite3.Error as error:
            raise _sqlalchemys("COMMIT", error) from error

    def rollback(self) -> None:
        try:
            self._driver.rollback()
        except sqlite3.Error as error:
            raise _sqlalchemys("ROLLBACK", error) from error

    def close(self) -> None:
        """Gives the connection back to the pool."""
        self._pooled.close()


@lru_cache(maxsize=_STATEMENTS)
def _compiled(statement: Executable, keys: tuple[str, ...]) -> _Compiled:
    """``keys``: the names of the values, which are the columns that an INSERT or an UPDATE names."""
    if isinstance(statement, Insert):
        statement = statement.inline()
    found: SQLCompiler = statement.compile(dialect=_DIALECT, column_keys=list(keys))  # type: ignore[attr-defined]
    columns = [column.type.dialect_impl(_DIALECT).result_processor(_DIALECT, None) for column in found._result_columns]
    return _Compiled(
        text=str(found),
        names=tuple(found.positiontup or ()),
        own={name: one.value for one, name in found.bind_names.items() if not one.required},
        bound=dict(found._bind_processors),  # type: ignore[arg-type]
        lists=frozenset(name for one, name in found.bind_names.items() if one.expanding),
        columns=tuple(columns) if any(columns) else (),
    )


def _converted(rows: list[tuple[Any, ...]], columns: tuple[Convert | None, ...]) -> Sequence[Sequence[Any]]:
    if not columns:
        return rows
    return [
        [value if convert is None else convert(value) for value, convert in zip(row, columns, strict=True)]
        for row in rows
    ]


def _sqlalchemys(text: str, error: sqlite3.Error) -> Exception:
    """SQLAlchemy's error in place of the driver's."""
    return DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True, dialect=_DIALECT)
