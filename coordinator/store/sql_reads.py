"""Every read of the SQL store. Subclasses decide on which connection a statement is executed: outside transactions on
a pooled one, inside a transaction on its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Executable

from coordinator.store import statements as sql
from coordinator.store.bodies import beginning_of, from_text
from coordinator.store.flower_sql import SqlFlowerReads
from coordinator.store.insight_sql import SqlInsightReads
from coordinator.store.messages_sql import SqlMessageReads
from coordinator.store.port import (
    ApiKeyRow,
    AuditHeadRow,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClaimRow,
    ContributionRow,
    DeviceRow,
    EventRow,
    Json,
    MarkRow,
    MetricRow,
    RefusalRow,
    RoundRow,
    RunRow,
    WaitingRow,
    WorkerRow,
)
from coordinator.store.rows import LoginRow

T = TypeVar("T")
_AT_ONCE = 1000
"""Values that a condition names: databases bound how many parameters a statement has."""
Result = Sequence[Sequence[Any]]


def _maker(row: type[T], *bodies: str) -> Callable[[Sequence[Any]], T]:
    """A function that turns a result row, whose columns are in the order of the fields, into the port's row."""
    names = tuple(field.name for field in fields(row))  # type: ignore[arg-type]

    def make(values: Sequence[Any]) -> T:
        return row(**dict(zip(names, values, strict=True)))

    def make_with_bodies(values: Sequence[Any]) -> T:
        columns = dict(zip(names, values, strict=True))
        for name in bodies:
            if columns[name] is not None:
                columns[name] = from_text(columns[name])
        return row(**columns)

    return make_with_bodies if bodies else make


_run = _maker(RunRow, "plan", "snapshot", "roles")
_event = _maker(EventRow, "body")
_device = _maker(DeviceRow, "facts")
_worker = _maker(WorkerRow)
_authority = _maker(AuthorityRow)
_api_key = _maker(ApiKeyRow)
_login = _maker(LoginRow)
_claim = _maker(ClaimRow)
_checkpoint = _maker(CheckpointRow)
_contribution = _maker(ContributionRow)
_round = _maker(RoundRow, "body")
_refusal = _maker(RefusalRow)
_mark = _maker(MarkRow)
_audit = _maker(AuditRow)
_audit_head = _maker(AuditHeadRow)
_metric = _maker(MetricRow)


