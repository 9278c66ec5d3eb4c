"""The Store port: what the coordinator needs from a database. Its rows (``rows.py``) are imported from here too.

Everything that must happen together happens inside one ``transaction(run)``, which holds the run's lock in the store,
not in this process, so several replicas may share a database. Reads outside a transaction see committed data only. Each
method is written once, over the gateway (``gateway.py``), which has one implementation in SQL and one in memory. The
contract test (``tests/coordinator/store/contract.py``) runs against both; the memory store that passes it serves as the
fake. Tensors are not stored here: only their digests are.
"""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn, cast

from client_sdk.identity import Signer
from client_sdk.protocol.devices import said_class
from coordinator.store.chain import by_run, chain_audit, chain_refusals, event_link, log_beginning
from coordinator.store.declared import Declared, Json, beginning_of, finite, parents_first, to_text
from coordinator.store.flower import FlowerReader, FlowerWriter
from coordinator.store.flower_rows import FlowerRunRow
from coordinator.store.gateway import Changes, Conflict, FenceLost, Query, R, StoreError, StoreFull, Where
from coordinator.store.insight import InsightReader, InsightWriter, OnDisk
from coordinator.store.privacy import LedgerReader, LedgerWriter
from coordinator.store.rows import (
    ALL_CLASSES,
    AllowanceRow,
    ApiKeyRow,
    Appended,
    AuditHeadRow,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClaimRow,
    ClassRow,
    ContributionRow,
    DebitRow,
    DeviceRow,
    EventRow,
    LedgerRow,
    ListRow,
    LoginRow,
    MarkRow,
    MessageRow,
    MetricRow,
    PoolChangeRow,
    RefusalRow,
    RoundRow,
    RunNameRow,
    RunRow,
    SpendingRow,
    WaitingRow,
    WorkerRow,
)

__all__ = [
    "TERMINAL",
    "ApiKeyRow",
    "Appended",
    "AuditHeadRow",
    "AuditRow",
    "AuthorityRow",
    "CheckpointRow",
    "ClaimRow",
    "ClassRow",
    "Conflict",
    "ContributionRow",
    "DebitRow",
    "DeviceRow",
    "EventRow",
    "FenceLost",
    "Json",
    "LedgerRow",
    "ListRow",
    "LoginRow",
    "MarkRow",
    "MessageRow",
    "MetricRow",
    "PoolChangeRow",
    "Reader",
    "RefusalRow",
    "RoundRow",
    "RunRow",
    "SpendingRow",
    "Store",
    "StoreError",
    "StoreFull",
    "Transaction",
    "WaitingRow",
    "WorkerRow",
]

RUN_ROUND = 0
"""The round of messages that are the run's, until it ends."""
STEP_BYTES = 4
KEPT_CHANGES = 50_000
"""At least so many of the last changes of the pool are stored, and mostly not more than twice as many."""
_MOST_CHANGES = 4 * KEPT_CHANGES
TERMINAL = ("committed", "abandoned")
"""The statuses of a round that has ended. The store refuses to change them."""


# Queries: each in SQL, and in Python over the reader


def _free(sa: Any, t: Any) -> list[Any]:
    claimed = sa.exists().where(t.claims.c.device == t.waiting.c.device)
    return [t.waiting.c.expires > sa.bindparam("now"), ~claimed]


_WAITING = Query(
    sql=lambda sa, t: sa.select(t.waiting).where(*_free(sa, t)).order_by(t.waiting.c.device),
    python=lambda reader, now: (
        row for row in reader._all(WaitingRow, {"expires >": now}) if reader.claim(row.device) is None
    ),
)
_WAITING_AMONG = Query(
    sql=lambda sa, t: (
        sa.select(t.waiting)
        .where(*_free(sa, t), t.waiting.c.device.in_(sa.bindparam("devices", expanding=True)))
        .order_by(t.waiting.c.device)
    ),
    python=lambda reader, now, devices: (
        row
        for device in sorted(devices)
        if (row := reader._get(WaitingRow, device)) is not None and row.expires > now and reader.claim(device) is None
    ),
)
_FIND_EVENT = Query(
    sql=lambda sa, t: (
        sa.select(t.events)
        .where(
            t.events.c.run == sa.bindparam("run"),
            t.events.c.kind == sa.bindparam("kind"),
            sa.func.substr(t.events.c.body, 1, sa.bindparam("length")) == sa.bindparam("beginning"),
        )
        .order_by(t.events.c.seq.desc())
        .limit(1)
    ),
    python=lambda reader, run, kind, beginning, length: [
        row for row in reader._all(EventRow, {"run": run, "kind": kind}) if to_text(row.body)[:length] == beginning
    ][-1:],
)
_IDLE = Query(
    sql=lambda sa, t: sa.select(t.devices).where(
        t.devices.c.last_seen_at >= sa.bindparam("since", type_=sa.Double()),
        t.devices.c.left_at.is_(None),
        ~sa.exists().where(t.claims.c.device == t.devices.c.device),
        ~sa.exists().where(t.waiting.c.device == t.devices.c.device, t.waiting.c.expires > sa.bindparam("now")),
    ),
    python=lambda reader, since, now: (
        row
        for row in reader._all(DeviceRow, {"last_seen_at >=": since, "left_at": None})
        if reader.claim(row.device) is None
        and ((place := reader._get(WaitingRow, row.device)) is None or place.expires <= now)
    ),
)
_IN_CLASSES = Query(
    sql=lambda sa, t: sa.select(
        t.devices.c.device,
        t.devices.c.label,
        sa.exists().where(t.contributions.c.device == t.devices.c.device),
    ).where(t.devices.c.device.in_(sa.bindparam("devices", expanding=True)), t.devices.c.left_at.is_(None)),
    python=lambda reader, devices: (
        (device, label, bool(reader._values(ContributionRow, "device run", {"device": device}, limit=1)))
        for device, label in reader._values(DeviceRow, "device label", {"device in": devices, "left_at": None})
    ),
)
"""(device, label, whether it has contributed to a round), of those that have not left."""
_MARKED_DEVICES = Query(
    sql=lambda sa, t: (
        sa.select(sa.func.count(t.secure_marks.c.device.distinct()))
        .join_from(t.secure_marks, t.devices, t.secure_marks.c.device == t.devices.c.device)
        .where(
            t.secure_marks.c.tensors == sa.bindparam("tensors"),
            t.devices.c.left_at.is_(None),
        )
    ),
    python=lambda reader, tensors: [
        (
            sum(
                (row := reader.device(device)) is not None and row.left_at is None
                for device in {mark.device for mark in reader.marks(tensors)}
            ),
        )
    ],
)
_OF_RUNS = (
    ClaimRow, CheckpointRow, ContributionRow, DebitRow, EventRow, MarkRow, MessageRow, MetricRow, RefusalRow, RoundRow,
    RunRow, SpendingRow,
)  # fmt: skip
"""What only runs of the engine have rows in."""


