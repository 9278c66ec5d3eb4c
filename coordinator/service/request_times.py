"""How many requests of each group were answered, and how long that took lately: what ``/v1/system`` shows.

Held requests are counted and not timed: they last as long as their hold. Times fall into the buckets of the meters;
those of two intervals are kept, the one under way and the one before it. One call costs about a microsecond.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from client_sdk.protocol.insight import GroupRequests
from coordinator.requests import Entry, Held, Shape

_INTERVAL_S = 300.0
HELD = "held"
OTHER = "other"


@dataclass(slots=True)
class _Group:
    count: int = 0
    refused: int = 0
    errors: int = 0
    now: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


class RequestTimes:
    """``bounds``: the upper bounds of the buckets, in seconds; a last one is above them all."""

    def __init__(self, bounds: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = tuple(bounds)
        self._clock = clock
        self._lock = threading.Lock()
        self._group_of: dict[tuple[str, str], str] = {}
        self._groups: dict[str, _Group] = {}
        self._began = clock()

    def know(self, entries: Iterable[Entry[Shape]]) -> None:
        """Names the groups of these requests; all others are *other*."""
        for entry in entries:
            self._group_of[entry.method, str(entry.route)] = HELD if isinstance(entry.shape, Held) else entry.group

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        name = self._group_of.get((method, route), OTHER)
        with self._lock:
            self._turn()
            group = self._groups.get(name) or self._groups.setdefault(name, self._empty())
            group.count += 1
            group.refused += 400 <= status < 500
            group.errors += status >= 500
            if name != HELD:
                group.now[bisect_left(self._bounds, seconds)] += 1

    def view(self) -> list[GroupRequests]:
        """By name of the group."""
        with self._lock:
            self._turn()
            return [self._shown(name, group) for name, group in sorted(self._groups.items())]

    def _shown(self, name: str, group: _Group) -> GroupRequests:
        counts = [new + old for new, old in zip(group.now, group.before, strict=True)]
        return GroupRequests(
            group=name,
            count=group.count,
            refused=group.refused,
            errors=group.errors,
            p50_s=quantile(self._bounds, counts, 0.5),
            p95_s=quantile(self._bounds, counts, 0.95),
        )

    def _empty(self) -> _Group:
        return _Group(now=[0] * (len(self._bounds) + 1), before=[0] * (len(self._bounds) + 1))

    def _turn(self) -> None:
        """Begins a new interval where the one under way is over."""
        passed = self._clock() - self._began
        if passed < _INTERVAL_S:
            return
        for group in self._groups.values():
            group.before = group.now if passed < 2 * _INTERVAL_S else [0] * len(group.now)
            group.now = [0] * len(group.before)
        self._began = self._clock()


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value below which this share of the observations lies, between the bounds of its bucket in proportion; the
    highest bound for what is above them all. None: there are no observations."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    below, low = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low + (bound - low) * (wanted - below) / count
        below, low = below + count, bound
    return bounds[-1]
