"""SqlStore: the store contract on SQLite, and on PostgreSQL with the same statements, through SQLAlchemy's Core.

SQLAlchemy makes and compiles each statement once. On PostgreSQL it executes them too. On SQLite the compiled text goes
to the driver's connection: for each call SQLAlchemy makes a context, a result and its rows, which costs four times what
SQLite itself needs for the short statements of a transaction, and a secure round has thousands of them.

The lock of a run is the database's: SELECT ... FOR UPDATE of its row, or the single writing transaction of SQLite
(BEGIN IMMEDIATE). Threads of this process first wait at a lock of their own, because waiters at SQLite's lock poll.
The schema is made by ``migrate.py``.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool
from sqlalchemy.sql import visitors

from client_sdk.identity import Signer
from coordinator.datafolder import sync_folder
from coordinator.store.declared import NUMBER, declared, from_text, to_text
from coordinator.store.driver_errors import translated
from coordinator.store.flower_rows import FlowerRunRow
from coordinator.store.gateway import ALL, Query, Reads, StoreError, Where, Writes
from coordinator.store.port import Reader, Store, Transaction
from coordinator.store.rows import RunRow
from coordinator.store.tables import tables

R = TypeVar("R")
Result = Sequence[Sequence[Any]]
Values = Mapping[str, object]

_SQLITE = sqlite.dialect(paramstyle="named")
_HOLD_LEDGERS = text(f"SELECT pg_advisory_xact_lock({0x6C_65_64_67_65_72})")
_HOLD_POOL = text(f"SELECT pg_advisory_xact_lock({0x70_6F_6F_6C})")
_STATEMENTS = 1024
"""The most statements that stay compiled; the store has some two hundred."""
_LIST = 500
"""The most values that one statement's condition names: databases bound how many parameters it has."""
_NAMES: Any = SimpleNamespace(**tables)
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, value: column == value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    "in": lambda column, value: column.in_(value),
}


class DatabaseConnection(Protocol):
    """What the store needs of a connection, which ``sqlalchemy.Connection`` has."""

    def execute(self, statement: Any, parameters: Any = None, /) -> Any: ...
    def exec_driver_sql(self, statement: str, /) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class SqliteConnection:
    """A DatabaseConnection over the driver's, which it takes from the engine's pool. Errors are the driver's."""

    def __init__(self, engine: Engine) -> None:
        self._pooled = engine.raw_connection()
        self._driver = cast("sqlite3.Connection", self._pooled.driver_connection)
        self.commit, self.rollback = self._driver.commit, self._driver.rollback
        self.exec_driver_sql = self._driver.execute

    def execute(self, statement: Any, values: Values | Sequence[Values] = ALL) -> sqlite3.Cursor:
        """Executes the statement once with these values, or once for each of them."""
        if isinstance(values, Mapping):
            return self._driver.execute(*_for_driver(statement, values))
        text, own, _ = _compiled(statement, tuple(values[0]))
        return self._driver.executemany(text, [{**own, **row} for row in values] if own else values)

    def close(self) -> None:
        """Gives the connection back to the pool."""
        self._pooled.close()


def _for_driver(statement: Any, values: Values) -> tuple[str, Any]:
    text, own, lists = _compiled(statement, tuple(values))
    given = {**own, **values} if own else values
    if not lists:
        return text, given
    given = {**given, **{name: _padded(cast("Any", given[name])) for name in lists}}
    expanded, names = _expanded(statement, tuple(values), tuple(len(cast("Any", given[name])) for name in lists))
    single = {name: value for name, value in given.items() if name not in names}
    for name, several in names.items():
        single.update(zip(several, cast("Any", given[name]), strict=True))
    return expanded, single


def _padded(values: Sequence[object]) -> Sequence[object]:
    """The values of an IN, up to a power of two of them: the last one is repeated, which changes no condition. Each
    length is compiled once, by SQLAlchemy and by SQLite, and there are ten; else each crowd would have its own. Long
    lists stay as they are, since SQLite takes 32,766 values at most."""
    if not 0 < len(values) < _LIST:
        return values
    missing = (1 << (len(values) - 1).bit_length()) - len(values)
    return [*values, *[values[-1]] * missing]


