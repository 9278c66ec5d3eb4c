"""SqlStore: the store contract on SQLite, and on PostgreSQL with the same statements.

The lock of a run is the database's: SELECT ... FOR UPDATE of its row, or the single writing transaction of SQLite
(BEGIN IMMEDIATE). Threads of this process first wait at a lock of their own, because waiters at SQLite's lock poll.
The schema is made by ``migrate.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, CursorResult, Executable
from sqlalchemy.exc import SQLAlchemyError

from client_sdk.identity import Signer
from coordinator.store import statements as sql
from coordinator.store.bodies import finite, to_text
from coordinator.store.chain import by_run, chain_refusals, event_link, log_beginning
from coordinator.store.connect import connect, in_memory
from coordinator.store.driver_errors import to_store_error, translated
from coordinator.store.port import (
    ApiKeyRow,
    Appended,
    AuditRow,
    CheckpointRow,
    ClaimRow,
    Conflict,
    ContributionRow,
    DeviceRow,
    FenceLost,
    Json,
    MetricRow,
    RefusalRow,
    RoundRow,
    RunRow,
    StoreError,
    WaitingRow,
    WorkerRow,
)
from coordinator.store.sql_audit import write_audit
from coordinator.store.sql_reads import Result, SqlReads

Values = dict[str, Any]


class SqlTransaction(SqlReads):
    """The Transaction port on one connection. After an error it is void: it does not commit."""

    def __init__(self, connection: Connection, upserts: sql.Upserts, audit_signer: Signer | None = None) -> None:
        self._connection = connection
        self._upserts = upserts
        self._audit_signer = audit_signer
        self._void = False

    def require_valid(self) -> None:
        """StoreError when a statement failed and the caller continued."""
        if self._void:
            raise StoreError("An error inside this transaction was ignored, so nothing of it was stored.")

    def insert_run(self, row: RunRow) -> None:
        with self._voiding():
            snapshot = None if row.snapshot is None else to_text(row.snapshot)
            self._write(sql.INSERT_RUN, _values(row) | {"plan": to_text(row.plan), "snapshot": snapshot})

    def append(self, run: str, events: Sequence[tuple[float, str, Json]]) -> Appended:
        with self._voiding():
            bodies = [to_text(body) for _, _, body in events]
            last, link = self._advanced(run, sql.ADVANCE, len(events))
            if link is None:
                link = self._log_beginning(run)
            rows, links = [], []
            for seq, ((at, kind, _), body) in enumerate(zip(events, bodies, strict=True), last - len(events) + 1):
                link = event_link(link, seq, at, kind, body)
                links.append(link)
                rows.append({"run": run, "seq": seq, "at": at, "kind": kind, "body": body, "link": link})
            self._write_all(sql.INSERT_EVENTS, rows)
        return Appended(last, links)

    def snapshot(self, run: str, seq: int, state: Json) -> None:
        with self._voiding():
            change = {"at_run": run, "snapshot_seq": seq, "snapshot": to_text(state)}
            if not self._write(sql.SNAPSHOT, change).rowcount:
                raise _missing(f"run {run}")

    def raise_fence(self, run: str) -> int:
        with self._voiding():
            return self._incremented(run, sql.RAISE_FENCE, {"at_run": run})

    def require_fence(self, run: str, fence: int) -> None:
        with self._voiding():
            found = self._read(sql.FENCE, run=run)
            if not found:
                raise _missing(f"run {run}")
            if found[0][0] != fence:
                now = found[0][0]
                raise FenceLost(f"The commit of run {run} was taken over: its fence is {now}, not {fence}.")

    def insert_device(self, row: DeviceRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_DEVICE, _values(row))

    def set_token(self, device: str, token_hash: str) -> None:
        with self._voiding():
            if not self._write(sql.SET_TOKEN, {"at_device": device, "token_hash": token_hash}).rowcount:
                raise _missing(f"device {device}")

    def seen(self, devices: Iterable[str], at: float) -> None:
        with self._voiding():
            self._write_all(sql.SEEN, [{"at_device": device, "last_seen_at": at} for device in devices])

    def insert_worker(self, row: WorkerRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_WORKER, _values(row))

    def seen_worker(self, worker: str, at: float) -> None:
        self._change_worker(worker, sql.SEEN_WORKER, last_seen_at=at)

    def revoke_worker(self, worker: str, at: float) -> None:
        self._change_worker(worker, sql.REVOKE_WORKER, revoked_at=at)

    def insert_api_key(self, row: ApiKeyRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_API_KEY, _values(row))

    def revoke_api_key(self, key: str, at: float) -> None:
        with self._voiding():
            if not self._write(sql.REVOKE_API_KEY, {"at_key": key, "revoked_at": at}).rowcount:
                raise _missing(f"API key {key}")

    def put_waiting(self, rows: Iterable[WaitingRow]) -> None:
        with self._voiding():
            self._write_all(self._upserts.put_waiting, [_values(row) for row in rows])

    def drop_waiting(self, devices: Iterable[str]) -> None:
        with self._voiding():
            self._write_all(sql.DROP_WAITING, [{"at_device": device} for device in devices])

    def drop_hold(self, device: str, expires: float) -> None:
        with self._voiding():
            self._write(sql.DROP_HOLD, {"at_device": device, "at_expires": expires})

    def expire_waiting(self, now: float) -> int:
        with self._voiding():
            return self._write(sql.EXPIRE_WAITING, {"now": now}).rowcount

    def put_claims(self, claims: Iterable[ClaimRow]) -> None:
        with self._voiding():
            rows = [_values(claim) for claim in claims]
            self._write_all(sql.INSERT_CLAIMS, rows)
            self._write_all(sql.DROP_WAITING, [{"at_device": row["device"]} for row in rows])

    def drop_claims(self, run: str, round: int, devices: Iterable[str] | None = None) -> None:
        of_round = {"at_run": run, "at_round": round}
        with self._voiding():
            if devices is None:
                self._write(sql.DROP_CLAIMS, of_round)
            else:
                self._write_all(sql.DROP_CLAIM, [of_round | {"at_device": device} for device in devices])

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_CHECKPOINT, _values(row))

    def insert_contributions(self, rows: Iterable[ContributionRow]) -> None:
        with self._voiding():
            self._write_all(sql.INSERT_CONTRIBUTIONS, [_values(row) for row in rows])

    def put_round(self, row: RoundRow) -> None:
        with self._voiding():
            if not self._write(self._upserts.put_round, _values(row) | {"body": to_text(row.body)}).rowcount:
                raise Conflict(f"Round {row.round} of run {row.run} has ended; its status is final.")

    def insert_refusals(self, rows: Iterable[RefusalRow]) -> None:
        with self._voiding():
            for run, found in by_run(rows).items():
                last, link = self._advanced(run, sql.COUNT_REFUSALS, len(found))
                chained = chain_refusals(run, link, last - len(found), found)
                self._write_all(sql.INSERT_REFUSALS, [_values(row) for row in chained])

    def insert_audit(self, rows: Iterable[AuditRow]) -> None:
        with self._voiding():
            write_audit(self._connection, list(rows), self._audit_signer)

    def put_metrics(self, rows: Iterable[MetricRow]) -> None:
        with self._voiding():
            values = [_values(row) | {"value": finite(row.value, row.name)} for row in rows]
            self._write_all(self._upserts.put_metrics, values)

    def _change_worker(self, worker: str, statement: Executable, **values: object) -> None:
        with self._voiding():
            if not self._write(statement, {"at_worker": worker, **values}).rowcount:
                raise _missing(f"worker {worker}")

    def _read(self, statement: Executable, /, **parameters: object) -> Result:
        with self._voiding():
            return self._connection.execute(statement, parameters).fetchall()

    def _write(self, statement: Executable, values: Mapping[str, object]) -> CursorResult[Any]:
        return self._connection.execute(statement, values)

    def _write_all(self, statement: Executable, rows: Sequence[Mapping[str, object]]) -> None:
        if rows:
            self._connection.execute(statement, rows)

    def _incremented(self, run: str, statement: Executable, values: Mapping[str, object]) -> int:
        found = self._write(statement, values).fetchone()
        if found is None:
            raise _missing(f"run {run}")
        return int(found[0])

    def _advanced(self, run: str, statement: Executable, by: int) -> tuple[int, str | None]:
        """Raises a counter of the run. Returns it, and the link of the last row before; None where there is none."""
        found: Sequence[Any] | None = self._write(statement, {"at_run": run, "by": by}).fetchone()
        if found is None:
            raise _missing(f"run {run}")
        return int(found[0]), found[1]

    def _log_beginning(self, run: str) -> str:
        row = self.run(run)
        if row is None:
            raise _missing(f"run {run}")
        return log_beginning(row)

    @contextmanager
    def _voiding(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            self._void = True
            raise to_store_error(error) from error
        except StoreError:
            self._void = True
            raise


class _OneConnection(SqlReads):
    """Reads of the transaction that is open on this connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _read(self, statement: Executable, /, **parameters: object) -> Result:
        with translated():
            return self._connection.execute(statement, parameters).fetchall()


