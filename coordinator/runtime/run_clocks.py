"""By which clock a run's times are: that of the world, or that of the simulation that played it.

It follows from the rows of who took part, which ``quorate verify`` reads likewise: a simulation's devices and worker
have no certificate.
"""

from __future__ import annotations

from typing import Any, cast

from client_sdk.protocol.operators import RunClock
from coordinator.store.port import Reader, RoundRow

_ROUNDS = 16
"""A run in whose first rounds nobody took part counts as one of real devices."""


class RunClocks:
    """Remembers what it has found: a run's clock never changes. Safe from any thread."""

    def __init__(self) -> None:
        self._known: dict[str, RunClock] = {}

    def of(self, reader: Reader, run: str) -> RunClock:
        """*wall* as long as nobody has taken part."""
        known = self._known.get(run)
        if known is not None:
            return known
        rows = reader.rounds(run, 0, _ROUNDS)
        for row in rows:
            simulated = _was_simulated(reader, row)
            if simulated is not None:
                self._known[run] = "virtual" if simulated else "wall"
                return self._known[run]
        if len(rows) == _ROUNDS and rows[-1].status != "open":
            self._known[run] = "wall"
        return "wall"


def _was_simulated(reader: Reader, row: RoundRow) -> bool | None:
    """None: nobody is known to have taken part in the round."""
    body = cast("dict[str, Any]", row.body)
    devices = [device for name in body.get("cohort") or () if (device := reader.device(name)) is not None]
    if devices:
        return devices[0].simulated
    worker = reader.worker(body["lease"]["worker"]) if body.get("lease") else None
    return None if worker is None else worker.simulated
