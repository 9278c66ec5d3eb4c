"""Every statement of the SQL store, built once for SQLite and PostgreSQL; only upserts depend on the dialect.

Reads select columns in the order of the row's fields. Parameters in a condition of an UPDATE or DELETE begin with
``at_``, because the plain names are those of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from sqlalchemy import (
    CompoundSelect,
    Delete,
    Double,
    Insert,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    union,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.elements import BindParameter, ColumnElement

from coordinator.store import flower_statements, insight_statements, message_statements, port
from coordinator.store.flower_tables import flower_runs
from coordinator.store.insight_statements import SEEN_BEFORE, SEEN_IN_HOUR
from coordinator.store.rows import SPENT, LoginRow
from coordinator.store.tables import (
    api_keys,
    audit,
    audit_head,
    authorities,
    checkpoints,
    claims,
    contributions,
    device_hours,
    devices,
    events,
    hours,
    logins,
    metrics,
    refusals,
    replicas,
    revocation_lists,
    rounds,
    runs,
    secure_marks,
    secure_messages,
    waiting,
    workers,
)


def _select(table: Table, row: type) -> Select[tuple[object, ...]]:
    return select(*(table.c[field.name] for field in fields(row)))


def _is(table: Table, *columns: str) -> list[ColumnElement[bool]]:
    return [table.c[column] == bindparam(column) for column in columns]


def _at(table: Table, *columns: str) -> list[ColumnElement[bool]]:
    return [table.c[column] == bindparam(f"at_{column}") for column in columns]


# Reads

_after: BindParameter[object] = bindparam("after")
_limit: BindParameter[int] = bindparam("limit")
_now: BindParameter[float] = bindparam("now")
_since: BindParameter[float] = bindparam("since", type_=Double())
_free = [
    waiting.c.expires > _now,
    ~select(claims.c.device).where(claims.c.device == waiting.c.device).exists(),
]

RUN = _select(runs, port.RunRow).where(*_is(runs, "run"))
RUNS = _select(runs, port.RunRow).order_by(runs.c.created_at, runs.c.run)
RUN_IDS = select(runs.c.run).order_by(runs.c.created_at, runs.c.run)
HEAD = select(runs.c.seq).where(*_is(runs, "run"))
FENCE = select(runs.c.fence).where(*_is(runs, "run")).with_for_update()
LOCK_RUN = select(runs.c.run).where(*_is(runs, "run")).with_for_update()
EVENTS = (
    _select(events, port.EventRow)
    .where(*_is(events, "run"), events.c.seq > _after)
    .order_by(events.c.seq)
    .limit(_limit)
)
FIND_EVENT = (
    _select(events, port.EventRow)
    .where(*_is(events, "run", "kind"), func.substr(events.c.body, 1, bindparam("length")) == bindparam("beginning"))
    .order_by(events.c.seq)
    .limit(1)
)
DEVICE = _select(devices, port.DeviceRow).where(*_is(devices, "device"))
DEVICE_BY_KEY = _select(devices, port.DeviceRow).where(*_is(devices, "key_id"))
DEVICES_BY_KEYS = _select(devices, port.DeviceRow).where(devices.c.key_id.in_(bindparam("key_ids", expanding=True)))
REGISTERED_DEVICES = select(func.count()).select_from(devices).where(devices.c.left_at.is_(None))
DEVICES = _select(devices, port.DeviceRow).where(devices.c.device > _after).order_by(devices.c.device).limit(_limit)
_CHECKED_IN = _select(devices, port.DeviceRow).where(devices.c.last_seen_at >= _since).order_by(devices.c.device)
IDLE = _CHECKED_IN.where(
    devices.c.left_at.is_(None),
    devices.c.device.not_in(select(claims.c.device)),
    devices.c.device.not_in(select(waiting.c.device).where(waiting.c.expires > _now)),
)
TAKING_TURNS = _CHECKED_IN.where(devices.c.facts.contains('"turns":'))
WORKER = _select(workers, port.WorkerRow).where(*_is(workers, "worker"))
WORKER_BY_KEY = _select(workers, port.WorkerRow).where(*_is(workers, "key_id"))
WORKERS = _select(workers, port.WorkerRow).order_by(workers.c.worker)
REVOCATIONS = (
    select(revocation_lists.c.encoded)
    .where(*_is(revocation_lists, "authority"))
    .order_by(revocation_lists.c.counter.desc())
    .limit(1)
)
REVOCATION_LIST = select(revocation_lists.c.encoded).where(*_is(revocation_lists, "digest"))
AUTHORITIES = _select(authorities, port.AuthorityRow).order_by(authorities.c.number)
API_KEY = _select(api_keys, port.ApiKeyRow).where(*_is(api_keys, "key"))
API_KEYS = _select(api_keys, port.ApiKeyRow).order_by(api_keys.c.key)
LOGIN = _select(logins, LoginRow).where(*_is(logins, "login"))
LOGINS = _select(logins, LoginRow).order_by(logins.c.created_at, logins.c.login)
WAITING = _select(waiting, port.WaitingRow).where(*_free).order_by(waiting.c.device)
WAITING_AMONG = WAITING.where(waiting.c.device.in_(bindparam("devices", expanding=True)))
WAITING_BY_OFFER = select(waiting.c.offer, func.count()).where(*_free).group_by(waiting.c.offer)
CLAIM = _select(claims, port.ClaimRow).where(*_is(claims, "device"))
CLAIMS = _select(claims, port.ClaimRow).order_by(claims.c.device)
CLAIMS_OF_RUN = CLAIMS.where(*_is(claims, "run"))
CHECKPOINTS = _select(checkpoints, port.CheckpointRow).where(*_is(checkpoints, "run")).order_by(checkpoints.c.version)
CHECKPOINT = _select(checkpoints, port.CheckpointRow).where(*_is(checkpoints, "run", "version"))
RUNS_WITH_CHECKPOINT = (
    select(checkpoints.c.run).where(*_is(checkpoints, "digest")).distinct().order_by(checkpoints.c.run)
)
CONTRIBUTIONS = (
    _select(contributions, port.ContributionRow)
    .where(*_is(contributions, "run", "round"))
    .order_by(contributions.c.device)
)
CONTRIBUTION = _select(contributions, port.ContributionRow).where(*_is(contributions, "run", "round", "device"))
ROUND = _select(rounds, port.RoundRow).where(*_is(rounds, "run", "round"))
ROUNDS = (
    _select(rounds, port.RoundRow)
    .where(*_is(rounds, "run"), rounds.c.round > _after)
    .order_by(rounds.c.round)
    .limit(_limit)
)
REFUSALS = _select(refusals, port.RefusalRow).where(*_is(refusals, "run", "round")).order_by(refusals.c.number)
REFUSALS_IN_ORDER = _select(refusals, port.RefusalRow).where(*_is(refusals, "run")).order_by(refusals.c.number)
AUDIT = _select(audit, port.AuditRow).where(*_is(audit, "run")).order_by(audit.c.number)
AUDIT_OF_ALL = (
    select(audit.c.number, *(audit.c[field.name] for field in fields(port.AuditRow)))
    .where(audit.c.number > _after)
    .order_by(audit.c.number)
    .limit(_limit)
)
AUDIT_HEAD = _select(audit_head, port.AuditHeadRow).where(audit_head.c.id == 1)
LOCK_AUDIT = AUDIT_HEAD.with_for_update()
METRICS = (
    _select(metrics, port.MetricRow)
    .where(*_is(metrics, "run"))
    .order_by(metrics.c.version, metrics.c.source, metrics.c.name)
)

MARKS = (
    _select(secure_marks, port.MarkRow)
    .where(*_is(secure_marks, "tensors"))
    .order_by(secure_marks.c.device, secure_marks.c.run)
)
MARKED_DEVICES = (
    select(func.count(secure_marks.c.device.distinct()))
    .join_from(secure_marks, devices, secure_marks.c.device == devices.c.device)
    .where(
        *_is(secure_marks, "tensors"),
        devices.c.left_at.is_(None),
        secure_marks.c.kind.in_(bindparam("kinds", expanding=True)),
    )
)
MARKS_OF_RUN = (
    _select(secure_marks, port.MarkRow)
    .where(*_is(secure_marks, "run"))
    .order_by(secure_marks.c.tensors, secure_marks.c.device)
)

_ENGINE = (runs, events, claims, checkpoints, contributions, rounds, refusals, secure_marks, secure_messages, metrics)
"""What only runs of the engine have rows in."""
RUNS_NAMED = union(
    *(select(table.c.run).where(table.c.run.is_not(None)) for table in _ENGINE),
    select(audit.c.run).where(audit.c.run.is_not(None), audit.c.run.not_in(select(flower_runs.c.run))),
)
ROWS_BY_ROUND = union_all(
    *(
        select(literal(table.name), table.c.round, func.count()).where(*_is(table, "run")).group_by(table.c.round)
        for table in (rounds, contributions, refusals)
    )
)

# Writes

INSERT_RUN = insert(runs)
ADVANCE = (
    update(runs)
    .where(*_at(runs, "run"))
    .values(seq=runs.c.seq + bindparam("by"))
    .returning(
        runs.c.seq,
        select(events.c.link).where(*_at(events, "run")).order_by(events.c.seq.desc()).limit(1).scalar_subquery(),
    )
)
"""Returns the last sequence number, and the link of the event before the new ones."""


def _count_rows(table: Table, counter: str) -> Update:
    """Raises the run's counter of a chained table. Returns it, and the link of the last row."""
    return (
        update(runs)
        .where(*_at(runs, "run"))
        .values({counter: runs.c[counter] + bindparam("by")})
        .returning(
            runs.c[counter],
            select(table.c.link).where(*_at(table, "run")).order_by(table.c.number.desc()).limit(1).scalar_subquery(),
        )
    )


