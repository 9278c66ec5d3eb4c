"""The rule of a plan by which scores finish a run: a target, or a number of scores without an improvement.

The explorer's own account of it, from the page about plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Scores:
    """``says_finished`` takes each score of a run, in the order of its log. ``finish``: the plan's section, as JSON."""

    def __init__(self, finish: Any) -> None:
        self._finish = finish
        self._best: float | None = None
        self._in_vain = 0
        self._newest = -1

    def says_finished(self, version: int, source: str, metrics: Mapping[str, float]) -> bool:
        """Whether the run is finished with this score of a version."""
        finish = self._finish
        name = finish.get("metric")
        if name is None or source != finish.get("source") or name not in metrics:
            return False
        sign = -1.0 if finish.get("better") == "lower" else 1.0
        value = sign * metrics[name]
        if finish.get("target") is not None and value >= sign * finish["target"]:
            return True
        if version <= self._newest:
            return False
        self._newest = version
        if self._best is None or value - self._best > finish["min_delta"]:
            self._best, self._in_vain = value, 0
            return False
        self._in_vain += 1
        return finish.get("patience") is not None and self._in_vain >= finish["patience"]