@lru_cache(maxsize=_STATEMENTS)
def _compiled(statement: Any, names: tuple[str, ...]) -> tuple[str, dict[str, object], tuple[str, ...]]:
    """The text; the parameters that have their value in the statement itself; those that are lists. ``names``: of the
    values, which an INSERT takes as its columns."""
    found = _compile(statement, names)
    own = {name: value for name, value in found.params.items() if name not in names}
    lists = tuple(sorted(_expanding(statement).intersection(names)))
    lists += tuple(name for name in own if isinstance(own[name], list | tuple))
    return found.string, own, lists


def _expanding(statement: Any) -> set[str]:
    """The names of the parameters that are declared as lists."""
    return {one.key for one in visitors.iterate(statement) if isinstance(one, sa.BindParameter) and one.expanding}


@lru_cache(maxsize=_STATEMENTS)
def _expanded(
    statement: Any, names: tuple[str, ...], lengths: tuple[int, ...]
) -> tuple[str, Mapping[str, Sequence[str]]]:
    """The text where its lists have these lengths, and the names of each list's values in it."""
    _, own, lists = _compiled(statement, names)
    given = dict.fromkeys(names) | own | {name: [0] * n for name, n in zip(lists, lengths, strict=True)}
    found = _compile(statement, names).construct_expanded_state(given)
    return found.statement, found.parameter_expansion


def _compile(statement: Any, names: tuple[str, ...]) -> Any:
    if isinstance(statement, sa.Insert):
        return statement.inline().compile(dialect=_SQLITE, column_keys=list(names))
    return statement.compile(dialect=_SQLITE)


# Statements


def _conditions(table: sa.Table, where: tuple[tuple[str, bool], ...]) -> list[Any]:
    """``where``: keys of a condition, and whether the value is None. The parameters are named ``at_COLUMN_OP``."""
    found = []
    for key, none in where:
        name, _, operator = key.partition(" ")
        column = table.c[name]
        parameter = sa.bindparam(_parameter(key), type_=column.type, expanding=operator == "in")
        found.append(column.is_(None) if none else _COMPARED[operator or "="](column, parameter))
    return found


_OPERATORS = {"": "is", ">": "above", ">=": "from", "<": "below", "<=": "until", "in": "among"}


@cache
def _parameter(key: str) -> str:
    name, _, operator = key.partition(" ")
    return f"{_OPERATORS[operator]}_{name}"


def _shape(where: Where) -> tuple[tuple[str, bool], ...]:
    return tuple((key, value is None) for key, value in where.items())


def _parameters(where: Where) -> dict[str, object]:
    return {_parameter(key): value for key, value in where.items() if value is not None}


@lru_cache(maxsize=_STATEMENTS)
def _select(row: type, columns: str, where: tuple[tuple[str, bool], ...], order: str, limited: bool) -> Any:
    table = tables[declared(row).name]
    found = sa.select(*(table.c[name] for name in columns.split())) if columns else sa.select(table)
    found = found.where(*_conditions(table, where))
    for name in order.split() or declared(row).key:
        found = found.order_by(table.c[name[1:]].desc() if name[0] == "-" else table.c[name])
    return found.limit(sa.bindparam("limit", type_=sa.BigInteger())) if limited else found


@cache
def _get(row: Any) -> Any:
    table = tables[declared(row).name]
    return sa.select(table).where(*(table.c[name] == sa.bindparam(name) for name in declared(row).key))


@lru_cache(maxsize=_STATEMENTS)
def _count(row: type, where: tuple[tuple[str, bool], ...]) -> Any:
    table = tables[declared(row).name]
    return sa.select(sa.func.count()).select_from(table).where(*_conditions(table, where))


@lru_cache(maxsize=_STATEMENTS)
def _update(row: type, where: tuple[tuple[str, bool], ...], columns: tuple[str, ...]) -> Any:
    table = tables[declared(row).name]
    return sa.update(table).where(*_conditions(table, where)).values({name: sa.bindparam(name) for name in columns})


