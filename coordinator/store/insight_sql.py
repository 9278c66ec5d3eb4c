"""``insight.py`` of the SQL store: mixed into its reads and into its transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Executable

from coordinator.store import insight_statements as sql
from coordinator.store.insight import DeviceHours, Participation, ReplicaRow
from coordinator.store.rows import ContributionRow, RefusalRow

_MOST = 500
"""Ids in one statement."""

Row = TypeVar("Row", ContributionRow, RefusalRow, ReplicaRow)


class SqlInsightReads(ABC):
    """The InsightReader over ``_read``."""

    @abstractmethod
    def _read(self, statement: Executable, /, **parameters: object) -> Sequence[Sequence[Any]]:
        """All rows of the statement's result."""

    def labels(self, devices: Sequence[str]) -> dict[str, str]:
        return dict(self._among(sql.LABELS, devices))

    def participation(
        self, devices: Sequence[str] | None = None, runs: Sequence[str] | None = None
    ) -> dict[str, Participation]:
        if devices is None:
            counted, refused = dict(map(tuple, self._read(sql.COUNTED))), dict(map(tuple, self._read(sql.REFUSED)))
        else:
            counted, refused = (
                dict(self._among(statement.of(runs), devices, **_within(runs)))
                for statement in (sql.COUNTED_AMONG, sql.REFUSED_AMONG)
            )
        found = {**counted, **refused}
        return {device: Participation(counted.get(device, 0), refused.get(device, 0)) for device in found}

    def counted_in(self, device: str, limit: int, runs: Sequence[str] | None = None) -> list[ContributionRow]:
        found = self._read(sql.COUNTED_IN.of(runs), device=device, limit=limit, **_within(runs))
        return [_row(ContributionRow, values) for values in found]

    def refused_in(self, device: str, limit: int, runs: Sequence[str] | None = None) -> list[RefusalRow]:
        found = self._read(sql.REFUSED_IN.of(runs), device=device, limit=limit, **_within(runs))
        return [_row(RefusalRow, values) for values in found]

    def seen_since(self, at: float) -> int:
        return int(self._read(sql.SEEN_SINCE, at=at)[0][0])

    def seen_by_hour(self, since: int) -> dict[int, int]:
        return {int(hour): int(devices) for hour, devices in self._read(sql.SEEN_BY_HOUR, since=since)}

    def device_hours(self, device: str) -> DeviceHours:
        found = self._read(sql.DEVICE_HOURS, device=device)
        return DeviceHours(*map(int, found[0])) if found else DeviceHours()

    def replicas(self) -> list[ReplicaRow]:
        return [_row(ReplicaRow, values) for values in self._read(sql.REPLICAS)]

    def _among(self, statement: Executable, devices: Sequence[str], **more: object) -> list[tuple[str, Any]]:
        """The (device, value) pairs of a statement about these devices."""
        parts = [devices[first : first + _MOST] for first in range(0, len(devices), _MOST)]
        return [(row[0], row[1]) for part in parts for row in self._read(statement, devices=list(part), **more)]


def _within(runs: Sequence[str] | None) -> dict[str, object]:
    return {} if runs is None else {"runs": list(runs)}


def _row(kind: type[Row], values: Sequence[Any]) -> Row:
    return kind(**dict(zip((field.name for field in fields(kind)), values, strict=True)))
