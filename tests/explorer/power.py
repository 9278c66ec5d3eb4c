"""A loss of power: names that were not synced are missing from the folder, and contents that were not synced are torn.

While ``watching``, the ``os`` of ``coordinator.blobs.files`` is this object: it forwards every call, records each
sync of a file and a folder, and may end the process before and after each sync.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coordinator.blobs import files
from tests.explorer.chance import Chance


class UnsyncedFiles:
    """Stands in for the module ``os`` of the file blobs."""

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
        real = vars(files)["os"]
        vars(files)["os"] = self
        try:
            yield
        finally:
            vars(files)["os"] = real

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