@lru_cache(maxsize=_STATEMENTS)
def _delete(row: type, where: tuple[tuple[str, bool], ...]) -> Any:
    table = tables[declared(row).name]
    return sa.delete(table).where(*_conditions(table, where))


@cache
def _insert(row: Any) -> Any:
    return sa.insert(tables[declared(row).name])


@lru_cache(maxsize=_STATEMENTS)
def _put(dialect: str, row: type, keep: tuple[str, ...] | None, when: Callable[[Any, Any], Any] | None) -> Any:
    about = declared(row)
    table = tables[about.name]
    found: Any = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table)
    columns = () if keep is None else [name for name in about.names if name not in (*about.key, *keep)]
    if not columns:
        return found.on_conflict_do_nothing()
    found = found.on_conflict_do_update(
        index_elements=list(about.key),
        set_={name: found.excluded[name] for name in columns},
        where=None if when is None else when(table.c, found.excluded),
    )
    # Without the option SQLAlchemy does not keep the number of an INSERT's rows: on PostgreSQL it would be -1.
    return found.execution_options(preserve_rowcount=True)


@cache
def _advance(row: type, counter: str) -> Any:
    table, about, runs = tables[declared(row).name], declared(row), tables["runs"]
    last = (
        sa.select(table.c.link)
        .where(table.c.run == sa.bindparam("is_run"))
        .order_by(table.c[about.key[-1]].desc())
        .limit(1)
        .scalar_subquery()
    )
    return (
        sa.update(runs)
        .where(runs.c.run == sa.bindparam("is_run"))
        .values({counter: runs.c[counter] + sa.bindparam("by")})
        .returning(runs.c[counter], last)
    )


@cache
def statement_of(query: Query) -> Any:
    """The statement of a query."""
    return query.sql(sa, _NAMES)


@cache
def _maker(row: Any) -> Callable[[Sequence[Any]], Any]:
    """A function that turns a row of a result, whose columns are in the order of the fields, into the row's class."""
    about = declared(row)
    names, converted = about.names, [(field.name, _READ[field.type]) for field in about.fields if field.type in _READ]

    def make(values: Sequence[Any]) -> Any:
        return row(**dict(zip(names, values, strict=True)))

    def make_converted(values: Sequence[Any]) -> Any:
        columns = dict(zip(names, values, strict=True))
        for name, convert in converted:
            if columns[name] is not None:
                columns[name] = convert(columns[name])
        return row(**columns)

    return make_converted if converted else make


def _bytes(stored: Any) -> bytes:
    """SQLite also has columns of bytes with a text or a number in them, which somebody else has stored."""
    if isinstance(stored, bytes | memoryview):
        return bytes(stored)
    return str(stored).encode("utf-8", "surrogateescape")


_READ: dict[type, Callable[[Any], Any]] = {dict: from_text, bool: bool, bytes: _bytes}


@cache
def _values_of(about: Any) -> Callable[[Any], dict[str, object]]:
    names, bodies = tuple(name for name in about.names if not about.counted or name != NUMBER), about.bodies

    def values(row: Any) -> dict[str, object]:
        found = {name: getattr(row, name) for name in names}
        for name in bodies:
            if isinstance(found[name], dict):
                found[name] = to_text(found[name])
        if about.counted and row.number:
            found[NUMBER] = row.number
        return found

    return values


def _stored(row: type, columns: Values) -> dict[str, object]:
    """The columns as they are stored: bodies as text."""
    bodies = declared(row).bodies
    return {
        name: to_text(value) if name in bodies and isinstance(value, dict) else value for name, value in columns.items()
    }


