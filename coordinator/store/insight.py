"""The part of the Store port that people's views of the fleet and of the processes need. No device waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from coordinator.store.rows import ContributionRow, RefusalRow

HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """A process that serves this database, or did until lately."""

    replica: str
    version: str
    """Of Quorate."""
    seen_at: float


class Participation(NamedTuple):
    """How often a device took part, over all runs."""

    rounds: int
    """In which its update counted."""
    refusals: int
    """Of its updates, late ones included; without those of rounds that were abandoned."""


HOURS = 24
"""So many hours of each device are noted."""


class DeviceHours(NamedTuple):
    """In which hours a device was seen. Hours count from the Unix epoch."""

    hour: int = 0
    """The newest one."""
    seen: int = 0
    """Bit k: it was seen k hours before that."""

    def __contains__(self, hour: object) -> bool:
        back = self.hour - hour if isinstance(hour, int) else -1
        return 0 <= back < HOURS and bool(self.seen >> back & 1)


class InsightReader(Protocol):
    """Reads, usable inside a transaction and outside."""

    def registered_devices(self) -> int:
        """How many devices are registered and have not left."""
        ...

    def labels(self, devices: Sequence[str]) -> dict[str, str]:
        """The labels of those of these devices that are known."""
        ...

    def participation(
        self, devices: Sequence[str] | None = None, runs: Sequence[str] | None = None
    ) -> dict[str, Participation]:
        """Of these devices, or of all, those that took part or were refused at least once. ``runs``: in these alone,
        which needs ``devices``; None: in all."""
        ...

    def counted_in(self, device: str, limit: int, runs: Sequence[str] | None = None) -> list[ContributionRow]:
        """The contributions of a device to rounds, of these runs or of all, the round that closed last first."""
        ...

    def refused_in(self, device: str, limit: int, runs: Sequence[str] | None = None) -> list[RefusalRow]:
        """The refusals of a device, of these runs or of all, newest first."""
        ...

    def seen_since(self, at: float) -> int:
        """How many devices sent a request at this time or later."""
        ...

    def seen_by_hour(self, since: int) -> dict[int, int]:
        """Hour -> devices seen in it, as far as they were noted, from this hour on. Hours count from the Unix epoch."""
        ...

    def device_hours(self, device: str) -> DeviceHours:
        """The hours in which a device was seen, as far as they were noted."""
        ...

    def replicas(self) -> list[ReplicaRow]:
        """In order of name."""
        ...


class InsightWriter(Protocol):
    """Writes of a process about itself and about the fleet."""

    def put_hour(self, hour: int, devices: int) -> None:
        """Notes how many devices were seen in an hour. A higher number that is noted already stays."""
        ...

    def drop_hours(self, before: int) -> None: ...
    def note_device_hours(self, hour: int) -> None:
        """Notes of each device that was seen since this hour began, and of which this hour or a later one is not noted
        yet, that it was seen in it."""
        ...

    def put_replica(self, row: ReplicaRow) -> None:
        """Inserts or replaces."""
        ...

    def drop_replicas(self, before: float) -> None:
        """Deletes those that were last seen before this time."""
        ...


class OnDisk(Protocol):
    """A store that may be on a disk."""

    def size_bytes(self) -> int | None:
        """The size of the database in bytes; None: it is in memory."""
        ...

    def damage(self) -> list[str]:
        """What the database finds wrong with its own file, a sentence each."""
        ...
