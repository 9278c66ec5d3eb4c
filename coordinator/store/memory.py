"""MemoryStore: the store contract in dicts. Tests, the simulator and the fault explorer use it. Its gateway keeps rows
in dicts by key, with indexes, and layers over them.

``CommittedRows`` are those that are committed. A transaction writes into a layer of its own, which its reads see over
them, and which is laid into them at its commit: a rollback drops it, and other readers see none of its rows. JSON is
stored as text, as in a database: nothing in it is shared with the caller. Indexes are those of the declaration, and
the beginnings of keys.

Rows live as long as the object: a "crash" is an exception inside a transaction, which then stores nothing. One lock
admits one writing transaction at a time; a second one, held briefly, separates commits from reads.
"""

from __future__ import annotations

import operator
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar, cast

from client_sdk.identity import Signer
from coordinator.store.chain import audit_beginning
from coordinator.store.declared import TABLES, Declared, declared, from_text, to_text
from coordinator.store.gateway import ALL, Conflict, Key, Query, Reads, Where, Writes
from coordinator.store.port import AuditHeadRow, Reader, Store, StoreError, Transaction
from coordinator.store.rows import RunRow

R = TypeVar("R")
Layer = dict[type, dict[Key, Any]]
"""``Changes`` that a transaction, or several, have written."""
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "": operator.eq,
    ">": lambda value, than: value is not None and value > than,
    ">=": lambda value, than: value is not None and value >= than,
    "<": lambda value, than: value is not None and value < than,
    "<=": lambda value, than: value is not None and value <= than,
    "in": lambda value, among: value in among,
}


class _Bucket:
    """Rows by key, and their keys in order."""

    __slots__ = ("_order", "rows")

    def __init__(self) -> None:
        self.rows: dict[Key, Any] = {}
        self._order: list[Key] | None = []

    def put(self, key: Key, row: Any) -> None:
        if key not in self.rows and self._order is not None:
            if not self._order or key > self._order[-1]:
                self._order.append(key)
            else:
                self._order = None
        self.rows[key] = row

    def drop(self, key: Key) -> None:
        del self.rows[key]
        self._order = None

    def keys(self) -> list[Key]:
        if self._order is None:
            self._order = sorted(self.rows)
        return self._order


_EMPTY = _Bucket()


class _Table:
    """The committed rows of one table."""

    def __init__(self, about: Declared) -> None:
        self.about = about
        self.all = _Bucket()
        self.key_of = _of_columns(about.key)
        beginnings = (about.key[:size] for size in range(1, len(about.key)))
        indexes = dict.fromkeys((*beginnings, *about.unique, *about.indexes, *([about.line] if about.line else [])))
        self.indexes: list[tuple[frozenset[str], Callable[[Any], Key], dict[Key, _Bucket]]] = [
            (frozenset(columns), _of_columns(columns), {}) for columns in sorted(indexes, key=len, reverse=True)
        ]
        self.columns = sorted(indexes, key=len, reverse=True)
        *self.beside, last = about.key
        self.among = f"{last} in"
        """The condition that names rows by a list of keys, where the other columns of the key are given."""
        self.unique = [(columns, _of_columns(columns)) for columns in (*about.unique, about.line) if columns]
        self.parents = [(_of_columns(columns), TABLES[parent].row) for columns, parent in about.parents.items()]
        self.last = 0
        """The highest number that the rows of a counted table have had."""
        self.newest: dict[str | None, Key] = {}
        """Of a counted table whose rows are of runs: the newest row of each."""

    def bucket(self, where: Where) -> _Bucket:
        """Rows among which are all that meet the condition: by the index that has the most of its columns."""
        place = _index(self.about.row, tuple(where))
        if place is None:
            return self.all
        columns, buckets = self.columns[place], self.indexes[place][2]
        if columns[0] in where:
            return buckets.get(tuple(where[name] for name in columns), _EMPTY)
        found = _Bucket()
        for value in cast("Any", where[f"{columns[0]} in"]):
            for key, row in buckets.get((value,), _EMPTY).rows.items():
                found.put(key, row)
        return found

    def put(self, key: Key, row: Any) -> None:
        before = self.all.rows.get(key)
        self.all.put(key, row)
        if self.about.counted and hasattr(row, "run"):
            self.newest[row.run] = max(key, self.newest.get(row.run, key))
        for _, values_of, buckets in self.indexes:
            values = values_of(row)
            if before is not None and (old := values_of(before)) != values:
                buckets[old].drop(key)
            if values not in buckets:
                buckets[values] = _Bucket()
            buckets[values].put(key, row)

    def drop(self, key: Key) -> None:
        row = self.all.rows.get(key)
        if row is not None:
            self.all.drop(key)
            for _, values_of, buckets in self.indexes:
                values = values_of(row)
                buckets[values].drop(key)
                if not buckets[values].rows:
                    del buckets[values]