class SqlReads(Reads):
    """Reads over ``_read``."""

    @abstractmethod
    def _read(self, statement: Any, parameters: Values, /) -> Result:
        """All rows of the statement's result."""

    def _get(self, row: type[R], *key: object) -> R | None:
        kind: Any = row
        found = self._read(_get(kind), dict(zip(declared(row).key, key, strict=True)))
        return cast("R", _maker(kind)(found[0])) if found else None

    def _all(self, row: type[R], where: Where = ALL, order: str = "", limit: int | None = None) -> list[R]:
        kind: Any = row
        return [*map(_maker(kind), self._values(row, "", where, order, limit))]

    def _values(self, row: type, columns: str, where: Where = ALL, order: str = "", limit: int | None = None) -> Result:
        statement = _select(row, columns, _shape(where), order, limit is not None)
        more: dict[str, object] = {} if limit is None else {"limit": limit}
        parts = [where] if order or limit is not None else _parts(where)  # these are of the whole result
        return [one for part in parts for one in self._read(statement, {**_parameters(part), **more})]

    def _count(self, row: type, where: Where = ALL) -> int:
        return int(self._read(_count(row, _shape(where)), _parameters(where))[0][0])

    def _ask(self, query: Query, row: type | None = None, /, **parameters: object) -> list[Any]:
        statement = statement_of(query)
        found = [one for part in _parts(parameters, "devices") for one in self._read(statement, part)]
        return list(found) if row is None else [*map(_maker(row), found)]


def _parts(where: Where, only: str = "") -> Iterator[Where]:
    """The condition, divided so that its first list is not too long: its values are sorted, and each is in one part.
    ``only``: the one list by which it may be divided; empty: any."""
    for key, value in where.items():
        if isinstance(value, list | tuple | set | frozenset) and len(value) > 1 and only in ("", key):
            named = sorted(set(value))
            yield from ({**where, key: named[at : at + _LIST]} for at in range(0, len(named), _LIST))
            return
    yield where


class SqlWrites(SqlReads, Writes):
    """Writes on one connection. After an error it is void: it does nothing more, and does not commit. The database may
    have ended it, as SQLite does on a full disk: a statement would then be a transaction of its own."""

    def __init__(self, connection: DatabaseConnection, dialect: str) -> None:
        self._connection = connection
        self._dialect = dialect
        self._void = False

    def require_valid(self) -> None:
        """StoreError when a statement failed and the caller continued."""
        if self._void:
            raise StoreError("An error inside this transaction was ignored, so nothing of it was stored.")

    def _failed(self, error: Exception) -> Exception:
        self._void = True
        return error

    @contextmanager
    def _voiding(self) -> Iterator[None]:
        self.require_valid()
        try:
            with translated():
                yield
        except BaseException:  # some rows of several may be written
            self._void = True
            raise

    def _read(self, statement: Any, parameters: Values, /) -> Result:
        with self._voiding():
            return cast("Result", self._connection.execute(statement, parameters).fetchall())

    def _insert(self, rows: Iterable[object]) -> None:
        with self._voiding():
            self._write_all(_insert, rows)

    def _put(
        self,
        rows: Iterable[object],
        keep: Sequence[str] | None = (),
        when: Callable[[Any, Any], Any] | None = None,
    ) -> int:
        kept = None if keep is None else tuple(keep)
        with self._voiding():
            return self._write_all(lambda row: _put(self._dialect, row, kept, when), rows)

    def _write_all(self, statement: Callable[[type], Any], rows: Iterable[object]) -> int:
        found = list(rows)
        if not found:
            return 0
        kind = type(found[0])
        values = [*map(_values_of(declared(kind)), found)]
        return int(self._connection.execute(statement(kind), values if len(values) > 1 else values[0]).rowcount)

    def _update(self, row: type, where: Where, /, **changes: object) -> int:
        with self._voiding():
            statement = _update(row, _shape(where), tuple(changes))
            return int(self._connection.execute(statement, {**_parameters(where), **_stored(row, changes)}).rowcount)

    def _update_each(self, row: type, changes: Mapping[object, Values]) -> None:
        key = declared(row).key[0]
        with self._voiding():
            rows = [{_parameter(key): one, **_stored(row, columns)} for one, columns in changes.items()]
            if rows:
                names = tuple(next(iter(changes.values())))
                self._connection.execute(_update(row, ((key, False),), names), rows)

    def _delete(self, row: type, where: Where) -> int:
        statement = _delete(row, _shape(where))
        with self._voiding():
            return sum(self._connection.execute(statement, _parameters(part)).rowcount for part in _parts(where))

    def _advance(self, row: type, run: str, counter: str, by: int) -> tuple[int, str | None] | None:
        with self._voiding():
            found = self._connection.execute(_advance(row, counter), {"is_run": run, "by": by}).fetchone()
        return None if found is None else (int(found[0]), found[1])

    def _lock(self, row: type, key: object, columns: str, *, share: bool = False) -> Sequence[Any] | None:
        found = self._read(_locked(row, columns, share), {"is_key": key})
        return found[0] if found else None


