"""The part of the Store port that people's views of the fleet and of the processes need. No device waits for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from coordinator.store.gateway import Query, Reads, Writes
from coordinator.store.rows import (
    ALL_CLASSES,
    ClassRow,
    ContributionRow,
    DeviceHoursRow,
    DeviceRow,
    HourRow,
    RefusalRow,
    ReplicaRow,
    RoundRow,
)

HOUR_S = 3600
HOURS = 24
"""So many hours of each device are noted."""


class Participation(NamedTuple):
    """How often a device took part, over all runs."""

    rounds: int
    """In which its update counted."""
    refusals: int
    """Of its updates, late ones included; without those of rounds that were abandoned."""


class DeviceHours(NamedTuple):
    """In which hours a device was seen. Hours count from the Unix epoch."""

    hour: int = 0
    """The newest one."""
    seen: int = 0
    """Bit k: it was seen k hours before that."""

    def __contains__(self, hour: object) -> bool:
        back = self.hour - hour if isinstance(hour, int) else -1
        return 0 <= back < HOURS and bool(self.seen >> back & 1)


# Queries: each in SQL, and in Python over the reader


def _among(sa: Any, column: Any, name: str) -> Any:
    return column.in_(sa.bindparam(name, expanding=True))


def _counted(sa: Any, t: Any) -> Any:
    return sa.select(t.contributions.c.device, sa.func.count()).group_by(t.contributions.c.device)


def _refused(sa: Any, t: Any) -> Any:
    refusals = t.refusals.c
    counts = refusals.kind != "abandoned"
    return sa.select(refusals.device, sa.func.count()).where(counts).group_by(refusals.device)


def _count_devices(row: type) -> Any:
    """How many rows of each device count, in Python."""

    def count(reader: Any, devices: Sequence[str], runs: Sequence[str] | None = None) -> Any:
        return Counter(
            one.device
            for one in reader._all(row, {"device in": devices})
            if (runs is None or one.run in runs) and getattr(one, "kind", "") != "abandoned"
        ).items()

    return count


def _everywhere_and_within(statement: Any, column: Any, python: Any) -> tuple[Query, Query]:
    """The query about all runs, and about ``runs`` alone. ``column``: that of the run."""
    return (
        Query(statement, python),
        Query(lambda sa, t: statement(sa, t).where(_among(sa, column(t), "runs")), python),
    )


_COUNTED_AMONG = _everywhere_and_within(
    lambda sa, t: _counted(sa, t).where(_among(sa, t.contributions.c.device, "devices")),
    lambda t: t.contributions.c.run,
    _count_devices(ContributionRow),
)
_REFUSED_AMONG = _everywhere_and_within(
    lambda sa, t: _refused(sa, t).where(_among(sa, t.refusals.c.device, "devices")),
    lambda t: t.refusals.c.run,
    _count_devices(RefusalRow),
)


def _newest_contributions(
    reader: Any, device: str, limit: int, runs: Sequence[str] | None = None
) -> list[ContributionRow]:
    found = [
        (-(round_.closed_at or 0.0), row.run, -row.round, row)
        for row in reader._all(ContributionRow, {"device": device})
        if (runs is None or row.run in runs) and (round_ := reader._get(RoundRow, row.run, row.round)) is not None
    ]
    return [row for *_, row in sorted(found, key=lambda one: one[:3])[:limit]]


_COUNTED_IN = _everywhere_and_within(
    lambda sa, t: (
        sa.select(t.contributions)
        .join(
            t.rounds,
            (t.rounds.c.run == t.contributions.c.run) & (t.rounds.c.round == t.contributions.c.round),
        )
        .where(t.contributions.c.device == sa.bindparam("device"))
        .order_by(t.rounds.c.closed_at.desc(), t.contributions.c.run, t.contributions.c.round.desc())
        .limit(sa.bindparam("limit"))
    ),
    lambda t: t.contributions.c.run,
    _newest_contributions,
)


_TO_NOTE = Query(
    sql=lambda sa, t: (
        sa.select(t.devices.c.device, t.device_hours.c.hour, t.device_hours.c.seen)
        .join(t.device_hours, t.device_hours.c.device == t.devices.c.device, isouter=True)
        .where(
            t.devices.c.last_seen_at >= sa.bindparam("at", type_=sa.Double()),
            sa.func.coalesce(t.device_hours.c.hour, -1) < sa.bindparam("hour", type_=sa.BigInteger()),
        )
    ),
    python=lambda reader, at, hour: (
        (row.device, noted and noted.hour, noted and noted.seen)
        for row in reader._all(DeviceRow, {"last_seen_at >=": at})
        if (noted := reader._get(DeviceHoursRow, row.device)) is None or noted.hour < hour
    ),
)
"""(device, newest hour that is noted, its bits), None where nothing is noted: where this hour is to be noted."""


class InsightReader(Reads):
    """Reads, usable inside a transaction and outside."""

    def registered_devices(self) -> int:
        """How many devices are registered and have not left."""
        return self.all_classes().devices

    def all_classes(self) -> ClassRow:
        """The numbers of all classes together."""
        return self._get(ClassRow, ALL_CLASSES) or ClassRow(device_class=ALL_CLASSES)

    def device_classes(self, most: int) -> list[ClassRow]:
        """The classes with the most devices, in this order; of those with as many, that which sorts last first."""
        found = self._all(ClassRow, {"devices >": 0}, "-devices -device_class", most + 1)
        return [row for row in found if row.device_class != ALL_CLASSES][:most]

    def labels(self, devices: Sequence[str]) -> dict[str, str]:
        """The labels of those of these devices that are known."""
        return {row[0]: row[1] for row in self._values(DeviceRow, "device label", {"device in": list(devices)})}

    def participation(self, devices: Sequence[str], runs: Sequence[str] | None = None) -> dict[str, Participation]:
        """Of these devices those that took part or were refused at least once. ``runs``: in these alone; None: in
        all."""
        more = {"devices": list(devices), **_within(runs)}
        counted, refused = (self._pairs(query[runs is not None], **more) for query in (_COUNTED_AMONG, _REFUSED_AMONG))
        found = {**counted, **refused}
        return {device: Participation(counted.get(device, 0), refused.get(device, 0)) for device in found}

    def _pairs(self, query: Query, **parameters: object) -> dict[str, int]:
        return {row[0]: row[1] for row in self._ask(query, **parameters)}

    def counted_in(self, device: str, limit: int, runs: Sequence[str] | None = None) -> list[ContributionRow]:
        """The contributions of a device to rounds, of these runs or of all, the round that closed last first."""
        query = _COUNTED_IN[runs is not None]
        return self._ask(query, ContributionRow, device=device, limit=limit, **_within(runs))

    def refused_in(self, device: str, limit: int, runs: Sequence[str] | None = None) -> list[RefusalRow]:
        """The refusals of a device, of these runs or of all, newest first."""
        within = {} if runs is None else {"run in": list(runs)}
        return self._all(RefusalRow, {"device": device, **within}, "-number", limit)

    def registered_among(self, devices: Sequence[str]) -> int:
        """How many of these devices are registered and have not left."""
        return len(self._values(DeviceRow, "device", {"device in": list(devices), "left_at": None}))

    def seen_since(self, at: float) -> int:
        """How many devices sent a request at this time or later."""
        return self._count(DeviceRow, {"last_seen_at >=": at})

    def seen_by_hour(self, since: int) -> dict[int, int]:
        """Hour -> devices seen in it, as far as they were noted, from this hour on. Hours count from the Unix epoch."""
        return {row.hour: row.devices for row in self._all(HourRow, {"hour >=": since})}

    def device_hours(self, device: str) -> DeviceHours:
        """The hours in which a device was seen, as far as they were noted."""
        row = self._get(DeviceHoursRow, device)
        return DeviceHours() if row is None else DeviceHours(row.hour, row.seen)

    def replicas(self) -> list[ReplicaRow]:
        """In order of name."""
        return self._all(ReplicaRow)


def _within(runs: Sequence[str] | None) -> dict[str, object]:
    return {} if runs is None else {"runs": list(runs)}


def _shifted(seen: int, back: int) -> int:
    """The bits, counted from an hour that is so many hours later."""
    return seen << back & (1 << HOURS) - 1 if back < HOURS else 0


def _later_hour(old: Any, new: Any) -> Any:
    return old.hour < new.hour


def _more_devices(old: Any, new: Any) -> Any:
    return old.devices < new.devices


class InsightWriter(InsightReader, Writes):
    """Writes of a process about itself and about the fleet."""

    def put_hour(self, hour: int, devices: int) -> None:
        """Notes how many devices were seen in an hour. A higher number that is noted already stays."""
        self._put([HourRow(hour=hour, devices=devices)], when=_more_devices)

    def drop_hours(self, before: int) -> None:
        self._delete(HourRow, {"hour <": before})

    def note_device_hours(self, hour: int) -> None:
        """Notes of each device that was seen since this hour began, and of which this hour or a later one is not noted
        yet, that it was seen in it."""
        self._put(
            (
                DeviceHoursRow(device=device, hour=hour, seen=_shifted(seen or 0, hour - (noted or 0)) | 1)
                for device, noted, seen in self._ask(_TO_NOTE, at=hour * HOUR_S, hour=hour)
            ),
            when=_later_hour,
        )

    def put_replica(self, row: ReplicaRow) -> None:
        """Inserts or replaces."""
        self._put([row])

    def drop_replicas(self, before: float) -> None:
        """Deletes those that were last seen before this time."""
        self._delete(ReplicaRow, {"seen_at <": before})


class OnDisk(ABC):
    """A store that may be on a disk."""

    @abstractmethod
    def size_bytes(self) -> int | None:
        """The size of the database in bytes; None: it is in memory."""

    @abstractmethod
    def damage(self) -> list[str]:
        """What the database finds wrong with its own file, a sentence each."""