class SqlReads(SqlInsightReads, SqlMessageReads, SqlFlowerReads):
    """The Reader port over ``_read``."""

    @abstractmethod
    def _read(self, statement: Executable, /, **parameters: object) -> Result:
        """All rows of the statement's result."""

    def run(self, run: str) -> RunRow | None:
        return _first(_run, self._read(sql.RUN, run=run))

    def runs(self) -> list[RunRow]:
        return [_run(row) for row in self._read(sql.RUNS)]

    def run_ids(self) -> list[str]:
        return [str(row[0]) for row in self._read(sql.RUN_IDS)]

    def head(self, run: str) -> int:
        return next((int(row[0]) for row in self._read(sql.HEAD, run=run)), 0)

    def events(self, run: str, after: int, limit: int = 1000) -> list[EventRow]:
        return [_event(row) for row in self._read(sql.EVENTS, run=run, after=after, limit=limit)]

    def find_event(self, run: str, kind: str, beginning: Json) -> EventRow | None:
        text = beginning_of(beginning)
        return _first(_event, self._read(sql.FIND_EVENT, run=run, kind=kind, length=len(text), beginning=text))

    def device(self, device: str) -> DeviceRow | None:
        return _first(_device, self._read(sql.DEVICE, device=device))

    def device_by_key(self, key_id: str) -> DeviceRow | None:
        return _first(_device, self._read(sql.DEVICE_BY_KEY, key_id=key_id))

    def devices_by_keys(self, key_ids: Collection[str]) -> list[DeviceRow]:
        return [_device(row) for row in self._read(sql.DEVICES_BY_KEYS, key_ids=list(key_ids))]

    def devices(self, limit: int = 1000, after: str = "") -> list[DeviceRow]:
        return [_device(row) for row in self._read(sql.DEVICES, after=after, limit=limit)]

    def idle(self, since: float, now: float) -> list[DeviceRow]:
        return [_device(row) for row in self._read(sql.IDLE, since=since, now=now)]

    def taking_turns(self, since: float) -> list[DeviceRow]:
        return [_device(row) for row in self._read(sql.TAKING_TURNS, since=since)]

    def registered_devices(self) -> int:
        return int(self._read(sql.REGISTERED_DEVICES)[0][0])

    def worker(self, worker: str) -> WorkerRow | None:
        return _first(_worker, self._read(sql.WORKER, worker=worker))

    def worker_by_key(self, key_id: str) -> WorkerRow | None:
        return _first(_worker, self._read(sql.WORKER_BY_KEY, key_id=key_id))

    def workers(self) -> list[WorkerRow]:
        return [_worker(row) for row in self._read(sql.WORKERS)]

    def revocations(self, authority: str) -> bytes | None:
        return next((bytes(row[0]) for row in self._read(sql.REVOCATIONS, authority=authority)), None)

    def revocation_list(self, digest: str) -> bytes | None:
        return next((bytes(row[0]) for row in self._read(sql.REVOCATION_LIST, digest=digest)), None)

    def authorities(self) -> list[AuthorityRow]:
        return [_authority(row) for row in self._read(sql.AUTHORITIES)]

    def api_key(self, key: str) -> ApiKeyRow | None:
        return _first(_api_key, self._read(sql.API_KEY, key=key))

    def api_keys(self) -> list[ApiKeyRow]:
        return [_api_key(row) for row in self._read(sql.API_KEYS)]

    def login(self, login: str) -> LoginRow | None:
        return _first(_login, self._read(sql.LOGIN, login=login))

    def logins(self) -> list[LoginRow]:
        return [_login(row) for row in self._read(sql.LOGINS)]

    def waiting(self, now: float, among: Collection[str] | None = None) -> list[WaitingRow]:
        if among is None:
            rows = self._read(sql.WAITING, now=now)
        else:
            named = sorted(set(among))
            parts = (named[first : first + _AT_ONCE] for first in range(0, len(named), _AT_ONCE))
            rows = [row for part in parts for row in self._read(sql.WAITING_AMONG, now=now, devices=part)]
        # The one read of many rows on a hot path: written out, it takes half of what a maker does.
        return [
            WaitingRow(device=device, examples=examples, offer=offer, since=since, expires=expires)
            for device, examples, offer, since, expires in rows
        ]

    def waiting_by_offer(self, now: float) -> dict[str, int]:
        return {str(offer): int(count) for offer, count in self._read(sql.WAITING_BY_OFFER, now=now)}

    def claim(self, device: str) -> ClaimRow | None:
        return _first(_claim, self._read(sql.CLAIM, device=device))

    def claims(self, run: str | None = None) -> list[ClaimRow]:
        rows = self._read(sql.CLAIMS) if run is None else self._read(sql.CLAIMS_OF_RUN, run=run)
        return [_claim(row) for row in rows]

    def checkpoints(self, run: str) -> list[CheckpointRow]:
        return [_checkpoint(row) for row in self._read(sql.CHECKPOINTS, run=run)]

    def checkpoint(self, run: str, version: int) -> CheckpointRow | None:
        return _first(_checkpoint, self._read(sql.CHECKPOINT, run=run, version=version))

    def runs_with_checkpoint(self, digest: str) -> list[str]:
        return [str(row[0]) for row in self._read(sql.RUNS_WITH_CHECKPOINT, digest=digest)]

    def contributions(self, run: str, round: int) -> list[ContributionRow]:
        return [_contribution(row) for row in self._read(sql.CONTRIBUTIONS, run=run, round=round)]

    def contribution(self, run: str, round: int, device: str) -> ContributionRow | None:
        return _first(_contribution, self._read(sql.CONTRIBUTION, run=run, round=round, device=device))

    def round(self, run: str, round: int) -> RoundRow | None:
        return _first(_round, self._read(sql.ROUND, run=run, round=round))

    def rounds(self, run: str, after: int = 0, limit: int = 10_000) -> list[RoundRow]:
        return [_round(row) for row in self._read(sql.ROUNDS, run=run, after=after, limit=limit)]

    def refusals(self, run: str, round: int) -> list[RefusalRow]:
        return [_refusal(row) for row in self._read(sql.REFUSALS, run=run, round=round)]

    def refusals_in_order(self, run: str) -> list[RefusalRow]:
        return [_refusal(row) for row in self._read(sql.REFUSALS_IN_ORDER, run=run)]

    def audit(self, run: str) -> list[AuditRow]:
        return [_audit(row) for row in self._read(sql.AUDIT, run=run)]

    def audit_of_all(self, after: int, limit: int) -> list[tuple[int, AuditRow]]:
        rows = self._read(sql.AUDIT_OF_ALL, after=after, limit=limit)
        return [(int(number), _audit(values)) for number, *values in rows]

    def audit_head(self) -> AuditHeadRow | None:
        return _first(_audit_head, self._read(sql.AUDIT_HEAD))

    def metrics(self, run: str) -> list[MetricRow]:
        return [_metric(row) for row in self._read(sql.METRICS, run=run)]

    def marks(self, tensors: str) -> list[MarkRow]:
        return [_mark(row) for row in self._read(sql.MARKS, tensors=tensors)]

    def marked_devices(self, tensors: str, kinds: Collection[str]) -> int:
        return int(self._read(sql.MARKED_DEVICES, tensors=tensors, kinds=sorted(kinds))[0][0])

    def marks_of_run(self, run: str) -> list[MarkRow]:
        return [_mark(row) for row in self._read(sql.MARKS_OF_RUN, run=run)]

    def runs_named(self) -> list[str]:
        return sorted(str(row[0]) for row in self._read(sql.RUNS_NAMED))

    def rows_by_round(self, run: str) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {"rounds": {}, "contributions": {}, "refusals": {}}
        for table, number, count in self._read(sql.ROWS_BY_ROUND, run=run):
            found[table][number] = count
        return found


def _first(make: Callable[[Sequence[Any]], T], rows: Result) -> T | None:
    return make(rows[0]) if rows else None
