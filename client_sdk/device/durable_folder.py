"""Files of a folder that survive a crash, and that are overwritten when they are erased.

A program can do no more than overwrite a file: journals, snapshots and flash memory keep older blocks.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from client_sdk.device.record import StorageError


class DurableFolder:
    """A folder's files, written so that a crash leaves the older content or the newer one. ``durable=False`` leaves out
    every fsync. OSError, which ``explained`` turns into StorageError."""

    def __init__(self, folder: Path, durable: bool) -> None:
        self.folder = folder
        self._durable = durable

    def replace(self, path: Path, content: bytes) -> None:
        """Write the file as a whole."""
        temporary = path.with_name(path.name + ".tmp")
        temporary.touch(0o600)
        with temporary.open("wb") as file:
            file.write(content)
            self.sync(file)
        temporary.replace(path)
        self.sync_folder()

    def replace_erasing(self, path: Path, content: bytes) -> None:
        """Write the file as a whole, and overwrite what it held before with zeros."""
        with ExitStack() as stack:
            older = stack.enter_context(path.open("r+b")) if path.exists() else None
            self.replace(path, content)
            if older is not None:
                self._overwrite(older)

    def move_erasing(self, path: Path, target: Path) -> None:
        """Rename a file, and overwrite what ``target`` held before with zeros, unless nothing here is durable."""
        with ExitStack() as stack:
            older = stack.enter_context(target.open("r+b")) if self._durable and target.exists() else None
            path.replace(target)
            self.sync_folder()
            if older is not None:
                self._overwrite(older)

    def erase(self, path: Path) -> None:
        """Overwrite the file with zeros, and delete it."""
        with path.open("r+b") as file:
            self._overwrite(file)
        path.unlink()

    def sync(self, file: BinaryIO) -> None:
        """Make what was written to ``file`` durable."""
        file.flush()
        if self._durable:
            os.fsync(file.fileno())

    def sync_folder(self) -> None:
        """Make durable which files there are."""
        if self._durable:
            descriptor = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _overwrite(self, file: BinaryIO) -> None:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        file.write(bytes(size))
        self.sync(file)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into StorageError, with a sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"The folder {folder} cannot be used: {error.strerror or error}.") from error
