"""A device that vanishes in an exchange of a secure round: it has stored its message, and is gone before it sends it.

An observer of the device's HTTP requests, so that each of the five exchanges is cut alike, from outside the SDK.
"""

from __future__ import annotations

import re

import httpx2

from client_sdk.protocol.names import Route
from simulation.fleet.habits import FleetHabits

_MESSAGE = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", Route.SECURE_MESSAGE) + "$")


class Vanished(BaseException):
    """The device stops as after a power loss, without any message. Not an Exception, since no code of the device may
    handle it."""

    def __init__(self, away: float) -> None:
        super().__init__()
        self.away = away
        """Round durations until it returns."""


class VanishesInExchanges:
    """Called with each request of device number ``number``, before it is sent. Raises Vanished, at most once a
    round."""

    def __init__(self, number: int, habits: FleetHabits) -> None:
        self._number = number
        self._habits = habits
        self._vanished_in: tuple[str, str] | None = None

    def __call__(self, request: httpx2.Request) -> None:
        found = _MESSAGE.search(request.url.path)
        if found is None or request.method != "PUT":
            return
        this_round = (found["run"], found["round"])
        conduct = self._habits.conduct(self._number, int(found["round"]))
        if conduct.vanishes and conduct.exchange == found["stage"] and self._vanished_in != this_round:
            self._vanished_in = this_round
            raise Vanished(conduct.away)
