"""Decides when a device must stop: a time budget and a deadline, in seconds.

A step starts only when it is expected to end in time: its expected time is that of the previous step, or the mean of
all steps so far, whichever is longer. The first step starts whenever any time is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""
Deadline = Callable[[], float]
"""Seconds left until the report is due; negative when it is overdue."""


class TimeLimit:
    """Decides before every step whether it may start. The budget starts when this object is created."""

    def __init__(self, clock: Clock, budget_s: float | None, deadline: Deadline | None) -> None:
        """``budget_s``: seconds of training; ``deadline``: seconds left, called before every step. None: no
        limit."""
        self._clock = clock
        self._deadline = deadline
        self._started = self._previous = clock()
        self._ends = math.inf if budget_s is None else self._started + budget_s
        self._unlimited = budget_s is None and deadline is None

    def allows(self, steps: int) -> bool:
        """Whether one more step fits, after ``steps`` steps."""
        if self._unlimited:
            return True
        now = self._clock()
        expected_s = max(now - self._previous, (now - self._started) / steps) if steps else 0.0
        self._previous = now
        left_s = self._ends - now
        if self._deadline is not None:
            left_s = min(left_s, self._deadline())
        return left_s > 0 and left_s >= expected_s