def _runs_named(sa: Any, t: Any) -> Any:
    tables = (
        t.claims, t.checkpoints, t.contributions, t.events, t.secure_marks, t.messages, t.metrics, t.refusals,
        t.rounds, t.runs, t.privacy_debits, t.privacy_spending,
    )  # fmt: skip
    of_flower = sa.select(t.flower_runs.c.run)
    of_either_kind = (
        sa.select(table.c.run).where(table.c.run.is_not(None), table.c.run.not_in(of_flower))
        for table in (t.audit, t.run_names, t.flower_messages, t.flower_contents)
    )
    return sa.union(*(sa.select(table.c.run).where(table.c.run.is_not(None)) for table in tables), *of_either_kind)


_RUNS_NAMED = Query(
    sql=_runs_named,
    python=lambda reader: {one for row in _OF_RUNS for one in reader._values(row, "run")},
)
_ROWS_BY_ROUND = Query(
    sql=lambda sa, t: sa.union_all(
        *(
            sa.select(sa.literal(table.name), table.c.round, sa.func.count())
            .where(table.c.run == sa.bindparam("run"))
            .group_by(table.c.round)
            for table in (t.rounds, t.contributions, t.refusals)
        )
    ),
    python=lambda reader, run: (
        (name, number, count)
        for name, row in (("rounds", RoundRow), ("contributions", ContributionRow), ("refusals", RefusalRow))
        for (number,), count in Counter(reader._values(row, "round", {"run": run})).items()
    ),
)


def _runs_beyond(*, older: bool) -> Query:
    """Runs of either kind that were created after, or before, a time and a run, the next ones first."""
    beyond = operator.lt if older else operator.gt

    def sql(sa: Any, t: Any) -> Any:
        last = sa.tuple_(sa.bindparam("at", type_=sa.Double()), sa.bindparam("run"))
        each = (
            sa.select(of.run, of.created_at).where(beyond(sa.tuple_(of.created_at, of.run), last))
            for of in (t.runs.c, t.flower_runs.c)
        )
        order = (sa.desc(name) if older else sa.text(name) for name in ("created_at", "run"))
        return sa.union_all(*each).order_by(*order).limit(sa.bindparam("limit", type_=sa.BigInteger()))

    def python(reader: Reader, at: float, run: str, limit: int) -> list[tuple[str, float]]:
        rows = (row for of in (RunRow, FlowerRunRow) for row in reader._values(of, "created_at run"))
        found = sorted(((at_of, name) for at_of, name in rows if beyond((at_of, name), (at, run))), reverse=older)
        return [(name, created) for created, name in found[:limit]]

    return Query(sql=sql, python=python)


_RUNS_AFTER, _RUNS_BEFORE = _runs_beyond(older=False), _runs_beyond(older=True)


