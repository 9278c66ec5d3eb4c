"""Counts what strangers can make happen as often as they like, so that what is recorded of it stays little."""

from __future__ import annotations

import threading

QUIET_S = 60.0
"""Seconds in which more of the same kind is only counted."""
_MOST = 1024
"""Kinds that are counted at a time."""


class QuietCounter:
    """Says when something of a kind is to be recorded: the first one at once, then one a minute. Safe from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, ...], tuple[float, int]] = {}

    def more(self, kind: tuple[str, ...], now: float) -> int | None:
        """How many of this kind were not recorded since the last one that was; None where this one is not to be
        recorded either. ``now``: seconds."""
        with self._lock:
            since, more = self._kinds.get(kind, (-QUIET_S, 0))
            if 0 <= now - since < QUIET_S:
                self._kinds[kind] = since, more + 1
                return None
            if len(self._kinds) >= _MOST:
                self._kinds.clear()
            self._kinds[kind] = now, 0
            return more


def with_more(text: str, more: int) -> str:
    """The text of a row, and how many of its kind had none."""
    return f"{text} (and {more} more)" if more else text
