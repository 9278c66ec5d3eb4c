"""The last failure of this process that the machine caused (a full disk, a locked database): for people, it decides
nothing."""

from __future__ import annotations

from coordinator.blobs.port import BlobError, DigestMismatch, Missing, TooLarge
from coordinator.engine.reasons import printable
from coordinator.runtime.clock import Clock
from coordinator.runtime.extensions import MissingExtension
from coordinator.store.port import StoreError

_RECENT_S = 60.0
"""Seconds for which a failure is shown. Tasks are tried again every two seconds, devices every thirty at most."""
_OF_PEERS = (DigestMismatch, Missing, TooLarge)
"""Errors of blobs that say nothing about this machine."""


class Failures:
    """The last one. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: tuple[float, str] | None = None

    def note(self, error: BaseException) -> None:
        """Notes an error, where it is one of the machine or of the installation."""
        machine = isinstance(error, BlobError | OSError) and not isinstance(error, _OF_PEERS)
        if machine or isinstance(error, StoreError | MissingExtension):
            self._last = self._clock.now(), printable(str(error)) or type(error).__name__

    def recent(self) -> str:
        """The last failure, where it is recent; else empty."""
        last = self._last
        if last is None or not 0 <= self._clock.now() - last[0] <= _RECENT_S:
            return ""
        return last[1]