@cache
def _of_columns(columns: Key) -> Callable[[Any], Key]:
    if len(columns) == 1:
        one = attrgetter(columns[0])
        return lambda row: (one(row),)
    return attrgetter(*columns)


@cache
def _index(row: type, where: tuple[str, ...]) -> int | None:
    """The place of the index that ``bucket`` uses; None: there is none for this condition."""
    given, columns = frozenset(where), _Table(declared(row)).columns
    of_values = (place for place, names in enumerate(columns) if given.issuperset(names))
    of_lists = (place for place, names in enumerate(columns) if len(names) == 1 and f"{names[0]} in" in given)
    return next(chain(of_values, of_lists), None)


class CommittedRows:
    """The committed rows of all tables. ``guard`` excludes commits during a read."""

    def __init__(self, guard: AbstractContextManager[bool]) -> None:
        self.guard = guard
        self.tables = {about.row: _Table(about) for about in TABLES.values()}
        self.changes: Layer | None = None
        """What was committed since somebody set it; None: nobody asks."""


class MemoryReads(Reads):
    """Reads of what is committed, and of the layer of a transaction over it."""

    def __init__(self, committed: CommittedRows) -> None:
        self._committed = committed
        self._guard = committed.guard
        self._layer: Layer = {}

    def _get(self, row: type[R], *key: object) -> R | None:
        found = self._stored(row, key)
        return None if found is None else cast("R", _whole(found))

    def _all(self, row: type[R], where: Where = ALL, order: str = "", limit: int | None = None) -> list[R]:
        found = self._found(row, where, order, limit)
        return [*map(_whole, found)]

    def _values(
        self, row: type, columns: str, where: Where = ALL, order: str = "", limit: int | None = None
    ) -> Sequence[Sequence[Any]]:
        values_of = _of_columns(tuple(columns.split()))
        return [values_of(one) for one in self._found(row, where, order, limit)]

    def _count(self, row: type, where: Where = ALL) -> int:
        return len(self._found(row, where, "", None))

    def _ask(self, query: Query, row: type | None = None, /, **parameters: object) -> list[Any]:
        with self._guard:
            return list(query.python(self, **parameters))

    def _stored(self, row: type, key: Key) -> Any:
        """The row of this key as it is stored, with its JSON as text."""
        written = self._layer.get(row)
        if written is not None and key in written:
            return written[key]
        return self._committed.tables[row].all.rows.get(key)

    def _found(self, row: type, where: Where, order: str, limit: int | None) -> list[Any]:
        """The rows that meet the condition, as they are stored."""
        table, written = self._committed.tables[row], self._layer.get(row)
        where = {name: frozenset(cast("Any", value)) if name[-3:] == " in" else value for name, value in where.items()}
        if tuple(where) == table.about.key:
            one = self._stored(row, tuple(where.values()))
            return [] if one is None else [one]
        with self._guard:
            bucket = table.bucket(where)
            rows: dict[Key, Any] = bucket.rows
            if not rows and not written:
                return []
            given = tuple(where[name] for name in table.beside if name in where)
            among = where.get(table.among) if len(given) == len(table.beside) else None
            if among is not None:
                pairs = ((key, self._stored(row, key)) for key in sorted((*given, one) for one in cast("Any", among)))
                rows = {key: one for key, one in pairs if one is not None}
                keys = list(rows)
            elif written:
                rows = {**rows, **written}
                keys = sorted(key for key, one in rows.items() if one is not None)
            else:
                keys = bucket.keys()
            tests = _tests(row, tuple(where), not written and among is None)
            if limit is not None and not order and not written:
                return _first(rows, keys, tests, limit, table, where)
            if tests:
                found = [
                    one
                    for one in map(rows.__getitem__, keys)
                    if all(compare(get(one), where[name]) for name, get, compare in tests)
                ]
            else:
                found = [*map(rows.__getitem__, keys)]
        for name in reversed(order.split()):
            found.sort(key=_nulls_first(name.lstrip("-")), reverse=name[0] == "-")
        return found[:limit]


def _first(rows: dict[Key, Any], keys: list[Key], tests: Any, limit: int, table: _Table, where: Where) -> list[Any]:
    """The first rows of a bucket that meet the condition. Where the last column of the key is above a value, and the
    others are given, the keys before it are not looked at."""
    *given, last = table.about.key
    above = f"{last} >"
    start = 0
    if above in where and all(name in where for name in given):
        start = bisect_right(keys, (*(where[name] for name in given), where[above]))
    found: list[Any] = []
    for at in range(start, len(keys)):
        if len(found) >= limit:
            break
        one = rows[keys[at]]
        if all(compare(get(one), where[name]) for name, get, compare in tests):
            found.append(one)
    return found


