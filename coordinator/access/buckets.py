"""Token buckets by key: a rate for long, and a burst after a pause.

A bucket holds ``burst`` tokens when it is full, and gains ``rate`` tokens a second. A request takes one. Where there is
none it is refused, and takes one all the same, down to ``-burst``: who goes on in spite of refusals waits longer, and
is *spent* at the bottom. Only buckets that are not full are remembered, and of these the ``most`` last used ones.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

MOST_KEYS = 65_536
"""Keys that are remembered: some 10 MB. Who has more addresses than this has a burst for each anyway."""


class TokenBuckets:
    """Buckets of one rate. ``clock`` gives seconds. Safe to use from threads."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float], most: int = MOST_KEYS) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._most = most
        self._found: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Key -> tokens, and when they were counted."""
        self._lock = threading.Lock()

    def take(self, key: str, tokens: float = 1.0) -> float:
        """Takes the tokens. Returns 0, or the seconds until there would have been enough where there are not."""
        with self._lock:
            left = self._take(key, tokens)
        return 0.0 if left >= 0 else -left / self._rate

    def empty(self, key: str) -> bool:
        """Whether the next token would be refused."""
        with self._lock:
            return self._level(key) < 1

    def spent(self, key: str) -> bool:
        """Whether the key has gone on in spite of as many refusals as a burst has requests."""
        with self._lock:
            return self._level(key) <= -self._burst + 1

    def __len__(self) -> int:
        return len(self._found)

    def _take(self, key: str, tokens: float) -> float:
        left = max(self._level(key) - tokens, -self._burst)
        self._found[key] = (left, self._clock())
        self._found.move_to_end(key)
        if len(self._found) > self._most:
            self._found.popitem(last=False)
        return left

    def _level(self, key: str) -> float:
        found = self._found.get(key)
        if found is None:
            return self._burst
        tokens, at = found
        level = min(tokens + (self._clock() - at) * self._rate, self._burst)
        if level >= self._burst:
            del self._found[key]
        return level