COUNT_REFUSALS = _count_rows(refusals, "refusals")
INSERT_EVENTS = insert(events)
SNAPSHOT = update(runs).where(*_at(runs, "run"))
RAISE_FENCE = update(runs).where(*_at(runs, "run")).values(fence=runs.c.fence + 1).returning(runs.c.fence)
INSERT_DEVICE = insert(devices)
_certified: dict[str, BindParameter[object]] = {"key_id": bindparam("key_id"), "certificate": bindparam("certificate")}
CERTIFY_DEVICE = update(devices).where(*_at(devices, "device")).values(_certified)
FORGET_DEVICE = (
    update(devices)
    .where(*_at(devices, "device"))
    .values(
        key_id=None,
        certificate="",
        label="",
        facts="{}",
        left_at=func.coalesce(devices.c.left_at, bindparam("left_at")),
    )
)
SEEN = (
    update(devices)
    .where(*_at(devices, "device"))
    .values(last_seen_at=bindparam("last_seen_at"), facts=bindparam("facts"))
)
INSERT_WORKER = insert(workers)
CERTIFY_WORKER = update(workers).where(*_at(workers, "worker")).values(_certified)
SEEN_WORKER = update(workers).where(*_at(workers, "worker")).values(last_seen_at=bindparam("last_seen_at"))
REVOKE_WORKER = (
    update(workers)
    .where(*_at(workers, "worker"))
    .values(revoked_at=func.coalesce(workers.c.revoked_at, bindparam("revoked_at")))
)
DROP_REVOCATIONS = delete(revocation_lists).where(
    *_at(revocation_lists, "authority"),
    revocation_lists.c.counter < bindparam("at_counter"),
    revocation_lists.c.next_update < bindparam("at_now", type_=Double()),  # not rounded to whole seconds
)
INSERT_AUTHORITY = insert(authorities)
INSERT_API_KEY = insert(api_keys)
REVOKE_API_KEY = (
    update(api_keys)
    .where(*_at(api_keys, "key"))
    .values(revoked_at=func.coalesce(api_keys.c.revoked_at, bindparam("revoked_at")))
)
INSERT_LOGIN = insert(logins)
DROP_LOGIN = delete(logins).where(*_at(logins, "login"))
DROP_WAITING = delete(waiting).where(*_at(waiting, "device"))
DROP_HOLD = delete(waiting).where(*_at(waiting, "device", "expires"))
EXPIRE_WAITING = delete(waiting).where(waiting.c.expires <= _now)
INSERT_CLAIMS = insert(claims)
DROP_CLAIMS = delete(claims).where(*_at(claims, "run", "round"))
DROP_CLAIM = delete(claims).where(*_at(claims, "run", "round", "device"))
INSERT_CHECKPOINT = insert(checkpoints)
INSERT_CONTRIBUTIONS = insert(contributions)
INSERT_REFUSALS = insert(refusals)
INSERT_AUDIT = insert(audit)
SET_AUDIT_HEAD = update(audit_head).where(audit_head.c.id == 1).values(count=bindparam("count"), link=bindparam("link"))