class Reader(InsightReader, FlowerReader, LedgerReader):
    """Reads, usable inside a transaction (seeing its own writes) and outside (seeing committed data)."""

    def of_run(self, row: type[R], run: str) -> list[R]:
        """All rows of this class that name the run, in order of their key."""
        return self._all(row, {"run": run})

    def run(self, run: str) -> RunRow | None:
        return self._get(RunRow, run)

    def runs(self) -> list[RunRow]:
        """All runs, oldest first."""
        return self._all(RunRow, order="created_at run")

    def newest_run(self, plan_digest: str) -> RunRow | None:
        """The newest run of exactly this plan."""
        return next(iter(self._all(RunRow, {"plan_digest": plan_digest}, "-created_at -run", 1)), None)

    def run_ids(self) -> list[str]:
        """The ids of all runs, oldest first: also where something else in a run's row cannot be read."""
        return [str(run) for (run,) in self._values(RunRow, "run", order="created_at run")]

    def runs_after(self, run: str, limit: int) -> list[str]:
        """The ids of the runs of either kind that were created after this one, oldest first; empty: of all. Also where
        something else in a run's row cannot be read."""
        at = self._created_at(run, -math.inf)
        return [str(row[0]) for row in self._ask(_RUNS_AFTER, at=at, run=run, limit=limit)]

    def runs_before(self, run: str, limit: int) -> list[str]:
        """The ids of the runs of either kind that were created before this one, newest first; empty: of all."""
        at = self._created_at(run, math.inf)
        return [str(row[0]) for row in self._ask(_RUNS_BEFORE, at=at, run=run, limit=limit)]

    def _created_at(self, run: str, unknown: float) -> float:
        times = (self._values(of, "created_at", {"run": run}) for of in (RunRow, FlowerRunRow))
        return next((at for found in times for (at,) in found), unknown)

    def head(self, run: str) -> int:
        """Sequence number of the run's last event; 0 for none. Read at every transaction, so it costs one small row."""
        return next((int(seq) for (seq,) in self._values(RunRow, "seq", {"run": run})), 0)

    def events(self, run: str, after: int, limit: int = 1000) -> list[EventRow]:
        """Events with ``seq > after`` in order, at most ``limit``."""
        return self._all(EventRow, {"run": run, "seq >": after}, limit=limit)

    def find_event(self, run: str, kind: str, beginning: Json) -> EventRow | None:
        """The newest event of this kind whose body begins with these values, in this order. Reads the log from its end
        on until there."""
        text = beginning_of(beginning)
        return next(iter(self._ask(_FIND_EVENT, EventRow, run=run, kind=kind, beginning=text, length=len(text))), None)

    def device(self, device: str) -> DeviceRow | None:
        return self._get(DeviceRow, device)

    def device_by_key(self, key_id: str) -> DeviceRow | None:
        """The device whose newest certificate is of this key. ``devices_by_keys``: those of these keys, unsorted."""
        return next(iter(self._all(DeviceRow, {"key_id": key_id})), None)

    def devices_by_keys(self, key_ids: Collection[str]) -> list[DeviceRow]:
        return self._all(DeviceRow, {"key_id in": list(key_ids)})

    def devices_named(self, devices: Collection[str]) -> list[DeviceRow]:
        """Those of these ids that are stored, unsorted."""
        return self._all(DeviceRow, {"device in": list(devices)})

    def devices(self, limit: int = 1000, after: str = "") -> list[DeviceRow]:
        """Devices in order of id, for paging."""
        return self._all(DeviceRow, {"device >": after}, limit=limit)

    def device_labels(self, after: str, limit: int) -> Sequence[Sequence[Any]]:
        """(device, label, left_at) in order of id, which reads no more of the devices."""
        return self._values(DeviceRow, "device label left_at", {"device >": after}, limit=limit)

    def seen_lately(self, since: float, most: int) -> list[str] | None:
        """The devices that checked in since then, in order of id; None: they are more than ``most``."""
        found = self._values(DeviceRow, "device", {"last_seen_at >=": since}, "last_seen_at", most + 1)
        return None if len(found) > most else sorted(str(device) for (device,) in found)

    def idle(self, since: float, now: float) -> list[DeviceRow]:
        """Devices that checked in since then, have not left, and have neither an unexpired place in the pool nor a
        claim, in order of id."""
        return sorted(self._ask(_IDLE, DeviceRow, since=since, now=now), key=lambda row: row.device)

    def taking_turns(self, since: float) -> list[DeviceRow]:
        """Devices whose processes took turns since then, in order of id."""
        found = self._all(DeviceRow, {"turned_at >=": since}, "turned_at")
        return sorted(found, key=lambda row: row.device)

    def worker(self, worker: str) -> WorkerRow | None:
        return self._get(WorkerRow, worker)

    def worker_by_key(self, key_id: str) -> WorkerRow | None:
        """The worker whose newest certificate is of this key, revoked or not."""
        return next(iter(self._all(WorkerRow, {"key_id": key_id})), None)

    def workers(self, after: str = "", limit: int | None = None) -> list[WorkerRow]:
        """Workers whose id sorts after this one, in order of id; ``limit`` None: all."""
        return self._all(WorkerRow, {"worker >": after}, limit=limit)

    def revocations(self, authority: str) -> bytes | None:
        """The newest revocation list of this authority that was stored."""
        found = self._values(ListRow, "encoded", {"authority": authority}, "-counter", 1)
        return next((bytes(encoded) for (encoded,) in found), None)

    def revocation_list(self, digest: str) -> bytes | None:
        """The revocation list of this digest, of whichever authority, that was stored and not dropped."""
        return next((bytes(one) for (one,) in self._values(ListRow, "encoded", {"digest": digest})), None)

    def revocation_lists(self) -> list[ListRow]:
        """All lists that are stored, in order of authority and counter."""
        return self._all(ListRow)

    def authorities(self) -> list[AuthorityRow]:
        """In the order in which they were recorded."""
        return self._all(AuthorityRow)

    def api_key(self, key: str) -> ApiKeyRow | None:
        """The API key of this id, revoked and expired or not."""
        return self._get(ApiKeyRow, key)

    def api_keys(self, after: str = "", limit: int | None = None) -> list[ApiKeyRow]:
        """API keys whose id sorts after this one, in order of id; ``limit`` None: all."""
        return self._all(ApiKeyRow, {"key >": after}, limit=limit)

    def waiting(self, now: float, among: Collection[str] | None = None) -> list[WaitingRow]:
        """Unexpired (``expires > now``), unclaimed rows of the pool, of these devices or of all, in order of id."""
        if among is None:
            return self._ask(_WAITING, WaitingRow, now=now)
        return self._ask(_WAITING_AMONG, WaitingRow, now=now, devices=list(among))

    def places(self, among: Collection[str] | None = None) -> Sequence[Sequence[Any]]:
        """(device, examples, offer, expires) of the rows of the pool, of these devices or of all, also of those that
        have expired or are claimed."""
        return self._values(WaitingRow, "device examples offer expires", _among(among))

    def places_after(self, after: str, limit: int) -> Sequence[Sequence[Any]]:
        """(device, examples, offer) of the rows of the pool, in order of device, also of those that have expired or are
        claimed."""
        return self._values(WaitingRow, "device examples offer", {"device >": after}, limit=limit)

    def claims_after(self, after: str, limit: int) -> Sequence[Sequence[Any]]:
        """(device, run) of the claims, in order of device."""
        return self._values(ClaimRow, "device run", {"device >": after}, limit=limit)

    def claimed(self, among: Collection[str] | None = None) -> set[str]:
        """Which devices, of these or of all, have a claim."""
        return {device for (device,) in self._values(ClaimRow, "device", _among(among))}

    def pool_changes(self, after: int) -> tuple[int, list[str]] | None:
        """The number of the last change of the pool, and the devices of those after this one; None: some of these are
        stored no more. Who reads rows of the pool after that has these changes in them, or later ones."""
        first = self._first_pool_change()
        found = self._all(PoolChangeRow, {"number >": after}, limit=_MOST_CHANGES)
        if first > after + 1 or len(found) == _MOST_CHANGES:
            return None
        return (found[-1].number if found else after), [row.device for row in found]

    def _first_pool_change(self) -> int:
        return next((int(number) for (number,) in self._values(PoolChangeRow, "number", limit=1)), 0)

    def last_pool_change(self) -> int:
        """The number of the last change of the pool; 0: there was none."""
        return next((int(number) for (number,) in self._values(PoolChangeRow, "number", order="-number", limit=1)), 0)

    def claim(self, device: str) -> ClaimRow | None:
        return self._get(ClaimRow, device)

    def claims(self, run: str | None = None) -> list[ClaimRow]:
        """All claims, or those of a run, in order of device id."""
        return self._all(ClaimRow, {} if run is None else {"run": run})

    def claims_of(self, devices: Collection[str]) -> list[ClaimRow]:
        """The claims of these devices."""
        return self._all(ClaimRow, {"device in": list(devices)})

    def claims_count(self) -> int:
        return self._count(ClaimRow)

    def checkpoints(self, run: str, after: int = -1, limit: int | None = None) -> list[CheckpointRow]:
        """The checkpoints of a run with a version above ``after``, in order of version; ``limit`` None: all."""
        return self._all(CheckpointRow, {"run": run, "version >": after}, limit=limit)

    def newest_checkpoint(self, run: str) -> CheckpointRow | None:
        """The end of a run's line."""
        return next(iter(self._all(CheckpointRow, {"run": run}, "-version", 1)), None)

    def checkpoint(self, run: str, version: int) -> CheckpointRow | None:
        return self._get(CheckpointRow, run, version)

    def runs_with_checkpoint(self, digest: str) -> list[str]:
        """The runs that have a checkpoint of this digest, sorted. Only those of some run may be downloaded."""
        return sorted({str(run) for (run,) in self._values(CheckpointRow, "run", {"digest": digest})})

    def contributions(self, run: str, round: int) -> list[ContributionRow]:
        """In order of device id."""
        return self._all(ContributionRow, {"run": run, "round": round})

    def contribution(self, run: str, round: int, device: str) -> ContributionRow | None:
        return self._get(ContributionRow, run, round, device)

    def round(self, run: str, round: int) -> RoundRow | None:
        return self._get(RoundRow, run, round)

    def rounds(self, run: str, after: int = 0, limit: int = 10_000) -> list[RoundRow]:
        """Rounds numbered above ``after``, in order."""
        return self._all(RoundRow, {"run": run, "round >": after}, limit=limit)

    def refusals(self, run: str, round: int) -> list[RefusalRow]:
        """In the order in which they were recorded."""
        return self._all(RefusalRow, {"run": run, "round": round})

    def refusals_of(self, run: str, round: int, device: str) -> list[RefusalRow]:
        """Those of one device, which cost the same however many others there are."""
        return self._all(RefusalRow, {"run": run, "round": round, "device": device})

    def refusals_in_order(self, run: str) -> list[RefusalRow]:
        """The refusals of all rounds, in the order in which they were recorded."""
        return self._all(RefusalRow, {"run": run})

    def audit(self, run: str) -> list[AuditRow]:
        """In the order in which they were recorded."""
        return self._all(AuditRow, {"run": run})

    def audit_of_all(self, after: int, limit: int) -> list[tuple[int, AuditRow]]:
        """(number, row) of those of all runs and of none, numbered above ``after``, in the order in which they were
        recorded."""
        return [(row.number, row) for row in self._all(AuditRow, {"number >": after}, limit=limit)]

    def audit_head(self) -> AuditHeadRow | None:
        """Where the audit ends. None: somebody has deleted that row."""
        return self._get(AuditHeadRow, 1)

    def metrics(self, run: str, after: int = -1, limit: int | None = None) -> list[MetricRow]:
        """Those of versions above ``after``, in order of version, source, name; ``limit`` None: all."""
        return self._all(MetricRow, {"run": run, "version >": after}, limit=limit)

    def metrics_of(self, run: str, version: int) -> list[MetricRow]:
        """Those of one version, in order of source and name."""
        return self._all(MetricRow, {"run": run, "version": version})

    def marks(self, tensors: str) -> list[MarkRow]:
        """The marks of devices on these tensors, by all runs, in order of device and run."""
        return self._all(MarkRow, {"tensors": tensors})

    def marked_devices(self, tensors: str) -> int:
        """How many devices that are registered and have not left have a mark on these tensors."""
        return int(self._ask(_MARKED_DEVICES, tensors=tensors)[0][0])

    def marks_of_run(self, run: str) -> list[MarkRow]:
        """The marks that this run has made, in order of tensors and device."""
        return self._all(MarkRow, {"run": run})

    def runs_named(self) -> list[str]:
        """Every run that a row of any table names, sorted: also where the run's own row is gone."""
        return sorted(str(row[0]) for row in self._ask(_RUNS_NAMED))

    def rows_by_round(self, run: str) -> dict[str, dict[int, int]]:
        """How many rows of ``rounds``, ``contributions`` and ``refusals`` name each round: {table: {round: rows}}."""
        found: dict[str, dict[int, int]] = {"rounds": {}, "contributions": {}, "refusals": {}}
        for table, number, count in self._ask(_ROWS_BY_ROUND, run=run):
            found[table][number] = count
        return found

    def login(self, login: str) -> LoginRow | None:
        """The login of this id, expired or not."""
        return self._get(LoginRow, login)

    def logins(self) -> list[LoginRow]:
        """All logins, oldest first."""
        return self._all(LoginRow, order="created_at login")

    def messages(self, run: str, digests: Collection[str]) -> dict[str, bytes]:
        """The contents of the run's messages with these digests, by digest, without those that are not stored."""
        return {row.digest: row.content for row in self._all(MessageRow, {"run": run, "digest in": list(digests)})}

    def message_rounds(self, run: str, round: int | None = None) -> dict[str, int]:
        """The digest of every message of the run that is stored -> its round."""
        where = {"run": run} if round is None else {"run": run, "round": round}
        return {row[0]: row[1] for row in self._values(MessageRow, "digest round", where)}

    def noise_keys(self, run: str) -> list[bytes]:
        """The keys of the noise of the run's committed rounds, in order of their steps: messages of ``RUN_ROUND``, each
        of which begins with its step."""
        found = self._all(MessageRow, {"run": run, "round": RUN_ROUND})
        return [content[STEP_BYTES:] for content in sorted(row.content for row in found)]