class SqlStore(SqlReads):
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
        self._upserts = sql.Upserts(self.engine.dialect.name)

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
                        connection.execute(sql.LOCK_RUN, {"run": run})
                transaction = SqlTransaction(connection, self._upserts, self._audit_signer)
                yield transaction
                transaction.require_valid()
                with translated():
                    connection.commit()
            except BaseException:
                with suppress(SQLAlchemyError):
                    connection.rollback()
                raise
            finally:
                self._thread.open = False

    @contextmanager
    def reading(self) -> Iterator[SqlReads]:
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
                with suppress(SQLAlchemyError):
                    connection.rollback()

    def close(self) -> None:
        """Closes the connections. The store must not be used afterwards."""
        self.engine.dispose()

    def _read(self, statement: Executable, /, **parameters: object) -> Result:
        if self._one_connection:
            self._refuse_nesting()
        with self._exclusive(self._one_connection), translated(), self.engine.connect() as connection:
            return connection.execute(statement, parameters).fetchall()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with translated():
            connection = self.engine.connect()
        try:
            yield connection
        finally:
            connection.close()

    def _refuse_nesting(self) -> None:
        if getattr(self._thread, "open", False):
            raise StoreError("This thread has a transaction open already: read and write through that one.")

    @contextmanager
    def _exclusive(self, needed: bool) -> Iterator[None]:
        if needed and not self._lock.acquire(timeout=self._lock_timeout_s):
            raise StoreError(f"The store was locked for {self._lock_timeout_s:g} s by another transaction.")
        try:
            yield
        finally:
            if needed:
                self._lock.release()


def _values(row: Any) -> Values:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def _missing(what: str) -> StoreError:
    return StoreError(f"The store has no {what}.")
