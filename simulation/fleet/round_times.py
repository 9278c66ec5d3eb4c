"""Estimates which rounds are over, and how long a round takes, from the events of one process's devices.

It sends no requests. Thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock

from client_sdk.http.client import Happening

FIRST_GUESS_S = 4.0
"""The assumed duration of a round before one was observed."""
_LOOK_S = 0.1


class RoundTimes:
    """The estimate, shared by all devices of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._newest: dict[str, int] = {}
        self._over: dict[str, int] = {}
        self._opened_at: dict[str, float] = {}
        self._round_s = FIRST_GUESS_S

    @property
    def round_s(self) -> float:
        """Seconds between the starts of the last two rounds."""
        return self._round_s

    def note(self, happening: Happening) -> None:
        """Learn from an event of a device: work in round n shows that earlier rounds are over, a refusal in round n
        that n is over."""
        run, number = happening.run, happening.round
        if run is None or number is None:
            return
        with self._lock:
            if happening.kind == "assigned" and number > self._newest.get(run, 0):
                now = self._clock()
                if self._newest.get(run) == number - 1:
                    self._round_s = now - self._opened_at[run]
                self._newest[run], self._opened_at[run] = number, now
                self._over[run] = max(number - 1, self._over.get(run, 0))
            elif happening.kind in ("refused", "dropped"):
                self._over[run] = max(number, self._over.get(run, 0))

    def is_over(self, run: str, number: int) -> bool:
        return self._over.get(run, 0) >= number

    def wait_over(self, run: str, number: int, at_most_s: float, stop: Event) -> bool:
        """Wait until the round is over. False where ``at_most_s`` passed, or ``stop`` was set, before that was
        known."""
        until = self._clock() + at_most_s
        while not self.is_over(run, number):
            if self._clock() >= until or stop.wait(_LOOK_S):
                return False
        return True
