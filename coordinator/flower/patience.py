"""Waiting for a coordinator that is away: the same request again, less and less often, and a sentence about it once."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock
from typing import TypeVar

import httpx2

from client_sdk.protocol.problems import ProblemError

T = TypeVar("T")

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 10.0


class StillAway(Exception):
    """The coordinator was away until the time was over."""


class Patience:
    """Repeats requests until they are answered. Threads share it: what is wrong is said once, not by each."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        stop: Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """``stop``: ends the waiting with StillAway. ``sleep``: how to wait some seconds."""
        self._say, self._stop, self._clock = say, stop or Event(), clock
        self._sleep = sleep or self._stop.wait
        self._away = False
        self._lock = Lock()

    def now(self) -> float:
        """The time by the clock of ``until``."""
        return self._clock()

    def rest(self, seconds: float) -> None:
        """Wait some seconds, before a request that nothing is wrong with."""
        self._sleep(seconds)

    def ask(self, request: Callable[[], T], until: float | None = None) -> T:
        """The answer. A problem whose advice is to retry is waited out; any other is raised.

        Raises StillAway at ``until``, by the clock; None: it waits for ever.
        """
        wait = FIRST_WAIT_S
        while True:
            try:
                answer = request()
            except ProblemError as error:
                if error.problem.advice != "retry":
                    raise
                reason, least = str(error), error.problem.retry_after_s or 0.0
            except httpx2.HTTPError as error:
                reason, least = str(error) or type(error).__name__, 0.0
            else:
                self._is_back()
                return answer
            self._is_away(reason)
            left = float("inf") if until is None else until - self._clock()
            if left <= 0 or self._stop.is_set():
                raise StillAway(reason)
            self._sleep(min(max(wait, least), left))
            wait = min(2 * wait, LONGEST_WAIT_S)

    def _is_away(self, reason: str) -> None:
        with self._lock:
            first, self._away = not self._away, True
        if first:
            self._say(f"The coordinator does not answer now: {reason} The ServerApp waits, and nothing is lost.")

    def _is_back(self) -> None:
        if self._away:
            with self._lock:
                was_away, self._away = self._away, False
            if was_away:
                self._say("The coordinator answers again.")
