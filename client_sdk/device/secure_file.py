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
        with explained(self._files.folder):
            if not self._path.exists():
                return Memory()
            stored = self._path.read_bytes()
        try:
            return Memory.parse(stored)
        except SecaggError as error:
            raise StorageError(
                f"{self._path} cannot be read, so this device cannot know what it signed in secure rounds: {error}. "
                "Enrol it anew in another folder."
            ) from error

    def keep(self, change: Callable[[Memory], Memory]) -> Memory:
        """See ``Storage.keep``."""
        with self._lock:
            newest = self.load()
            changed = change(newest)
            if changed is not newest:
                with explained(self._files.folder):
                    self._files.replace_erasing(self._path, changed.encoded)
            return changed
