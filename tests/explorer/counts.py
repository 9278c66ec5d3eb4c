"""Counts of what schedules did (``ScheduleTally``), and of each event and fault in each phase (``Coverage``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.explorer.faults import CENTER_FAULTS, FAULTS, SECURE_FAULTS
from tests.explorer.secure.account import SECURE_PHASES
from tests.explorer.shape import OF_WORK, PHASES

EVENTS = (
    "register", "check-in", "assignment", "hold-over", "leave", "fetch", "started", "admit", "update", "withdraw",
    "outcome", "tick", "draw", "fold", "commit", "discard", "create", "pause", "resume", "stop", "score", "revoke",
    "take-list", "poll", "lease", "poll-over", "heartbeat", "admit-result", "result", "lease-end", "return",
)  # fmt: skip
"""Every call of the coordinator in plain rounds, by its name in the explorer."""
OF_SECURE = (
    "secure-header", "secure-message-limit", "secure-message", "secure-answer", "not-yet", "refuse",
    "announce", "gather", "open", "commitsum", "advance", "advance-run", "unbar",
)  # fmt: skip
"""Those of secure rounds."""
OF_PLAIN = frozenset({
    "update", "fold", "commit", "poll", "lease", "poll-over", "heartbeat", "admit-result", "result", "lease-end",
    "return", "revoke", *CENTER_FAULTS,
})  # fmt: skip
"""Events and faults that no secure round has."""


SELDOM = frozenset({
    "leave", "create", "pause", "resume", "stop", "score", "take-list", "fetch", "started", "admit", "withdraw",
    "truncate", "clock-off", "certificate-expires", "device-old-record", "op-pause", "op-resume", "op-stop",
    "op-create", "op-score", "lie", *(name for name in OF_WORK if name in FAULTS),
})  # fmt: skip
"""What meets an exchange of secure rounds too seldom to be searched for: an exchange is short, and devices that could
train meanwhile for another run work for this one."""
OF_EXCHANGES = frozenset({"refuse", "gather", "open", "commitsum", "advance", "advance-run", "announce"})
"""Calls of secure rounds that belong to one phase of a round; those of a second run meet the others."""


def meets(name: str, phase: str) -> bool:
    """Whether the schedules of the tests must show this event or fault in this phase: that of the first run."""
    if name in OF_EXCHANGES:
        return phase == _AT_HOME.get(name)
    if name in OF_SECURE or name in SECURE_FAULTS:
        return phase in SECURE_PHASES or (phase == "collecting" and name in OF_SECURE)
    return phase not in SECURE_PHASES or name not in OF_PLAIN | SELDOM


_AT_HOME = {
    "announce": "collecting",
    "gather": "sharing",
    "open": "unmasking",
    "commitsum": "committing",
    "advance": "committing",
    "advance-run": "selecting",
    "refuse": "collecting",
}


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
        """Pairs that were never met, and can be."""
        events = [(name, phase) for name in (*EVENTS, *OF_SECURE) for phase in PHASES if not self.events[name, phase]]
        faults = [(name, phase) for name in FAULTS for phase in PHASES if not self.faults[name, phase]]
        return [pair for pair in (*events, *faults) if meets(*pair)]

    def table(self) -> list[tuple[str, ...]]:
        """Rows of (name, and a number for each phase)."""
        rows = [(event, *(str(self.events[event, phase]) for phase in PHASES)) for event in (*EVENTS, *OF_SECURE)]
        return rows + [(fault, *(str(self.faults[fault, phase]) for phase in PHASES)) for fault in FAULTS]
