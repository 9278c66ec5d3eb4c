"""Virtual time: the planned calls (``Agenda``), and their time as the coordinator's clock (``VirtualClock``).

No code in a simulated world sleeps or reads another clock.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Agenda:
    """Calls in order of time; calls at the same time are in the order in which they were added."""

    def __init__(self, now: float) -> None:
        self.now = now
        """Unix seconds of the simulated world."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, do: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + delay_s if delay_s > 0.0 else self.now, self._count, do, arguments))

    @property
    def next_at(self) -> float:
        """The time of the next call; infinity where there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def take(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """Moves the time to the next call and returns it."""
        at, _, do, arguments = heappop(self._heap)
        if at > self.now:
            self.now = at
        return do, arguments

    def run_out(self) -> None:
        """Performs all calls that are left, and those that they add."""
        while self._heap:
            do, arguments = self.take()
            do(*arguments)


class VirtualClock:
    """The ``Clock`` port over an agenda's time."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda

    def now(self) -> float:
        return self._agenda.now

    elapsed = now