@cache
def _tests(
    row: type, where: tuple[str, ...], indexed: bool
) -> list[tuple[str, Callable[[Any], Any], Callable[[Any, Any], bool]]]:
    """(key of the condition, the row's value, comparison). ``indexed``: without what holds for a whole bucket."""
    place = _index(row, where) if indexed else None
    held = frozenset[str]() if place is None else _Table(declared(row)).indexes[place][0]
    parts = [(key, *key.partition(" ")) for key in where if key not in held]
    return [(key, attrgetter(name), _COMPARED[compared]) for key, name, _, compared in parts]


@cache
def _nulls_first(name: str) -> Callable[[Any], Any]:
    get = attrgetter(name)
    return lambda row: (get(row) is not None, get(row))


def _whole(stored: Any) -> Any:
    """The row with its JSON as objects."""
    bodies = declared(type(stored)).bodies
    if not bodies:
        return stored
    texts = ((name, getattr(stored, name)) for name in bodies)
    return _with(stored, {name: {} if text == "{}" else from_text(text) for name, text in texts if text})


def _with(row: Any, changes: dict[str, Any]) -> Any:
    """The row with some other values; ``dataclasses.replace`` takes twice as long."""
    names = declared(type(row)).names
    return type(row)(**{**dict(zip(names, _of_columns(names)(row), strict=True)), **changes})


class MemoryWrites(MemoryReads, Writes):
    """Writes into a layer. After an error it is void: it does not commit."""

    def __init__(self, committed: CommittedRows) -> None:
        super().__init__(committed)
        self._void = False
        self._numbers: dict[type, int] = {}
        """The highest numbers that it gave to rows of counted tables."""
        self._taken: dict[tuple[type, Key], dict[Key, Key]] = {}
        """Of unique columns, the values that it wrote, and the keys of the rows that have them."""

    def require_valid(self) -> None:
        """StoreError when a statement failed and the caller continued."""
        if self._void:
            raise StoreError("An error inside this transaction was ignored, so nothing of it was stored.")

    def commit(self) -> None:
        """Makes the layer's rows visible, all at once. StoreError when the transaction is void."""
        self.require_valid()
        with self._guard:
            for row, written in self._layer.items():
                table = self._committed.tables[row]
                table.last = max(table.last, self._numbers.get(row, 0))
                for key, one in written.items():
                    if one is None:
                        table.drop(key)
                    else:
                        table.put(key, one)
                if self._committed.changes is not None:
                    self._committed.changes.setdefault(row, {}).update(written)

    def _failed(self, error: Exception) -> Exception:
        self._void = True
        return error

    def _insert(self, rows: Iterable[object]) -> None:
        for row, table, key in self._prepared(rows):
            if self._stored(table.about.row, key) is not None:
                raise self._refused(table, table.about.key, key)
            self._write(table, key, row, None)

    def _put(
        self,
        rows: Iterable[object],
        keep: Sequence[str] | None = (),
        when: Callable[[Any, Any], Any] | None = None,
    ) -> int:
        count = 0
        for row, table, key in self._prepared(rows):
            old = self._stored(table.about.row, key)
            if old is not None and (keep is None or (when is not None and not when(old, row))):
                continue
            kept = {} if old is None or not keep else {name: getattr(old, name) for name in keep}
            self._write(table, key, _with(row, kept) if kept else row, old)
            count += 1
        return count

    def _update(self, row: type, where: Where, /, **changes: object) -> int:
        table, found = self._committed.tables[row], self._found(row, where, "", None)
        for name in table.about.bodies:
            if isinstance(changes.get(name), dict):
                changes[name] = self._checked(to_text, changes[name])
        for old in found:
            self._write(table, table.key_of(old), _with(old, changes), old)
        return len(found)

    def _update_each(self, row: type, changes: Mapping[object, Mapping[str, object]]) -> None:
        for key, columns in changes.items():
            self._update(row, {declared(row).key[0]: key}, **columns)

    def _delete(self, row: type, where: Where) -> int:
        found, key_of = self._found(row, where, "", None), self._committed.tables[row].key_of
        for old in found:
            self._layer.setdefault(row, {})[key_of(old)] = None
        return len(found)

    def _advance(self, row: type, run: str, counter: str, by: int) -> tuple[int, str | None] | None:
        old = self._stored(RunRow, (run,))
        if old is None:
            return None
        last: Any = None
        before = getattr(old, counter)
        if declared(row).key == ("run", "seq"):
            last = self._stored(row, (run, before))
        elif before:
            keys = [key for key, one in self._layer.get(row, {}).items() if one.run == run]
            newest = self._committed.tables[row].newest.get(run)
            last = self._stored(row, max(keys if newest is None else [newest, *keys]))
        self._write(self._committed.tables[RunRow], (run,), _with(old, {counter: before + by}), old)
        return before + by, None if last is None else last.link

    def _lock(self, row: type, key: object, columns: str, *, share: bool = False) -> Sequence[Any] | None:
        found = self._stored(row, (key,))
        return None if found is None else _of_columns(tuple(columns.split()))(found)

    def _prepared(self, rows: Iterable[object]) -> Iterator[tuple[Any, _Table, Key]]:
        """The rows as they are stored, whose parents are there, with their keys."""
        for given in list(rows):
            row: Any = given
            table = self._committed.tables[type(row)]
            about = table.about
            if about.counted and not row.number:
                row = _with(row, {"number": self._next(table)})
            if about.bodies:
                texts = {name: getattr(row, name) for name in about.bodies}
                encoded = {name: self._checked(to_text, one) for name, one in texts.items() if isinstance(one, dict)}
                row = _with(row, encoded) if encoded else row
            for key_of, parent in table.parents:
                key = key_of(row)
                if None not in key and self._stored(parent, key) is None:
                    raise self._failed(StoreError(f"The store has no {_named(key)} in {declared(parent).name}."))
            yield row, table, table.key_of(row)

    def _next(self, table: _Table) -> int:
        last = self._numbers.get(table.about.row, table.last)
        self._numbers[table.about.row] = last + 1
        return last + 1

    def _write(self, table: _Table, key: Key, row: Any, old: Any) -> None:
        """``old``: the row that it replaces."""
        for columns, values_of in table.unique:
            values = values_of(row)
            if (old is None or values_of(old) != values) and (None not in values or columns == table.about.line):
                self._take(table, columns, values_of, values, key)
        self._layer.setdefault(table.about.row, {})[key] = row

    def _take(self, table: _Table, columns: Key, values_of: Callable[[Any], Key], values: Key, key: Key) -> None:
        """Gives unique values to the row of this key. Conflict when another row has them."""
        taken = self._taken.setdefault((table.about.row, columns), {})
        holders = [taken[values]] if values in taken else []
        for holder in (*holders, *table.bucket(dict(zip(columns, values, strict=True))).rows):
            if (
                holder != key
                and (one := self._stored(table.about.row, holder)) is not None
                and values_of(one) == values
            ):
                raise self._refused(table, columns, values)
        taken[values] = key

    def _refused(self, table: _Table, columns: Key, values: Key) -> Exception:
        named = f"{table.about.name} has {' '.join(columns)} = {_named(values)}"
        return self._failed(Conflict(f"A unique key refused a row: {named} already."))

    def _checked(self, convert: Callable[[Any], Any], value: object) -> Any:
        try:
            return convert(value)
        except StoreError as error:
            raise self._failed(error) from None