def _among(devices: Collection[str] | None) -> dict[str, object]:
    return {} if devices is None else {"device in": list(devices)}


def _turned_at(facts: Json) -> float | None:
    processes = facts.get("processes")
    return processes.get("turned_at") if isinstance(processes, dict) else None


def _as_stored(row: DeviceRow) -> DeviceRow:
    turned_at = _turned_at(row.facts)
    return row if turned_at is None else replace(row, turned_at=turned_at)


def _numbers(row: DeviceRow, rounds: int = 0) -> dict[str, int]:
    """What a device that has contributed to so many rounds adds to the numbers of its class."""
    return {"left": 1} if row.left_at is not None else {"devices": 1, "heard": min(rounds, 1), "rounds": rounds}


def _still_open(old: Any, new: Any) -> Any:
    """Whether a round may be replaced: it has not ended, or its status stays."""
    return (old.status == "open") | (old.status == new.status)


def _is_simulated(old: Any, new: Any) -> Any:
    """Whether a device may be replaced: it is one of a simulation, and may claim no more examples than the new one."""
    return (old.key_id == old.device) & (old.certificate == "") & (old.examples_cap <= new.examples_cap)


def _has_no_certificate(old: Any, new: Any) -> Any:
    return old.certificate == ""


def _is_of_the_run(old: Any, new: Any) -> Any:
    return old.run == new.run


