"""The file of a device's memory of secure rounds: changed under a lock, one change after another."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from client_sdk.device.durable_folder import DurableFolder, explained
from client_sdk.device.record import StorageError
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.memory import Memory


class SecureFile:
    """``secure.bin`` of one folder. The folder's lock excludes other processes, the one here other threads."""

    def __init__(self, files: DurableFolder) -> None:
        self._files = files
        self._path = files.folder / "secure.bin"
        self._lock = Lock()

    def load(self) -> Memory:
        """The newest memory; empty where there is no file. StorageError where the file is damaged."""
        stored = self._read()
        return Memory() if stored is None else self._parsed(stored)

    def keep(self, change: Callable[[Memory], Memory]) -> Memory:
        """See ``Storage.keep``. A file of an older format is replaced in any case, since it may hold secrets of
        attempts that nobody continues."""
        with self._lock:
            stored = self._read()
            newest = Memory() if stored is None else self._parsed(stored)
            changed = change(newest)
            if changed is not newest or (stored is not None and Memory.outdated(stored)):
                with explained(self._files.folder):
                    self._files.replace_erasing(self._path, changed.encoded)
            return changed

    def _read(self) -> bytes | None:
        with explained(self._files.folder):
            return self._path.read_bytes() if self._path.exists() else None

    def _parsed(self, stored: bytes) -> Memory:
        try:
            return Memory.parse(stored)
        except SecaggError as error:
            raise StorageError(
                f"{self._path} cannot be read, so this device cannot know what it signed in secure rounds: {error}. "
                "Enrol it anew in another folder."
            ) from error