def _named(values: Key) -> str:
    return " ".join(map(str, values))


class MemoryTransaction(MemoryWrites, Transaction):
    """The Transaction port over a layer of its own."""

    def __init__(self, committed: CommittedRows, audit_signer: Signer | None = None) -> None:
        super().__init__(committed)
        self._audit_signer = audit_signer

    def hold_privacy_ledgers(self) -> None:
        """All transactions exclude each other."""

    def hold_pool(self) -> None:
        """All transactions exclude each other."""


class MemoryStore(MemoryReads, Store):
    """The Store port in memory. ``lock_timeout_s``: to wait for another one; ``audit_signer``: as in ``open_store``."""

    def __init__(self, *, lock_timeout_s: float = 30.0, audit_signer: Signer | None = None) -> None:
        super().__init__(CommittedRows(threading.RLock()))
        self.audit_signer = audit_signer
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._lock_timeout_s = lock_timeout_s
        with self.transaction() as tx:
            tx._insert([AuditHeadRow(count=0, link=audit_beginning())])

    @contextmanager
    def transaction(self, run: str | None = None) -> Iterator[MemoryTransaction]:
        """Opens a writing transaction; all runs share one lock. StoreError as in the port."""
        if self._writer == threading.get_ident():
            raise StoreError("This thread has a transaction open already.")
        if not self._writing.acquire(timeout=self._lock_timeout_s):
            raise StoreError(f"The store was locked for {self._lock_timeout_s:g} s by another transaction.")
        self._writer = threading.get_ident()
        try:
            transaction = MemoryTransaction(self._committed, self.audit_signer)
            yield transaction
            transaction.commit()
        finally:
            self._writer = None
            self._writing.release()

    def follow(self) -> Layer:
        """Returns a dict that is given what is committed from now on. Who has written it elsewhere empties it."""
        self._committed.changes = {}
        return self._committed.changes

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Opens a transaction that only reads: commits wait for its end."""
        with self._guard:
            yield self

    def close(self) -> None:
        """Deletes nothing: a restarted coordinator finds the rows here."""

    def size_bytes(self) -> int | None:
        return None

    def damage(self) -> list[str]:
        return []
