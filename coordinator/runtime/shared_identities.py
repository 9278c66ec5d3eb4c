"""Which devices two processes use at the same time: a folder that was copied, with its key, to a second site.

Each process of a device names itself by a chance of its own when it checks in. One that was started again never names
its predecessor's again. So processes that take turns are alive together. A check-in of a process that was killed may
arrive late, once, behind its successor's: only more turns than that count.

It is in memory, and lost at a restart; replicas do not share it. It decides nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field

SHARED = (
    "two processes use this device's identity: its folder was copied, so they take turns as one device. Stop one of "
    "them, and let it enrol with a folder of its own"
)
_TURNS = 3
"""Turns to a process that was seen before, after which two are alive."""
_FORGOTTEN_S = 900.0
"""Seconds after the last turn until it is no longer said."""
_MOST = 50_000
"""The most devices in memory; the oldest are dropped."""


@dataclass(slots=True)
class _Seen:
    newest: str
    before: set[str] = field(default_factory=set)
    turns: int = 0
    at: float = 0.0
    """Of the last turn."""


class SharedIdentities:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._in_runs: defaultdict[str, set[str]] = defaultdict(set)
        self._lock = threading.Lock()

    def note(self, device: str, process: str, now: float) -> None:
        """The device checks in by this process; empty where it does not say by which."""
        if not process:
            return
        with self._lock:
            seen = self._seen.setdefault(device, _Seen(process))
            self._seen.move_to_end(device)
            while len(self._seen) > _MOST:
                self._seen.popitem(last=False)
            if process == seen.newest:
                return
            if process in seen.before:
                seen.turns = 1 if now - seen.at > _FORGOTTEN_S else seen.turns + 1
                seen.at = now
            seen.before = {*list(seen.before - {process})[-8:], seen.newest}
            seen.newest = process

    def warning(self, device: str, now: float, run: str = "") -> str:
        """What is said of the device; empty where nothing is known. ``run``: one that it works for now."""
        with self._lock:
            seen = self._seen.get(device)
            if seen is None or seen.turns < _TURNS or now - seen.at > _FORGOTTEN_S:
                return ""
            if run:
                self._in_runs[run].add(device)
            return SHARED

    def superseded(self, device: str, process: str, now: float) -> bool:
        """Whether another process has checked in since this one did, and nobody knows yet whether both are alive."""
        if not process or self.warning(device, now):
            return False
        with self._lock:
            seen = self._seen.get(device)
            return seen is not None and seen.newest != process

    def in_run(self, run: str) -> tuple[str, ...]:
        """The devices of which that was known when they got work of the run."""
        with self._lock:
            return tuple(sorted(self._in_runs.get(run, ())))
