"""Counts of what schedules did (``ScheduleTally``), and of each event and fault in each phase (``Coverage``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from simulation.explorer.faults import FAULTS
from simulation.explorer.shape import PHASES

EVENTS = (
    "register", "check-in", "assignment", "hold-over", "leave", "fetch", "started", "admit", "update", "withdraw",
    "outcome", "tick", "draw", "fold", "commit", "discard", "create", "pause", "resume", "stop", "score", "revoke",
    "take-list", "poll", "lease", "poll-over", "heartbeat", "admit-result", "result", "lease-end", "return",
)  # fmt: skip
"""Every call of the coordinator, by its name in the explorer."""


@dataclass(slots=True)
class ScheduleTally:
    """Counts of what one or more schedules did."""

    schedules: int = 0
    steps: int = 0
    events: int = 0
    crashes: int = 0
    lost: int = 0
    duplicated: int = 0
    commits: int = 0
    abandoned: int = 0

    def __iadd__(self, other: ScheduleTally) -> ScheduleTally:
        for name in ScheduleTally.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class Coverage:
    """Counts by (event, phase) and (fault, phase); adds up over schedules."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        self.faults: Counter[tuple[str, str]] = Counter()

    def event(self, event: str, phase: str) -> None:
        self.events[event, phase] += 1

    def fault(self, fault: str, phase: str) -> None:
        self.faults[fault, phase] += 1

    def __iadd__(self, other: Coverage) -> Coverage:
        self.events.update(other.events)
        self.faults.update(other.faults)
        return self

    def never(self) -> list[tuple[str, str]]:
        """Pairs that were never met."""
        events = [(event, phase) for event in EVENTS for phase in PHASES if not self.events[event, phase]]
        return events + [(fault, phase) for fault in FAULTS for phase in PHASES if not self.faults[fault, phase]]

    def table(self) -> list[tuple[str, ...]]:
        """Rows of (name, and a number for each phase)."""
        rows = [(event, *(str(self.events[event, phase]) for phase in PHASES)) for event in EVENTS]
        return rows + [(fault, *(str(self.faults[fault, phase]) for phase in PHASES)) for fault in FAULTS]
