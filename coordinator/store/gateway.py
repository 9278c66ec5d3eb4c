"""The gateway: what both databases, in SQL and in memory, do with the rows of any table.

A condition is a dict of what a row must have. A key is a column, for equality (with None: it is NULL), or a column and
one of ``> >= < <= in``::

    self._all(EventRow, {"run": run, "seq >": after}, limit=limit)

The port's methods (``port.py``, ``insight.py``, ``flower.py``) are written over it, once for both. What needs more is a
``Query``, which has two forms beside each other.

What goes wrong in a store. After any of these nothing of the transaction was stored::

    StoreError
     |- StoreFull    the disk is full: it may be repeated when there is space
     |- FenceLost    another replica commits in this one's place
     |- Conflict     a unique key refused a row
     `- NoSuchValue  no column can hold the value
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar


class StoreError(Exception):
    """The store failed (disk full, locked, not reachable). Nothing of the transaction was stored."""


class StoreFull(StoreError):
    """The disk is full. Nothing of the transaction was stored; it may be repeated when there is space."""


class FenceLost(StoreError):
    """Another replica has raised the run's fence since, and commits in this one's place.

    Nothing of the transaction was stored.
    """


class Conflict(StoreError):
    """A unique key refused a row: a fork of the line of checkpoints, a device counted twice, an id in use.

    Nothing of the transaction was stored.
    """


class NoSuchValue(StoreError, ValueError):
    """A value that no column can hold, so that it cannot be looked for either: a number beyond 64 bits, a text that is
    no Unicode."""


# ------------------------------------------------------------ rows

R = TypeVar("R")
Where = Mapping[str, object]
Key = tuple[Any, ...]
Changes = Mapping[type, Mapping[Key, Any]]
"""Rows that were written, by class and key; None in place of a row: it is deleted."""
ALL: Where = MappingProxyType({})
"""The condition that every row meets."""


class Query(NamedTuple):
    """A read that is no plain condition on one table."""

    sql: Callable[[Any, Any], Any]
    """(the module ``sqlalchemy``, the tables as attributes) -> the statement, whose parameters are named."""
    python: Callable[..., Iterable[Any]]
    """(the reader, parameters by name) -> the same rows as tuples, or as row objects."""


class Reads(ABC):
    """Reads of rows. NoSuchValue where no column can hold a value that is looked for."""

    @abstractmethod
    def _get(self, row: type[R], *key: object) -> R | None:
        """The row of this key."""

    @abstractmethod
    def _all(self, row: type[R], where: Where = ALL, order: str = "", limit: int | None = None) -> list[R]:
        """The rows that meet the condition. ``order``: columns, "-" before one that descends; empty: the key's."""

    @abstractmethod
    def _values(
        self, row: type, columns: str, where: Where = ALL, order: str = "", limit: int | None = None
    ) -> Sequence[Sequence[Any]]:
        """Some columns of these rows."""

    @abstractmethod
    def _count(self, row: type, where: Where = ALL) -> int:
        """How many rows meet the condition."""

    @abstractmethod
    def _ask(self, query: Query, row: type | None = None, /, **parameters: object) -> list[Any]:
        """What the query returns: rows of this class, or tuples. A query with a parameter ``devices`` may be asked in
        parts, each with some of them, so no row of its result is of several devices."""


class Writes(Reads):
    """Writes of rows. After an error nothing of the transaction will be stored."""

    @abstractmethod
    def _insert(self, rows: Iterable[object]) -> None:
        """Inserts rows of one class. Conflict where a unique key refuses one; StoreError where a parent is missing."""

    @abstractmethod
    def _put(
        self,
        rows: Iterable[object],
        keep: Sequence[str] | None = (),
        when: Callable[[Any, Any], Any] | None = None,
    ) -> int:
        """Inserts rows of one class, or replaces the one of the same key but for the columns ``keep`` (None: all of
        them), where ``when(old, new)`` holds, which is written for rows and for columns alike: with ``==``, ``<``,
        ``&``, ``|``. Returns how many rows it wrote."""

    @abstractmethod
    def _update(self, row: type, where: Where, /, **changes: object) -> int:
        """Sets these columns where the condition holds. Returns how many rows it changed."""

    @abstractmethod
    def _update_each(self, row: type, changes: Mapping[object, Mapping[str, object]]) -> None:
        """Sets columns, the same ones in each row, of the rows of these keys; those that are missing stay so."""

    @abstractmethod
    def _delete(self, row: type, where: Where) -> int:
        """Returns how many rows it deleted."""

    @abstractmethod
    def _advance(self, row: type, run: str, counter: str, by: int) -> tuple[int, str | None] | None:
        """Raises this counter of the run. Returns it, and the ``link`` of the last row of this class that the run has;
        None: there is no such run."""

    @abstractmethod
    def _lock(self, row: type, key: object, columns: str, *, share: bool = False) -> Sequence[Any] | None:
        """Columns of the row of this key, which is locked until the transaction ends. ``share``: it may be changed, and
        not deleted."""

    @abstractmethod
    def _failed(self, error: Exception) -> Exception:
        """The error, with which the transaction is void."""
