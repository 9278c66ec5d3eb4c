"""How much work a task is, and when a device must stop: a time budget and a deadline, in seconds. Knows a clock that
it was given, and no model.

A step is begun only when it is expected to end in time: it is taken to last as long as the step before it, or as the
mean of all steps so far, whichever is longer. The first step is begun whenever there is time left at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from client_sdk.protocol.devices import Task

Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""
Deadline = Callable[[], float]
"""Seconds left until the report is due; negative when it is overdue."""


def planned_steps(task: Task, examples: int) -> int:
    """Optimizer steps of the whole task: ``steps``, or ``epochs`` (one where neither is set) times ceil(examples /
    batch_size)."""
    return task.steps if task.steps is not None else (task.epochs or 1) * -(-examples // task.batch_size)


class TimeLimit:
    """Asked before every step whether the step may begin. The budget starts when this is made."""

    def __init__(self, clock: Clock, budget_s: float | None, deadline: Deadline | None) -> None:
        """``budget_s``: seconds of training; ``deadline``: seconds left, asked again before every step. None: no
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
