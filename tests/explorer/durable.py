"""What survives every crash of a schedule: one store and one disk, which may lose unsynced files with the power.

The explorer's checks read them directly, not through a replica.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from coordinator.blobs import Blobs, FileBlobs, MemoryBlobs
from coordinator.blobs import files as blob_files
from coordinator.runtime import devices
from coordinator.store import open_store
from coordinator.store.memory import MemoryStore
from coordinator.store.port import MessageRow, Store
from coordinator.store.sql import SqlStore
from tests.explorer.chance import Chance
from tests.explorer.faults import Broken
from tests.explorer.flips import Flips
from tests.explorer.shape import Shape
from tests.explorer.world import World


class UnsyncedFiles:
    """Stands in for the module ``os`` of ``coordinator.blobs.files`` while ``watching``. It forwards every call,
    records each sync of a file and a folder, and may end the process before and after each sync.

    After a loss of power, names that were not synced are missing from the folder, and contents that were not synced are
    torn.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.die_at: Callable[[str], None] | None = None
        """Called where the process that has the files open may die."""
        self._folders: dict[int, str] = {}
        self._names: dict[str, dict[str, int]] = {}
        """Folder -> name -> inode, as of its last sync."""
        self._contents: dict[int, int] = {}
        """Inode -> bytes, as of its last sync."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        self._folders[descriptor] = os.fspath(path)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        if self.die_at is not None:
            self.die_at("before fsync")
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            folder = self._folders[descriptor]
            with os.scandir(folder) as entries:
                self._names[folder] = {entry.name: entry.inode() for entry in entries}
        else:
            self._contents[found.st_ino] = found.st_size
        if self.die_at is not None:
            self.die_at("after fsync")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the block runs, the file blobs use this instead of ``os``."""
        real = vars(blob_files)["os"]
        vars(blob_files)["os"] = self
        try:
            yield
        finally:
            vars(blob_files)["os"] = real

    def lose_power(self, folder: Path) -> None:
        """Each name that was not synced may be gone, each content that was not synced may be torn: independently, so a
        name may survive its bytes."""
        root = self._names.get(os.fspath(folder), {})
        for prefix in sorted(entry.name for entry in os.scandir(folder) if len(entry.name) == 2):
            inside = folder / prefix
            synced = self._names.get(os.fspath(inside), {}) if prefix in root else {}
            for entry in sorted(os.scandir(inside), key=lambda entry: entry.name):
                # The kernel may have written either back by itself, without the other.
                name_written, bytes_written = self._chance.unit("power") < 0.3, self._chance.unit("power bytes") < 0.3
                if synced.get(entry.name) != entry.inode() and not name_written:
                    older = [name for name, inode in synced.items() if inode == entry.inode()]
                    if older and not (inside / older[0]).exists():
                        Path(entry.path).rename(inside / older[0])  # the name before is the one on the disk
                    else:
                        Path(entry.path).unlink()
                elif self._contents.get(entry.inode()) != entry.stat().st_size and not bytes_written:
                    _tear(Path(entry.path), short=self._chance.unit("power short") < 0.5)


