"""What a transaction of the SQL store writes: the Transaction port on one connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, CursorResult, Executable

from client_sdk.identity import Signer
from coordinator.store import statements as sql
from coordinator.store.bodies import finite, to_text
from coordinator.store.chain import by_run, chain_refusals, event_link, log_beginning
from coordinator.store.driver_errors import translated
from coordinator.store.flower_sql import SqlFlowerWrites
from coordinator.store.flower_statements import NAME_RUN
from coordinator.store.insight import HOUR_S, ReplicaRow
from coordinator.store.insight_statements import DROP_HOURS, DROP_REPLICAS
from coordinator.store.message_statements import DROP_MESSAGES
from coordinator.store.messages import MessageRow
from coordinator.store.port import (
    ApiKeyRow,
    Appended,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClaimRow,
    Conflict,
    ContributionRow,
    DeviceRow,
    FenceLost,
    Json,
    ListRow,
    MarkRow,
    MetricRow,
    RefusalRow,
    RoundRow,
    RunRow,
    StoreError,
    WaitingRow,
    WorkerRow,
)
from coordinator.store.rows import LoginRow
from coordinator.store.sql_audit import write_audit
from coordinator.store.sql_reads import Result, SqlReads
from coordinator.store.sqlite_connection import SqliteConnection, SqliteResult

Values = dict[str, Any]


class SqlTransaction(SqlReads, SqlFlowerWrites):
    """The Transaction port on one connection. After an error it is void: it does nothing more, and does not commit. The
    database may have ended it, as SQLite does on a full disk: a statement would then be a transaction of its own."""

    def __init__(
        self, connection: Connection | SqliteConnection, upserts: sql.Upserts, audit_signer: Signer | None = None
    ) -> None:
        self._connection = connection
        self._upserts = upserts
        self.flower_upserts = upserts.flower
        self._audit_signer = audit_signer
        self._void = False

    def require_valid(self) -> None:
        """StoreError when a statement failed and the caller continued."""
        if self._void:
            raise StoreError("An error inside this transaction was ignored, so nothing of it was stored.")

    def insert_run(self, row: RunRow) -> None:
        with self._voiding():
            snapshot = None if row.snapshot is None else to_text(row.snapshot)
            self._write(NAME_RUN, {"run": row.run})
            bodies = {"plan": to_text(row.plan), "snapshot": snapshot, "roles": to_text(row.roles)}
            self._write(sql.INSERT_RUN, _values(row) | bodies)

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
            text = to_text(state)
        self._change("run", run, sql.SNAPSHOT, snapshot_seq=seq, snapshot=text)

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
            self._write(sql.INSERT_DEVICE, _values(row) | {"facts": to_text(row.facts)})

    def certify_device(self, device: str, key_id: str, certificate: str) -> None:
        self._change("device", device, sql.CERTIFY_DEVICE, key_id=key_id, certificate=certificate)

    def forget_device(self, device: str, at: float) -> None:
        self._change("device", device, sql.FORGET_DEVICE, left_at=at)
        self.drop_waiting([device])
        self.drop_flower_node(device)

    def seen(self, devices: Mapping[str, Json], at: float) -> None:
        with self._voiding():
            rows = [
                {"at_device": device, "last_seen_at": at, "facts": to_text(facts)} for device, facts in devices.items()
            ]
            self._write_all(sql.SEEN, rows)

    def insert_worker(self, row: WorkerRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_WORKER, _values(row))

    def certify_worker(self, worker: str, key_id: str, certificate: str) -> None:
        self._change("worker", worker, sql.CERTIFY_WORKER, key_id=key_id, certificate=certificate)

    def seen_worker(self, worker: str, at: float) -> None:
        self._change("worker", worker, sql.SEEN_WORKER, last_seen_at=at)

    def revoke_worker(self, worker: str, at: float) -> None:
        self._change("worker", worker, sql.REVOKE_WORKER, revoked_at=at)

    def put_revocations(self, row: ListRow) -> None:
        with self._voiding():
            self._write(self._upserts.put_revocations, _values(row))

    def drop_revocations(self, authority: str, counter: int, at: float) -> None:
        with self._voiding():
            self._write(sql.DROP_REVOCATIONS, {"at_authority": authority, "at_counter": counter, "at_now": at})

    def insert_authority(self, row: AuthorityRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_AUTHORITY, _values(row))

    def insert_api_key(self, row: ApiKeyRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_API_KEY, _values(row))

    def revoke_api_key(self, key: str, at: float) -> None:
        with self._voiding():
            if not self._write(sql.REVOKE_API_KEY, {"at_key": key, "revoked_at": at}).rowcount:
                raise _missing(f"API key {key}")

    def insert_login(self, row: LoginRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_LOGIN, _values(row))

    def drop_logins(self, logins: Iterable[str]) -> int:
        with self._voiding():
            return sum(self._write(sql.DROP_LOGIN, {"at_login": login}).rowcount for login in logins)

    def put_hour(self, hour: int, devices: int) -> None:
        with self._voiding():
            self._write(self._upserts.put_hour, {"hour": hour, "devices": devices})

    def drop_hours(self, before: int) -> None:
        with self._voiding():
            self._write(DROP_HOURS, {"at_hour": before})

    def note_device_hours(self, hour: int) -> None:
        with self._voiding():
            self._write(self._upserts.note_device_hours, {"at_hour": hour, "at": hour * HOUR_S})

    def put_replica(self, row: ReplicaRow) -> None:
        with self._voiding():
            self._write(self._upserts.put_replica, _values(row))

    def drop_replicas(self, before: float) -> None:
        with self._voiding():
            self._write(DROP_REPLICAS, {"at_seen": before})

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

    def insert_marks(self, rows: Iterable[MarkRow]) -> None:
        with self._voiding():
            self._write_all(self._upserts.insert_marks, [_values(row) for row in rows])

    def insert_messages(self, rows: Iterable[MessageRow]) -> None:
        with self._voiding():
            self._write_all(self._upserts.insert_messages, [_values(row) for row in rows])

    def drop_messages(self, run: str, round: int) -> None:
        with self._voiding():
            self._write(DROP_MESSAGES, {"at_run": run, "at_round": round})

    def insert_audit(self, rows: Iterable[AuditRow]) -> None:
        with self._voiding():
            write_audit(self._connection, list(rows), self._audit_signer)

    def put_metrics(self, rows: Iterable[MetricRow]) -> None:
        with self._voiding():
            values = [_values(row) | {"value": finite(row.value, row.name)} for row in rows]
            self._write_all(self._upserts.put_metrics, values)

    def _change(self, what: str, name: str, statement: Executable, **values: object) -> None:
        """Changes the row of this device, worker or run. StoreError when there is none."""
        with self._voiding():
            if not self._write(statement, {f"at_{what}": name, **values}).rowcount:
                raise _missing(f"{what} {name}")

    def _read(self, statement: Executable, /, **parameters: object) -> Result:
        with self._voiding():
            return self._connection.execute(statement, parameters).fetchall()

    def _write(self, statement: Executable, values: Mapping[str, object]) -> CursorResult[Any] | SqliteResult:
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
        self.require_valid()
        try:
            with translated():
                yield
        except BaseException:  # some rows of several may be written
            self._void = True
            raise


def _values(row: Any) -> Values:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def _missing(what: str) -> StoreError:
    return StoreError(f"The store has no {what}.")
