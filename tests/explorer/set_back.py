"""The coordinator's folder is set back to a copy of it, and goes on: with devices that were not set back, and that send
it other updates. A copy from before the run was created is a run that is created again, with the same name.

What was acknowledged since the copy is lost, so no invariant is held between before and after, but two: a stream of
noise that was in a sum is in no other one, and each device's own ledger has whatever the device has sent.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from coordinator.blobs import MemoryBlobs
from coordinator.store.memory import MemoryStore
from simulation.virtual.agenda import Agenda
from tests.explorer.device import ExplorerDevice
from tests.explorer.durable import Durable
from tests.explorer.replica import Replica
from tests.explorer.watch import InvariantWatch
from tests.explorer.world import World

OF_WATCH = ("runs", "marks", "spent", "acknowledged")
OF_WORLD = ("fences", "used_fences", "waiting", "asked_again", "caps", "listed_at", "revoked_here")
"""What the checks know of what is durable."""


class FolderCopy:
    """Of what is durable now, and of what is known about it."""

    def __init__(self, world: World, durable: Durable, watch: InvariantWatch) -> None:
        watch.step()
        self._store, self._blobs = _copied(durable)
        known: tuple[list[Any], list[Any]] = (
            [getattr(watch, one) for one in OF_WATCH],
            [getattr(world, one) for one in OF_WORLD],
        )
        self._of_watch, self._of_world = copy.deepcopy(known)  # at once: they share objects

    def set_back(
        self,
        world: World,
        durable: Durable,
        watch: InvariantWatch,
        replicas: Sequence[Replica],
        devices: Sequence[ExplorerDevice],
    ) -> None:
        """Every process is started again, on what was durable then."""
        world.log("the coordinator's folder is set back")
        for replica in replicas:
            replica.stop()
        durable.store, durable.blobs = self._store, self._blobs
        for owner, names, values in ((watch, OF_WATCH, self._of_watch), (world, OF_WORLD, self._of_world)):
            for name, value in zip(names, values, strict=True):
                setattr(owner, name, value)
        world.streams.keys.clear()
        world.agenda = Agenda(world.agenda.now)
        for replica in replicas:
            replica.boot()
        for device in devices:
            device.restart()


def _copied(durable: Durable) -> tuple[MemoryStore, MemoryBlobs]:
    """What is durable, as a copy of the folder has it."""
    store, blobs = MemoryStore(lock_timeout_s=1.0), MemoryBlobs()
    for row, table in durable.store._committed.tables.items():  # type: ignore[attr-defined]
        for key, one in table.all.rows.items():
            store._committed.tables[row].put(key, one)
        store._committed.tables[row].last = table.last
    for digest in list(durable.blobs.digests()):
        with durable.blobs.open(digest) as file:
            blobs.put(file.read())
    return store, blobs
