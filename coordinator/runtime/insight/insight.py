"""What people look at more closely, of one coordinator; what this process says of itself and of the disk; and that it
is alive, for the others that serve its database.
"""

from __future__ import annotations

import os
import platform
import shutil
import threading
from contextlib import suppress
from typing import Protocol

from client_sdk.extensions import installed_version
from client_sdk.protocol.insight import GroupRequests, ReplicaView, StorageView, SystemView
from coordinator.blobs import Gone
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.identities import Identities
from coordinator.runtime.insight.fleet_views import FleetViews
from coordinator.runtime.insight.lanes import Lanes, Leases
from coordinator.runtime.insight.participation import ParticipationViews
from coordinator.runtime.insight.plan_check import PlanCheck
from coordinator.runtime.insight.privacy_report import PrivacyReports
from coordinator.store.rows import ReplicaRow

_KEPT_S = 60.0
_FORGET_S = 3600.0
"""Seconds after which a process that is silent is no replica any more."""


class ProcessReport(Protocol):
    """What the server of this process counts."""

    def requests(self) -> list[GroupRequests]: ...
    def streams(self) -> int: ...
    def viewers(self) -> int: ...


class System:
    """Safe from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._kept: tuple[float, StorageView] | None = None
        self.name = f"{platform.node() or 'coordinator'}-{os.getpid()}"
        """Under which this process is known to the others."""
        self.process: ProcessReport | None = None
        """Set by the server, where there is one."""

    def view(self) -> SystemView:
        process = self.process
        return SystemView(
            version=installed_version(),
            replicas=[
                ReplicaView(name=row.replica, version=row.version, seen_at=row.seen_at)
                for row in self._core.store.replicas()
            ],
            storage=self._storage(),
            requests=process.requests() if process is not None else [],
            streams=process.streams() if process is not None else 0,
            viewers=process.viewers() if process is not None else 0,
        )

    def note_alive(self) -> None:
        """Writes this process's row. Called every half minute while it serves."""
        now = self._core.clock.now()
        with self._core.store.transaction() as tx:
            tx.put_replica(ReplicaRow(replica=self.name, version=installed_version(), seen_at=now))
            tx.drop_replicas(now - _FORGET_S)

    def _storage(self) -> StorageView:
        now = self._core.clock.now()
        with self._lock:
            if self._kept is None or not 0 <= now - self._kept[0] < _KEPT_S:
                self._kept = (now, self._measured())
            return self._kept[1]

    def _measured(self) -> StorageView:
        database = self._core.store.size_bytes()
        if database is None:
            return StorageView()
        blobs = self._core.blobs
        total = 0
        for digest in blobs.digests():
            with suppress(Gone):
                total += blobs.size(digest)
        free = None
        with suppress(OSError):
            free = shutil.disk_usage(self._core.settings.data).free
        return StorageView(database_bytes=database, blob_bytes=total, disk_free_bytes=free)


class Insight:
    def __init__(self, core: Core, fleet: Fleet, identities: Identities) -> None:
        self.lanes = Lanes(core)
        self.leases = Leases(core)
        self.participation = ParticipationViews(core)
        self.fleet = FleetViews(core, fleet, identities)
        self.plans = PlanCheck(core)
        self.privacy_reports = PrivacyReports(core)
        self.system = System(core)

    def note(self) -> None:
        """Notes what is counted by time. Called every half minute while a process serves; not by simulations."""
        self.system.note_alive()
        self.fleet.note_hours()
