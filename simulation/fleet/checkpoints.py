"""One download of a checkpoint for all devices of a process.

Hundreds of devices need the same bytes at the same moment: the first one fetches them, the others wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Event

from client_sdk.device.checkpoint_cache import CheckpointCache, Download, MemoryCheckpoints
from client_sdk.device.storage import FileStorage
from client_sdk.protocol.devices import CheckpointRef

KEEP = 3
PATIENCE_S = 10.0
"""Seconds that others wait for the one that fetches before one of them fetches itself."""
_LOOK_S = 0.25


class SharedCheckpoints:
    """Checkpoints in memory for the threads of one process. ``stop`` ends all waiting."""

    def __init__(self, stop: Event) -> None:
        self._cache = MemoryCheckpoints(keep=KEEP)
        self._stop = stop
        self._changed = Condition()
        self._since: dict[str, float] = {}

    def get(self, digest: str) -> bytes | None:
        """The checkpoint; None for the one caller that must fetch it now."""
        with self._changed:
            while (body := self._cache.get(digest)) is None and not self._stop.is_set():
                since = self._since.get(digest)
                if since is None or time.monotonic() - since > PATIENCE_S:
                    self._since[digest] = time.monotonic()
                    return None
                self._changed.wait(_LOOK_S)
            return body

    def has(self, digest: str) -> bool:
        """Whether the model is cached, after the wait of ``get``: False for the one caller that must fetch it now."""
        return self.get(digest) is not None

    @contextmanager
    def download(self, ref: CheckpointRef) -> Iterator[Download]:
        """The download of ``CheckpointCache``. Its end, also by an error, wakes all that wait."""
        try:
            with self._cache.download(ref) as download:
                yield download
        finally:
            with self._changed:
                self._since.pop(ref.digest, None)
                self._changed.notify_all()


class FleetStorage(FileStorage):
    """A device's folder without checkpoints of its own, and without fsync: it survives its process, not the machine."""

    def __init__(self, folder: Path | str, shared: CheckpointCache) -> None:
        super().__init__(folder, durable=False)
        self._shared = shared

    @property
    def checkpoints(self) -> CheckpointCache:
        return self._shared