class Upserts:
    """The statements that insert or replace, or insert or leave, in one dialect."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.put_waiting = self._upsert(waiting, unchanged=["since"])
        self.put_metrics = self._upsert(metrics)
        self.put_round = self._upsert(rounds, final="status")
        """Changes no row where the round has ended and another status is given."""
        self.put_revocations = self._insert(revocation_lists).on_conflict_do_nothing()
        self.insert_marks = self._strongest_mark()
        self.insert_messages = message_statements.insert_messages(dialect)
        self.put_replica = self._upsert(replicas)
        self.flower = flower_statements.FlowerUpserts(dialect)
        more = self._insert(hours)
        self.put_hour = more.on_conflict_do_update(
            index_elements=["hour"],
            set_={"devices": more.excluded["devices"]},
            where=hours.c.devices < more.excluded["devices"],
        )
        note = self._insert(device_hours).from_select(["device", "hour", "seen"], SEEN_IN_HOUR)
        self.note_device_hours = note.on_conflict_do_update(
            index_elements=["device"],
            set_={"hour": note.excluded["hour"], "seen": SEEN_BEFORE.bitwise_or(1)},
            where=device_hours.c.hour < note.excluded["hour"],
        )

    def _insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        return postgresql.insert(table) if self._dialect == "postgresql" else sqlite.insert(table)

    def _strongest_mark(self) -> Insert:
        """See ``rows.MarkRow.outranks``."""
        statement = self._insert(secure_marks)
        new, old = statement.excluded, secure_marks.c
        return statement.on_conflict_do_update(
            index_elements=[column.name for column in secure_marks.primary_key],
            set_={"round": new.round, "kind": new.kind},
            where=and_(new.kind == SPENT, old.kind != SPENT),
        )

    def _upsert(self, table: Table, unchanged: Sequence[str] = (), final: str | None = None) -> Insert:
        statement = self._insert(table)
        key = [column.name for column in table.primary_key]
        names = [column.name for column in table.c if column.name not in (*key, *unchanged)]
        changes = {name: statement.excluded[name] for name in names}
        where: ColumnElement[bool] | None = None
        if final is not None:
            old = table.c[final]
            where = or_(old.not_in(port.TERMINAL), old == statement.excluded[final])
        statement = statement.on_conflict_do_update(index_elements=key, set_=changes, where=where)
        # Without the option SQLAlchemy does not keep the number of an INSERT's rows: on PostgreSQL it would be -1.
        return statement.execution_options(preserve_rowcount=True)


Statement = Select[tuple[object, ...]] | CompoundSelect[tuple[object, ...]] | Insert | Update | Delete


def all_statements(dialect: str) -> dict[str, Statement]:
    """All statements by name, for the test that compiles them for each dialect without a database."""
    named = {**globals(), **vars(insight_statements), **vars(message_statements), **vars(Upserts(dialect))}
    of_flower = vars(flower_statements) | vars(flower_statements.FlowerUpserts(dialect))
    named |= {f"flower {name}": found for name, found in of_flower.items()}
    kinds = (Select, CompoundSelect, Insert, Update, Delete)
    return {name: found for name, found in named.items() if isinstance(found, kinds)}
