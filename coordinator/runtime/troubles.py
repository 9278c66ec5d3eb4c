"""Runs that this process cannot handle now, each with the reason. Other runs go on."""

from __future__ import annotations

import logging
import threading

from coordinator.blobs import BlobError
from coordinator.runtime.log_context import about
from coordinator.store.port import StoreError

_LOG = logging.getLogger("quorate.runs")


class Troubles:
    """Safe from any thread. A reason is logged when it is new, not each time that it is noted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}

    def note(self, run: str, error: Exception) -> None:
        """The run could not be handled because of this error."""
        reason = f"{type(error).__name__}: {error}"
        with self._lock:
            if self._reasons.get(run) == reason:
                return
            self._reasons[run] = reason
        with about(run=run):
            if isinstance(error, StoreError | BlobError):
                _LOG.warning("run %s cannot be handled now, and will be tried again: %s", run, error)
            else:
                _LOG.error("a bug: run %s cannot be handled; other runs go on", run, exc_info=error)

    def clear(self, run: str) -> None:
        """The run was handled."""
        if run in self._reasons:
            with self._lock:
                self._reasons.pop(run, None)
            with about(run=run):
                _LOG.warning("run %s is handled again", run)

    def of(self, run: str) -> str:
        """Why the run cannot be handled; empty where it can."""
        return self._reasons.get(run, "")

    def all(self) -> dict[str, str]:
        """The reason of each run that cannot be handled."""
        with self._lock:
            return dict(self._reasons)


class RaisedTroubles(Troubles):
    """For drivers that play one run, or look for bugs: every error is raised where it happens."""

    def note(self, run: str, error: Exception) -> None:
        raise error
