"""The last failure of this process that the machine caused (a full disk, a locked database): for people, it decides
nothing. The log has each when it begins."""

from __future__ import annotations

import logging

from coordinator.blobs.port import BlobError, DigestMismatch, Missing, TooLarge
from coordinator.engine.reasons import printable
from coordinator.runtime.clock import Clock
from coordinator.runtime.extensions import MissingExtension
from coordinator.store.port import StoreError

_LOG = logging.getLogger("quorate.storage")

_RECENT_S = 60.0
"""Seconds for which a failure is shown. Tasks are tried again every two seconds, devices every thirty at most."""
_OF_PEERS = (DigestMismatch, Missing, TooLarge)
"""Errors of blobs that say nothing about this machine."""


class StorageErrors:
    """The last one. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: tuple[float, str] | None = None
        self._shown: dict[str, float] = {}

    def note(self, error: BaseException) -> None:
        """Notes an error, where it is one of the machine or of the installation. The log has it when it begins."""
        machine = isinstance(error, BlobError | OSError) and not isinstance(error, _OF_PEERS)
        if machine or isinstance(error, StoreError | MissingExtension):
            why, now = printable(str(error)) or type(error).__name__, self._clock.now()
            self._last = now, why
            shown = {text: at for text, at in self._shown.items() if 0 <= now - at <= _RECENT_S}
            if why not in shown:
                _LOG.warning("this coordinator could not store data, and goes on trying: %s", why)
            self._shown = shown | {why: now}

    def recent(self, since: float | None = None) -> str:
        """The last failure, where it is recent, and not older than ``since``; else empty."""
        last = self._last
        if last is None or not 0 <= self._clock.now() - last[0] <= _RECENT_S:
            return ""
        return last[1] if since is None or last[0] >= since else ""
