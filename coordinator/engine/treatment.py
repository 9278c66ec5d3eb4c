"""What was done to one update before it was counted: found where it is measured, kept in its event."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """Of one update."""

    clipped: bool = False
    """Whether it was scaled down to ``aggregation.clip_norm``."""
    capped: bool = False
    """Whether it weighs less than the examples that its device reports."""
    statistics_cut: bool = False
    """Whether values of statistics were cut to their range."""
    rounding: float = 0.0
    """Half a unit of the exact sum, or half a step of ``float16@1``, relative to the update's largest value, at most 1;
    0 below 0.001."""


UNTREATED = Treated()
