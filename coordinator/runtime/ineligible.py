"""Why devices that checked in were ineligible: a hint for the operator of a round that had too few devices.

The reasons are in memory and bounded. They are lost at a restart and not shared among replicas, and they decide
nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from coordinator.engine.reasons import grouped, printable

_MOST = 10_000
"""The most reasons in memory, of all runs together; the oldest are dropped."""


class Ineligible:
    """The last reason that each device was given for each run."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, run: str, device: str, reason: str, at: float) -> None:
        """Records that ``device`` checked in at ``at`` and could not work for ``run``."""
        with self._lock:
            self._last[run, device] = (at, printable(reason))
            self._last.move_to_end((run, device))
            while len(self._last) > _MOST:
                self._last.popitem(last=False)

    def reasons(self, run: str, since: float) -> str:
        """Reasons for the run since then: ``2 devices were ineligible: the plan wants ...``; empty if none."""
        with self._lock:
            reasons = [reason for (of, _), (at, reason) in self._last.items() if of == run and at >= since]
        return grouped(reasons, "device was ineligible", "devices were ineligible")
