"""The statements of ``insight.py``, built once for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    literal,
    select,
)
from sqlalchemy.sql.elements import BindParameter

from coordinator.store.insight import HOURS, ReplicaRow
from coordinator.store.rows import ContributionRow, RefusalRow
from coordinator.store.tables import contributions, device_hours, devices, hours, refusals, replicas, rounds

_runs: BindParameter[object] = bindparam("runs", expanding=True)
_among: BindParameter[object] = bindparam("devices", expanding=True)
_hour = bindparam("at_hour", type_=BigInteger)
_counts = [refusals.c.kind != "abandoned"]


class Scoped(NamedTuple):
    """One statement, about all runs and about some."""

    everywhere: Select[Any]
    within: Select[Any]

    @classmethod
    def over(cls, statement: Select[Any], run: ColumnElement[Any]) -> Scoped:
        return cls(statement, statement.where(run.in_(_runs)))

    def of(self, runs: Sequence[str] | None) -> Select[Any]:
        """The one that takes these ``runs``; None: all."""
        return self.everywhere if runs is None else self.within


LABELS = select(devices.c.device, devices.c.label).where(devices.c.device.in_(_among))
COUNTED = select(contributions.c.device, func.count()).group_by(contributions.c.device)
COUNTED_AMONG = Scoped.over(COUNTED.where(contributions.c.device.in_(_among)), contributions.c.run)
REFUSED = select(refusals.c.device, func.count()).where(*_counts).group_by(refusals.c.device)
REFUSED_AMONG = Scoped.over(REFUSED.where(refusals.c.device.in_(_among)), refusals.c.run)
COUNTED_IN = Scoped.over(
    select(*(contributions.c[field.name] for field in fields(ContributionRow)))
    .join_from(
        contributions, rounds, and_(rounds.c.run == contributions.c.run, rounds.c.round == contributions.c.round)
    )
    .where(contributions.c.device == bindparam("device"))
    .order_by(rounds.c.closed_at.desc(), contributions.c.run, contributions.c.round.desc())
    .limit(bindparam("limit")),
    contributions.c.run,
)
REFUSED_IN = Scoped.over(
    select(*(refusals.c[field.name] for field in fields(RefusalRow)))
    .where(refusals.c.device == bindparam("device"))
    .order_by(refusals.c.number.desc())
    .limit(bindparam("limit")),
    refusals.c.run,
)
SEEN_SINCE = select(func.count()).select_from(devices).where(devices.c.last_seen_at >= bindparam("at"))
SEEN_BY_HOUR = select(hours.c.hour, hours.c.devices).where(hours.c.hour >= bindparam("since"))
DEVICE_HOURS = select(device_hours.c.hour, device_hours.c.seen).where(device_hours.c.device == bindparam("device"))
SEEN_IN_HOUR = (
    select(devices.c.device, _hour, literal(1, BigInteger))
    .where(devices.c.last_seen_at >= bindparam("at", type_=Double))
    .where(~exists().where(device_hours.c.device == devices.c.device, device_hours.c.hour >= _hour))
)
"""Devices of which this hour is to be noted, as rows of ``device_hours``."""
_back = cast(_hour - device_hours.c.hour, Integer)
SEEN_BEFORE = case(
    (_back >= HOURS, literal(0, BigInteger)),
    else_=device_hours.c.seen.bitwise_lshift(_back).bitwise_and((1 << HOURS) - 1),
)
"""What is noted already, counted from the new hour."""
REPLICAS = select(*(replicas.c[field.name] for field in fields(ReplicaRow))).order_by(replicas.c.replica)
DROP_HOURS = delete(hours).where(hours.c.hour < bindparam("at_hour"))
DROP_REPLICAS = delete(replicas).where(replicas.c.seen_at < bindparam("at_seen"))
SQLITE_BYTES = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
POSTGRESQL_BYTES = "SELECT pg_database_size(current_database())"