def _tear(file: Path, *, short: bool) -> None:
    """The second half of the file's bytes is missing, or has zeros in its place."""
    size = file.stat().st_size
    os.truncate(file, size // 2)
    if not short:
        os.truncate(file, size)


class Durable:
    """``store`` and ``blobs``: the real ones, without faults."""

    def __init__(self, world: World, folder: Path | None, files: UnsyncedFiles | None) -> None:
        self._files = files
        self.store = _store(world.shape, folder)
        self._database = None if folder is None or world.shape.store != "sqlite-file" else folder / "q.db"
        self._copies = 0
        self._left: list[Store] = []
        """Stores of files that were copied, and are not written any more."""
        self.blobs: Blobs = MemoryBlobs()
        self.flips: Flips | None = None
        """Of bits in its files; None without files."""
        if files is not None and folder is not None:
            self.folder = folder / "blobs"
            self.blobs = FileBlobs(self.folder)
            self.flips = Flips(world, self.folder, self.looked_at)

    def open_blobs(self, die_at: Callable[[str], None]) -> Blobs:
        """The blobs as a process opens them when it starts; ``die_at`` is called where it may die."""
        if self._files is None:
            return self.blobs
        self._files.die_at = die_at
        return FileBlobs(self.folder, notice=lambda line: None if self.flips is None else self.flips.told(line))

    def read(self, digest: str) -> bytes:
        """The bytes of a blob; of one that a flipped bit has damaged the right ones. BlobError."""
        found = self._short(digest).get(digest)
        if found is None and self.flips is not None:
            found = self.flips.bytes_of(digest)
        if found is None:
            with self.looked_at(), self.blobs.open(digest) as file:
                found = file.read()
        return found

    def has(self, digest: str) -> bool:
        """Whether the bytes of the blob are there, damaged perhaps."""
        if self._short(digest):
            return True
        return self.blobs.has(digest) if self.flips is None else self.flips.has(digest)

    def digests(self) -> Iterator[str]:
        """Of all blobs, damaged ones included, and of all messages that are rows."""
        yield from self._short()
        yield from self.blobs.digests() if self.flips is None else self.flips.digests()

    def _short(self, *digests: str) -> dict[str, bytes]:
        """The contents of messages that are rows, of all runs, by digest."""
        where = {"digest in": list(digests)} if digests else {}
        return {row.digest: row.content for row in self.store._all(MessageRow, where)}

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Within, no process dies at what happens to the files: the checks read them."""
        if self._files is None:
            yield
            return
        die_at, self._files.die_at = self._files.die_at, lambda where: None
        try:
            yield
        finally:
            self._files.die_at = die_at

    def crash(self, *, alone: bool) -> None:
        """Lets the machine of the disk lose power. ``alone``: no other process has the database open, so it is copied
        as it lies on the disk at this moment, and the copy is opened."""
        if self._files is not None:
            self._files.lose_power(self.folder)
        if alone and self._database is not None:
            self._copies += 1
            copy = self._database.with_name(f"q{self._copies}.db")
            for tail in ("", "-wal"):
                if Path(f"{self._database}{tail}").exists():
                    shutil.copyfile(f"{self._database}{tail}", f"{copy}{tail}")
            self._left.append(self.store)
            self._database, self.store = copy, _synced(open_store(f"sqlite:///{copy}", lock_timeout_s=1.0))

    def close(self) -> None:
        for store in (*self._left, self.store):
            store.close()


def scratch() -> str | None:
    """Returns a folder in memory, where there is one: ``UnsyncedFiles`` decides what is durable, not a disk."""
    # Folders of random names are made in it.
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def opened(world: World) -> Iterator[Durable]:
    """The durable state of a schedule, deleted at its end."""
    with patch.object(devices, "SHORT_BYTES", devices.SHORT_BYTES if world.shape.short_updates else 0):
        yield from _opened(world)


def _opened(world: World) -> Iterator[Durable]:
    shape = world.shape
    if shape.store != "sqlite-file" and shape.blobs == "memory":
        durable = Durable(world, None, None)
        try:
            yield durable
        finally:
            durable.close()
        return
    with tempfile.TemporaryDirectory(prefix="quorate-explorer-", dir=scratch()) as name:
        files = UnsyncedFiles(world.chance) if shape.blobs == "files" else None
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
        return _synced(open_store(f"sqlite:///{path}", lock_timeout_s=1.0))
    return open_store("sqlite://", lock_timeout_s=1.0)


def _synced(store: Store) -> Store:
    """The store, which syncs each commit: a crash here copies files with what a power loss would take from them."""
    with cast("SqlStore", store).engine.connect() as connection:
        found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    if found not in (["wal", 2], ["wal", 3], ["delete", 2], ["delete", 3]):
        raise Broken("ack-durable", f"SQLite does not sync each commit: journal {found[0]}, synchronous {found[1]}")
    return store


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