_SHARED: dict[type, tuple[tuple[str, ...] | None, Any]] = {
    ClaimRow: ((), _is_of_the_run),
    LedgerRow: (None, None),
    DeviceRow: (("enrolled_at",), _is_simulated),
    WorkerRow: (("created_at",), _has_no_certificate),
}
"""Rows that a run shares with others: columns that stay, and what may be replaced. See ``Transaction.put_rows``."""


class Transaction(Reader, InsightWriter, FlowerWriter, LedgerWriter):
    """All of it becomes durable at the end of the ``with`` block, or none of it (an exception inside rolls back).

    A StoreError voids the transaction, also when it is caught inside the block: the end of the block then raises
    another. Rows name only runs and devices that exist (contributions and refusals outlive their devices), and a body
    is JSON without NaN; anything else is a StoreError.
    """

    _audit_signer: Signer | None = None

    def insert_run(self, row: RunRow) -> None:
        self._insert([RunNameRow(run=row.run)])
        self._insert([row])

    def append(self, run: str, events: Sequence[tuple[float, str, Json]]) -> Appended:
        """Appends (at, kind, body) in order, each chained to the one before, and returns where the log ends now."""
        bodies = [self._text(body) for _, _, body in events]
        found = self._advance(EventRow, run, "seq", len(events))
        if found is None:
            self._missing(f"run {run}")
        last, link = found
        if link is None:
            link = log_beginning(cast("RunRow", self.run(run)))
        rows, links = [], []
        for seq, ((at, kind, _), body) in enumerate(zip(events, bodies, strict=True), last - len(events) + 1):
            link = event_link(link, seq, at, kind, body)
            links.append(link)
            rows.append(EventRow(run=run, seq=seq, at=at, kind=kind, body=cast("Json", body), link=link))
        self._insert(rows)
        return Appended(last, links)

    def snapshot(self, run: str, seq: int, state: Json) -> None:
        self._set(RunRow, "run", run, snapshot_seq=seq, snapshot=state)

    def raise_fence(self, run: str) -> int:
        """Increments the run's fence and returns it."""
        now = self._fence(run)
        self._update(RunRow, {"run": run}, fence=now + 1)
        return now + 1

    def require_fence(self, run: str, fence: int) -> None:
        """FenceLost unless the run's fence still has this value. It stays so until the transaction ends."""
        now = self._fence(run)
        if now != fence:
            raise self._failed(FenceLost(f"The commit of run {run} was taken over: its fence is {now}, not {fence}."))

    def insert_device(self, *rows: DeviceRow) -> None:
        """Inserts one or more. Conflict when an id or a key is in use."""
        self._count_devices((row.label, _numbers(row)) for row in rows)
        self._insert(_as_stored(row) for row in rows)

    def certify_device(self, device: str, key_id: str, certificate: str) -> None:
        """Replaces the device's certificate. Conflict when the key is another device's; StoreError when the device is
        unknown."""
        self._set(DeviceRow, "device", device, key_id=key_id, certificate=certificate)

    def forget_device(self, device: str, at: float) -> None:
        """Removes the device's key, certificate, label and node id, takes the device out of the pool, and notes when it
        left: an earlier time stays. StoreError when the device is unknown."""
        self.drop_waiting([device])
        for _, label, heard in self._ask(_IN_CLASSES, devices=[device]):
            counted = self._count(ContributionRow, {"device": device})
            self._count_devices([(label, {"devices": -1, "heard": -heard, "rounds": -counted, "left": 1})])
        self._set(
            DeviceRow, "device", device, key_id=None, certificate="", label="", facts={}, node=None, turned_at=None
        )
        self._update(DeviceRow, {"device": device, "left_at": None}, left_at=at)

    def seen(self, devices: Mapping[str, Json], at: float) -> None:
        """Sets when these devices last checked in, and what they said of themselves. Unknown ids are ignored."""
        changes = ({"last_seen_at": at, "facts": facts, "turned_at": _turned_at(facts)} for facts in devices.values())
        self._update_each(DeviceRow, dict(zip(devices, changes, strict=True)))

    def insert_worker(self, row: WorkerRow) -> None:
        """Conflict when the id or the key is in use."""
        self._insert([row])

    def certify_worker(self, worker: str, key_id: str, certificate: str) -> None:
        """Replaces the worker's certificate. Conflict and StoreError as for ``certify_device``."""
        self._set(WorkerRow, "worker", worker, key_id=key_id, certificate=certificate)

    def seen_worker(self, worker: str, at: float) -> None:
        """Sets when this worker last sent a request. StoreError when it is unknown."""
        self._set(WorkerRow, "worker", worker, last_seen_at=at)

    def revoke_worker(self, worker: str, at: float) -> None:
        """Notes when it was revoked; an earlier ``revoked_at`` stays. StoreError when the worker is unknown."""
        if not self._update(WorkerRow, {"worker": worker, "revoked_at": None}, revoked_at=at) and not self.worker(
            worker
        ):
            self._missing(f"worker {worker}")

    def put_revocations(self, row: ListRow) -> None:
        """Stores the list beside the older ones, unless one of the same authority with its counter is stored."""
        self._put([row], keep=None)

    def drop_revocations(self, authority: str, counter: int, at: float) -> None:
        """Drops the lists of this authority with a lower counter whose next update was due before ``at``."""
        self._delete(ListRow, {"authority": authority, "counter <": counter, "next_update <": math.ceil(at)})

    def insert_authority(self, row: AuthorityRow) -> None:
        """With its row in the audit: see ``insert_audit``."""
        self._insert([replace(row, number=0)])
        self.insert_audit([row.audited])

    def insert_privacy_ledger(self, row: LedgerRow) -> None:
        """With its row in the audit. Conflict when the name is in use."""
        self._insert([row])
        self.insert_audit([row.audited])

    def insert_privacy_allowance(self, row: AllowanceRow) -> None:
        """With its row in the audit. Conflict where one stands already."""
        self._insert([row])
        self.insert_audit([row.audited])

    def insert_api_key(self, row: ApiKeyRow) -> None:
        """Conflict when the id is in use."""
        self._insert([row])

    def revoke_api_key(self, key: str, at: float) -> None:
        """Revokes it; an earlier ``revoked_at`` stays. StoreError when it is unknown."""
        if not self._update(ApiKeyRow, {"key": key, "revoked_at": None}, revoked_at=at) and not self.api_key(key):
            self._missing(f"API key {key}")

    def put_waiting(self, rows: Iterable[WaitingRow]) -> None:
        """Inserts or replaces; an existing row keeps its ``since``."""
        found = list(rows)
        self._note_pool_changes([row.device for row in found])
        self._put(found, keep=["since"])

    def drop_waiting(self, devices: Iterable[str]) -> None:
        found = list(devices)
        self._note_pool_changes(found)
        self._delete(WaitingRow, {"device in": found})

    def drop_hold(self, device: str, expires: float) -> None:
        """Removes the device from the pool, unless another check-in than the one that expires then is in it."""
        self._note_pool_changes([device])
        self._delete(WaitingRow, {"device": device, "expires": expires})

    def expire_waiting(self, now: float) -> int:
        """Deletes expired rows of the pool and returns their number. Old changes of the pool are deleted too."""
        enough = self._first_pool_change() + 2 * KEPT_CHANGES
        if self._values(PoolChangeRow, "number", {"number >": enough}, limit=1):
            self._delete(PoolChangeRow, {"number <": self.last_pool_change() - KEPT_CHANGES})
        expired = [device for (device,) in self._values(WaitingRow, "device", {"expires <=": now})]
        self._note_pool_changes(expired)  # by the clock of one replica; others may be behind
        return self._delete(WaitingRow, {"device in": expired, "expires <=": now})

    def put_claims(self, claims: Iterable[ClaimRow]) -> None:
        """Inserts claims and removes their devices from the pool. Conflict when a device has a claim already."""
        rows = list(claims)
        self.drop_waiting([row.device for row in rows])
        self._insert(rows)

    @abstractmethod
    def hold_pool(self) -> None:
        """Lets other transactions that change the pool wait until this one ends, so that the numbers of the changes are
        in the order in which they are committed. It is taken before rows of the pool, of claims or of devices are
        locked, and after a run's lock."""

    def _note_pool_changes(self, devices: Collection[str]) -> None:
        if devices:
            self.hold_pool()
            self._insert([PoolChangeRow(device=device) for device in devices])

    def drop_claims(self, run: str, round: int, devices: Iterable[str] | None = None) -> None:
        """Deletes the claims of this round: all, or those of ``devices``. Claims of other rounds stay."""
        of_round = {"run": run, "round": round}
        self._delete(ClaimRow, of_round if devices is None else {**of_round, "device in": list(devices)})

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        """Conflict when the version exists, its parent has a child already, or it is a second one without parent."""
        self._insert([row])

    def insert_contributions(self, rows: Iterable[ContributionRow]) -> None:
        """Conflict when a device has a contribution in this round already."""
        found = list(rows)
        self._count_rounds(found)
        self._insert(found)

    def _count_rounds(self, rows: Sequence[ContributionRow]) -> None:
        """Counts these contributions, which are not stored yet."""
        counts = Counter(row.device for row in rows)
        devices = self._ask(_IN_CLASSES, devices=list(counts)) if counts else []
        self._count_devices((label, {"rounds": counts[one], "heard": 1 - bool(heard)}) for one, label, heard in devices)

    def _count_devices(self, changes: Iterable[tuple[str, Mapping[str, int]]]) -> None:
        """Adds (label of a device, what is added to the numbers of its class)."""
        sums: dict[str, Counter[str]] = {}
        for label, more in changes:
            for name in (said_class(label), ALL_CLASSES):
                sums.setdefault(name, Counter()).update(more)
        if sums:
            self.hold_pool()
            before = {row.device_class: row for row in self._all(ClassRow, {"device_class in": sorted(sums)})}
            for name, added in sorted(sums.items()):
                row = before.get(name, ClassRow(device_class=name))
                self._put([replace(row, **{number: getattr(row, number) + more for number, more in added.items()})])

    def put_round(self, row: RoundRow) -> None:
        """Inserts or replaces. Conflict when the round has ended and this row has another status."""
        if not self._put([row], when=_still_open):
            raise self._failed(Conflict(f"Round {row.round} of run {row.run} has ended; its status is final."))

    def insert_refusals(self, rows: Iterable[RefusalRow]) -> None:
        for run, found in by_run(rows).items():
            advanced = self._advance(RefusalRow, run, "refusals", len(found))
            if advanced is None:
                self._missing(f"run {run}")
            last, link = advanced
            self._insert(chain_refusals(run, link, last - len(found), found))

    def insert_marks(self, rows: Iterable[MarkRow]) -> None:
        """Of the marks of a device by a run on the same tensors the first one stays."""
        self._put(rows, keep=None)

    def insert_audit(self, rows: Iterable[AuditRow]) -> None:
        """Numbers, chains and signs the rows. Waits for other transactions that have inserted some: all replicas share
        one lock. So that no two wait for each other, make it the transaction's last write.

        Locks are taken in this order: the runs that the rows name (which the foreign key would take at the insert,
        when the audit's is held already), the audit's head. Check-ins and updates insert none.
        """
        found = list(rows)
        if not found:
            return
        for run in sorted({row.run for row in found if row.run is not None}):
            if self._lock(RunNameRow, run, "run", share=True) is None:
                self._missing(f"run {run}")
        ends = self._lock(AuditHeadRow, 1, "count link")
        if ends is None:
            self._missing("head of the audit: somebody has deleted it")
        before = AuditHeadRow(count=ends[0], link=ends[1])
        chained, head = chain_audit(before, found, self._audit_signer)
        self._insert(replace(row, number=number) for number, row in chained)
        self._update(AuditHeadRow, {"id": 1}, count=head.count, link=head.link)

    def put_metrics(self, rows: Iterable[MetricRow]) -> None:
        self._put(self._finite(row) for row in rows)

    def put_rows(self, run: str, changes: Changes) -> None:
        """Writes rows of a run and its devices and workers as another store has them, of whichever tables: links and
        counters too. Rows that the store numbers are new ones and get their numbers here, and the audit's are chained
        anew. Other runs' claims stay, and so do real devices and workers of the same id."""
        self.hold_pool()  # for the numbers of classes: before claims are locked
        self._count_copied([row for row in changes.get(DeviceRow, {}).values() if row is not None])
        for about in reversed(parents_first()):
            self._delete_keys(about, run, [key for key, row in changes.get(about.row, {}).items() if row is None])
        for about in parents_first():
            rows = [row for row in changes.get(about.row, {}).values() if row is not None]
            if about.row is AuditRow or not rows:
                continue
            if about.row is ContributionRow:  # devices are written by then
                self._count_rounds(rows)
            if about.counted:
                self._insert(replace(row, number=0) for row in rows)
            else:
                keep, when = _SHARED.get(about.row, ((), None))
                self._put(rows, keep, when)
        self.insert_audit(changes.get(AuditRow, {}).values())

    def _count_copied(self, rows: Sequence[DeviceRow]) -> None:
        """Counts the devices that another store has, and this one does not have yet, or has in another class."""
        known = {row.device: row for row in self.devices_named([row.device for row in rows])}
        fresh = [row for row in rows if row.device not in known]
        moved = [
            (old, row)
            for row in rows
            if (old := known.get(row.device)) is not None
            and (old.label, old.left_at) != (row.label, row.left_at)
            and _is_simulated(old, row)
        ]
        self._count_devices((row.label, _numbers(row)) for row in fresh)
        took_part = self.participation([row.device for row, _ in moved]) if moved else {}
        for old, row in moved:
            rounds = took_part[row.device].rounds if row.device in took_part else 0
            before = {name: -number for name, number in _numbers(old, rounds).items()}
            self._count_devices([(old.label, before), (row.label, _numbers(row, rounds))])

    def _delete_keys(self, about: Declared, run: str, keys: list[tuple[Any, ...]]) -> None:
        """Deletes the rows of these keys; where the table says whose they are, those of the run."""
        *beside, last = about.key
        among: dict[tuple[Any, ...], list[Any]] = {}
        for key in keys:
            among.setdefault(key[:-1], []).append(key[-1])
        of_run: Where = {"run": run} if "run" in about.names else {}
        for values, found in among.items():
            self._delete(about.row, {**of_run, **dict(zip(beside, values, strict=True)), f"{last} in": found})

    def insert_login(self, row: LoginRow) -> None:
        """Conflict when the id is in use."""
        self._insert([row])

    def drop_logins(self, logins: Iterable[str]) -> int:
        """Deletes these logins and returns how many of them there were: of two transactions that delete one, one
        counts it."""
        return self._delete(LoginRow, {"login in": list(logins)})

    def insert_messages(self, rows: Iterable[MessageRow]) -> None:
        """One whose digest the run has already is of the newer round from now on."""
        self._put(rows)

    def drop_messages(self, run: str, round: int) -> None:
        """Deletes all messages of this round."""
        self._delete(MessageRow, {"run": run, "round": round})

    def _set(self, row: type, key: str, name: str, **changes: object) -> None:
        """Changes the row of this key. StoreError when there is none."""
        if not self._update(row, {key: name}, **changes):
            self._missing(f"{key} {name}")

    def _fence(self, run: str) -> int:
        """The run's fence, which stays so until the transaction ends."""
        found = self._lock(RunRow, run, "fence")
        if found is None:
            self._missing(f"run {run}")
        return int(found[0])

    def _missing(self, what: str) -> NoReturn:
        raise self._failed(StoreError(f"The store has no {what}."))

    def _text(self, body: Json) -> str:
        try:
            return to_text(body)
        except StoreError as error:
            raise self._failed(error) from None

    def _finite(self, row: MetricRow) -> MetricRow:
        try:
            finite(row.value, row.name)
        except StoreError as error:
            raise self._failed(error) from None
        return row


class Store(Reader, OnDisk):
    """Reads of committed data, and writing transactions."""

    audit_signer: Signer | None
    """Signs the rows of the audit that are written through this store. None: they are chained only."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Reader]:
        """Opens a transaction that only reads: all of its reads see the data of one moment, while others write."""
        ...

    @abstractmethod
    def transaction(self, run: str | None = None) -> AbstractContextManager[Transaction]:
        """Opens a writing transaction; with ``run`` it holds that run's lock from the first statement to the end.

        Threads and replicas wait for each other here. StoreError when the lock is not acquired in time, or when this
        thread has a transaction open already.
        """
        ...

    @abstractmethod
    def close(self) -> None:
        """Frees what the store holds; it must not be used afterwards."""
