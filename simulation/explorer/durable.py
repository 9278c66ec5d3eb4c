"""What survives every crash of a schedule: one store and one disk, and what a loss of power leaves of the disk.

The explorer's checks read these directly, never through a replica.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.blobs import Blobs, FileBlobs
from coordinator.store import open_store
from coordinator.store.memory import MemoryStore
from coordinator.store.port import Store
from simulation.explorer.power import UnsyncedFiles
from simulation.explorer.quick import QuickBlobs

if TYPE_CHECKING:
    from simulation.explorer.replica import Replica
    from simulation.explorer.shape import Shape
    from simulation.explorer.world import World


class Durable:
    """``store`` and ``blobs``: the real ones, without faults."""

    def __init__(self, world: World, folder: Path | None, files: UnsyncedFiles | None) -> None:
        self._world = world
        self._files = files
        self.store = _store(world.shape, folder)
        self.blobs: Blobs = QuickBlobs()
        if files is not None and folder is not None:
            self.folder = folder / "blobs"
            self.blobs = FileBlobs(self.folder)

    def open_blobs(self, replica: Replica) -> Blobs:
        """The blobs as a process opens them when it starts."""
        if self._files is None:
            return self.blobs
        self._files.replica = replica
        return FileBlobs(self.folder)

    def crash(self, replica: Replica) -> None:
        """What becomes of the disk when the machine of this replica loses power."""
        if self._files is not None:
            self._files.lose_power(self.folder)

    def close(self) -> None:
        self.store.close()


def scratch() -> str | None:
    """A folder in memory, where there is one: what is durable here is decided by ``power``, not by a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - folders of random names are made in it


@contextmanager
def opened(world: World) -> Iterator[Durable]:
    """The durable things of a schedule, gone when it is over."""
    shape = world.shape
    if shape.store != "sqlite-file" and shape.blobs == "memory":
        durable = Durable(world, None, None)
        try:
            yield durable
        finally:
            durable.close()
        return
    with tempfile.TemporaryDirectory(prefix="quorate-explorer-", dir=scratch()) as name:
        files = UnsyncedFiles(world) if shape.blobs == "files" else None
        durable = Durable(world, Path(name), files)
        try:
            if files is None:
                yield durable
            else:
                with files.watching():
                    yield durable
        finally:
            durable.close()


def _store(shape: Shape, folder: Path | None) -> Store:
    if shape.store == "memory":
        return MemoryStore(lock_timeout_s=1.0)
    if shape.store == "sqlite-file" and folder is not None:
        path = folder / "q.db"
        shutil.copyfile(_template(), path)
        return open_store(f"sqlite:///{path}", lock_timeout_s=1.0)
    return open_store("sqlite://", lock_timeout_s=1.0)


@cache
def _template_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="quorate-explorer-template-", dir=scratch())


@cache
def _template() -> Path:
    """An empty database with its schema: migrating one for each schedule would cost more than the schedule."""
    path = Path(_template_folder().name) / "empty.db"
    open_store(f"sqlite:///{path}").close()
    for tail in ("-wal", "-shm"):
        Path(f"{path}{tail}").unlink(missing_ok=True)
    return path