@cache
def _locked(row: type, columns: str, share: bool) -> Any:
    table, key = tables[declared(row).name], declared(row).key[0]
    found = sa.select(*(table.c[name] for name in columns.split())).where(table.c[key] == sa.bindparam("is_key"))
    return found.with_for_update(read=share, key_share=share)


def lock_run(connection: DatabaseConnection, run: str) -> None:
    """Takes the lock of a run of either kind."""
    for row in (RunRow, FlowerRunRow):
        if connection.execute(_locked(row, "run", False), {"is_key": run}).fetchone() is not None:
            return


_SQLITE_BYTES = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
_POSTGRESQL_BYTES = text("SELECT pg_database_size(current_database())")
_INTEGRITY = text("PRAGMA integrity_check")


class SqlTransaction(SqlWrites, Transaction):
    """The Transaction port on one connection."""

    def __init__(self, connection: DatabaseConnection, dialect: str, audit_signer: Signer | None) -> None:
        super().__init__(connection, dialect)
        self._audit_signer = audit_signer
        self.dropped_messages = False

    def drop_messages(self, run: str, round: int) -> None:
        super().drop_messages(run, round)
        self.dropped_messages = True

    def hold_privacy_ledgers(self) -> None:
        """Writing transactions of SQLite exclude each other."""
        if self._dialect == "postgresql":
            self._read(_HOLD_LEDGERS, {})

    def hold_pool(self) -> None:
        """Writing transactions of SQLite exclude each other."""
        if self._dialect == "postgresql":
            self._read(_HOLD_POOL, {})


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
        self.audit_signer = audit_signer
        self._lock_timeout_s = lock_timeout_s
        self._sqlite = self.engine.dialect.name == "sqlite"
        self._one_connection = in_memory(self.engine)
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._empty_log_at = 0.0 if self._sqlite and not self._one_connection else math.inf
        """By the monotonic clock: after the first transaction too, since a process before may have died."""

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
                transaction = SqlTransaction(connection, self.engine.dialect.name, self.audit_signer)
                yield transaction
                transaction.require_valid()
                with translated():
                    connection.commit()
                if transaction.dropped_messages and not self._one_connection:
                    self._empty_log_at = 0.0
                if self._sqlite and time.monotonic() >= self._empty_log_at:
                    self._empty_log(connection)
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

    def _empty_log(self, connection: DatabaseConnection) -> None:
        """Writes SQLite's write-ahead log into the database's file and empties it: it may have messages that are
        deleted. Where somebody reads for longer, it is tried again with a later transaction."""
        self._empty_log_at = time.monotonic() + _EMPTY_AGAIN_S
        with suppress(SQLAlchemyError, sqlite3.Error):
            connection.exec_driver_sql(f"PRAGMA busy_timeout={_EMPTY_WAIT_MS}")
            ((busy, *_),) = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.exec_driver_sql(f"PRAGMA busy_timeout={int(self._lock_timeout_s * 1000)}")
            if not busy:
                self._empty_log_at = math.inf

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
# (messages hold shares, seeds and keys of noise; some builds of SQLite leave them in the file), the WAL emptied after
# messages were deleted, a busy timeout, and no transaction that the driver opens by itself: one read is one statement,
# and writers execute BEGIN IMMEDIATE. In memory all threads share one connection. Any other database: SQLAlchemy's
# pool, and READ COMMITTED.

_CONNECTIONS = 16
_MORE_CONNECTIONS = 48
"""More connections than threads that serve requests, so that a read does not wait for another one's connection."""
_RETRY_S = 0.005
_EMPTY_WAIT_MS = 100
_EMPTY_AGAIN_S = 5.0


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
    """Text, also where somebody else has stored what is no UTF-8: SQLite would fail for all rows of the query."""
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
