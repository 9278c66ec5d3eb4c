"""Runs that this process cannot handle now, each with the reason: the run as a whole, or one action of it, such as the
opening of a sum. Other runs go on.

One run stops no other: every loop over runs goes through their ids and handles each by itself, since a row that cannot
be decoded fails a query for all rows. Where a log cannot be read, nothing is swept at the start, since nobody knows
which blobs that run needs. An error is not raised at the end of a loop: the caller would lose the next deadline. A
plan that names a package that is not installed still stops the start: an operator can mend that in a minute.
"""

from __future__ import annotations

import logging
import threading

from coordinator.blobs import BlobError
from coordinator.runtime.log_context import about
from coordinator.store.port import StoreError

_LOG = logging.getLogger("quorate.runs")


class RunErrors:
    """Safe from any thread. A reason is logged when it is new, not each time that it is noted. ``action``: what failed,
    in words that begin a sentence; empty: the run as a whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[tuple[str, str], str] = {}

    def note(self, run: str, error: Exception, action: str = "") -> None:
        """The run, or an action of it that will be tried again, could not be handled because of this error."""
        reason = f"{type(error).__name__}: {error}"
        if action:
            reason = f"{action} failed and will be tried again ({reason}); this coordinator's log has the whole error"
        with self._lock:
            if self._reasons.get((run, action)) == reason:
                return
            self._reasons[run, action] = reason
        with about(run=run):
            if action:
                _LOG.error("a bug; will try again: %s failed in run %s", action, run, exc_info=error)
            elif isinstance(error, StoreError | BlobError):
                _LOG.warning("run %s cannot be handled now, and will be tried again: %s", run, error)
            else:
                _LOG.error("a bug: run %s cannot be handled; other runs go on", run, exc_info=error)

    def clear(self, run: str, action: str = "") -> None:
        """The run, or this action of it, was handled."""
        if (run, action) in self._reasons:
            with self._lock:
                self._reasons.pop((run, action), None)
            with about(run=run):
                _LOG.warning("run %s is handled again%s", run, f": {action}" if action else "")

    def of(self, run: str) -> str:
        """Why the run cannot be handled; empty where it can."""
        return self.all().get(run, "")

    def of_actions(self, run: str) -> str:
        """Why actions of the run failed; empty where none did."""
        with self._lock:
            return "; ".join(reason for (of, action), reason in self._reasons.items() if of == run and action)

    def all(self) -> dict[str, str]:
        """The reason of each run that cannot be handled."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for (run, _), reason in self._reasons.items():
                found.setdefault(run, []).append(reason)
        return {run: "; ".join(reasons) for run, reasons in found.items()}


class RaisedRunErrors(RunErrors):
    """For drivers that play one run, or look for bugs: every error is raised where it happens."""

    def note(self, run: str, error: Exception, action: str = "") -> None:
        raise error
