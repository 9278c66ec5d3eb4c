"""Why devices that checked in were ineligible: a hint for the operator of a round that had too few devices.

The reasons are in memory and bounded. They are lost at a restart and not shared among replicas, and they decide
nothing.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict

from coordinator.engine.reasons import grouped, printable

_MOST = 50_000
"""The most devices in memory; the oldest are dropped."""


class Ineligible:
    """The last reason that each device was given for each run."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, dict[str, tuple[float, str]]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, run: str, device: str, reason: str, at: float) -> None:
        """Records that ``device`` checked in at ``at`` and could not work for ``run``."""
        with self._lock:
            self._last.setdefault(device, {})[run] = (at, sys.intern(printable(reason)))
            self._last.move_to_end(device)
            while len(self._last) > _MOST:
                self._last.popitem(last=False)

    def forget(self, device: str) -> None:
        """The device has a place in the pool."""
        with self._lock:
            self._last.pop(device, None)

    def reasons(self, run: str, since: float) -> str:
        """Reasons for the run since then: ``2 devices were ineligible: the plan wants ...``; empty if none."""
        with self._lock:
            found = [runs[run] for runs in self._last.values() if run in runs]
        reasons = [reason for at, reason in found if at >= since]
        return grouped(reasons, "device was ineligible", "devices were ineligible")

    def devices(self, since: float) -> dict[str, dict[str, str]]:
        """Device -> run -> why it cannot work for it, of those that checked in since then."""
        with self._lock:
            found = {device: dict(runs) for device, runs in self._last.items()}
        recent = {d: {run: why for run, (at, why) in runs.items() if at >= since} for d, runs in found.items()}
        return {device: runs for device, runs in recent.items() if runs}
