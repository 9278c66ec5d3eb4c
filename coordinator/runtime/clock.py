"""The Clock port: the only source of the current time in the coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

RESTS = 10
"""How many times as long as it took a costly value is kept."""
T = TypeVar("T")


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


class CostlyValue(Generic[T]):
    """A value that takes the longer to make the larger the fleet is, and is asked for often. It is made for an eleventh
    of the time at most: kept for RESTS times as long as it took. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: tuple[object, T, float] | None = None

    def get(self, make: Callable[[], T], of: object = None) -> tuple[T, float]:
        """The value, and in how many seconds it will be made anew; 0: it is of now. One that was made ``of`` something
        else is not kept."""
        kept, now = self._kept, self._clock.elapsed()
        if kept is not None and kept[0] is of and now < kept[2]:
            return kept[1], kept[2] - now
        value = make()
        ended = self._clock.elapsed()
        self._kept = of, value, ended + RESTS * (ended - now)
        return value, 0.0

    def forget(self) -> None:
        self._kept = None
