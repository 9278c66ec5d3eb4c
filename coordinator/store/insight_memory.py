"""``insight.py`` of the memory store: mixed into its reads and into its transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from coordinator.store.insight import HOUR_S, HOURS, DeviceHours, Participation, ReplicaRow
from coordinator.store.memory_tables import ALL, Tables
from coordinator.store.rows import ContributionRow, RefusalRow


class MemoryInsightReads:
    """The InsightReader over ``tables``. ``guard`` excludes commits during a read."""

    def __init__(self, tables: Tables, guard: AbstractContextManager[bool]) -> None:
        self._t = tables
        self._guard = guard

    def labels(self, devices: Sequence[str]) -> dict[str, str]:
        with self._guard:
            found = {device: self._t.devices.get(ALL, device) for device in devices}
        return {device: row.label for device, row in found.items() if row is not None}

    def participation(
        self, devices: Sequence[str] | None = None, runs: Sequence[str] | None = None
    ) -> dict[str, Participation]:
        with self._guard:
            counted = Counter(row.device for row in self._all_contributions(runs))
            refused = Counter(row.device for _, row in self._all_refusals(runs) if row.kind != "abandoned")
        wanted = (
            counted.keys() | refused.keys() if devices is None else set(devices) & (counted.keys() | refused.keys())
        )
        return {device: Participation(counted[device], refused[device]) for device in wanted}

    def counted_in(self, device: str, limit: int, runs: Sequence[str] | None = None) -> list[ContributionRow]:
        with self._guard:
            mine = [row for row in self._all_contributions(runs) if row.device == device]
            closed = {(row.run, row.round): self._t.rounds.get(row.run, row.round) for row in mine}

        def newest_first(row: ContributionRow) -> tuple[float, str, int]:
            found = closed[row.run, row.round]
            return (-(found[0].closed_at or 0.0) if found is not None else 0.0, row.run, -row.round)

        return sorted((row for row in mine if closed[row.run, row.round] is not None), key=newest_first)[:limit]

    def refused_in(self, device: str, limit: int, runs: Sequence[str] | None = None) -> list[RefusalRow]:
        with self._guard:
            mine = [(number, row) for number, row in self._all_refusals(runs) if row.device == device]
        return [row for _, row in sorted(mine, key=lambda found: -found[0])][:limit]

    def seen_since(self, at: float) -> int:
        with self._guard:
            rows = self._t.devices.rows(ALL).values()
        return sum(row.last_seen_at is not None and row.last_seen_at >= at for row in rows)

    def seen_by_hour(self, since: int) -> dict[int, int]:
        with self._guard:
            return {hour: devices for hour, devices in self._t.hours.rows(ALL).items() if hour >= since}

    def device_hours(self, device: str) -> DeviceHours:
        with self._guard:
            return self._t.device_hours.get(ALL, device) or DeviceHours()

    def replicas(self) -> list[ReplicaRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.replicas.rows(ALL).items())]

    def damage(self) -> list[str]:
        return []

    def size_bytes(self) -> int | None:
        return None

    def _all_contributions(self, runs: Sequence[str] | None) -> Iterator[ContributionRow]:
        for group in self._t.contributions.groups():
            yield from (row for row in self._t.contributions.rows(group).values() if runs is None or row.run in runs)

    def _all_refusals(self, runs: Sequence[str] | None) -> Iterator[tuple[int, RefusalRow]]:
        for group in self._t.refusals.groups():
            yield from (item for item in self._t.refusals.rows(group).items() if runs is None or item[1].run in runs)


class MemoryInsightWrites(MemoryInsightReads):
    """The InsightWriter over ``tables``."""

    def put_hour(self, hour: int, devices: int) -> None:
        self._t.hours.put(ALL, hour, max(devices, self._t.hours.get(ALL, hour) or 0))

    def drop_hours(self, before: int) -> None:
        for hour in self._t.hours.rows(ALL):
            if hour < before:
                self._t.hours.drop(ALL, hour)

    def note_device_hours(self, hour: int) -> None:
        for device, row in self._t.devices.rows(ALL).items():
            noted = self._t.device_hours.get(ALL, device) or DeviceHours(hour)
            back = hour - noted.hour
            if row.last_seen_at is not None and row.last_seen_at >= hour * HOUR_S and (back > 0 or not noted.seen):
                seen = noted.seen << back & (1 << HOURS) - 1 if back < HOURS else 0
                self._t.device_hours.put(ALL, device, DeviceHours(hour, seen | 1))

    def put_replica(self, row: ReplicaRow) -> None:
        self._t.replicas.put(ALL, row.replica, row)

    def drop_replicas(self, before: float) -> None:
        for name, row in self._t.replicas.rows(ALL).items():
            if row.seen_at < before:
                self._t.replicas.drop(ALL, name)
