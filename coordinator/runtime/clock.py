"""The Clock port: the only source of the current time in the coordinator."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix time in seconds. May jump either way: time affects progress, never correctness."""
        ...

    def elapsed(self) -> float:
        """Seconds since some moment of this process. Never falls: by this it is told how old something is that is
        cached."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()
