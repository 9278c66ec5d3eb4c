"""Which devices two processes use at the same time: a folder that was copied, with its key, to a second site.

Each process of a device names itself by a chance of its own when it checks in. One that was started again never names
its predecessor's again. So processes that take turns are alive together. A check-in of a process that was killed may
arrive late, once, behind its successor's: only more turns than that count.

It is kept with the device's row, by the write of each check-in, so that all replicas know it. It decides nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from coordinator.store.port import DeviceRow, Json

SHARED = (
    "two processes use this device's identity: its folder was copied, so they take turns as one device. Stop one of "
    "them, and let it enrol with a folder of its own"
)
_TURNS = 3
"""Turns to a process that was seen before, after which two are alive."""
FORGOTTEN_S = 900.0
"""Seconds after the last turn until it is no longer said."""
_KNOWN = 8
"""Processes before the newest that are known."""


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes by which one device checked in."""

    newest: str = ""
    before: tuple[str, ...] = ()
    turns: int = 0
    turned_at: float = 0.0

    @classmethod
    def of(cls, device: DeviceRow) -> Processes:
        found: Any = device.facts.get("processes", {})
        return cls(**{**found, "before": tuple(found.get("before", ()))})

    def stored(self) -> Json:
        """For the device's facts, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}

    def then(self, process: str, now: float) -> Processes:
        """After a check-in by this process; empty where it does not say by which."""
        if process in ("", self.newest):
            return self
        before = tuple(one for one in self.before if one != process)[-_KNOWN + 1 :]
        before += (self.newest,) if self.newest else ()
        if process not in self.before:
            return Processes(process, before, self.turns, self.turned_at)
        turns = 1 if now - self.turned_at > FORGOTTEN_S else self.turns + 1
        return Processes(process, before, turns, now)

    def warning(self, now: float) -> str:
        """What is said of the device; empty where nothing is known."""
        return SHARED if self.turns >= _TURNS and now - self.turned_at <= FORGOTTEN_S else ""
