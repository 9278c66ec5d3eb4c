"""What is under way at the same time, of one key and of all: connections, requests, bodies, bytes.

Keys without anything under way are forgotten, so there are never more keys than connections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from client_sdk.protocol.problems import ProblemError


class Holding:
    """What one request holds."""

    def __init__(self, flight: InFlight, key: str) -> None:
        self._flight = flight
        self._key = key
        self.amount = 0

    def add(self, amount: int) -> None:
        """Holds more. ProblemError where the key, or all together, would hold too much."""
        self._flight.reserve(self._key, amount)
        self.amount += amount


class InFlight:
    """Amounts in flight. ``each`` limits one key and ``total`` all; a key that holds nothing yet is always given what
    it asks for, so that no single body is too large. ``refused(of_all)`` makes the error. For the event loop only."""

    def __init__(
        self, refused: Callable[[bool], ProblemError], *, each: float = math.inf, total: float = math.inf
    ) -> None:
        self._refused = refused
        self._each = each
        self._total = total
        self._held: dict[str, int] = {}
        self.amount = 0
        """Of all keys."""

    def reserve(self, key: str, amount: int) -> None:
        """Adds to what the key holds. ProblemError, with nothing added, where that would be too much."""
        held = self._held.get(key, 0)
        if held and held + amount > self._each:
            raise self._refused(False)
        if self.amount and self.amount + amount > self._total:
            raise self._refused(True)
        self._held[key] = held + amount
        self.amount += amount

    def release(self, key: str, amount: int) -> None:
        self.amount -= amount
        left = self._held.get(key, 0) - amount
        if left > 0:
            self._held[key] = left
        else:
            self._held.pop(key, None)

    @contextmanager
    def held(self, key: str, amount: int = 0) -> Iterator[Holding]:
        """Holds the amount, and what is added, until the block ends."""
        held = Holding(self, key)
        try:
            if amount:
                held.add(amount)
            yield held
        finally:
            if held.amount:
                self.release(key, held.amount)

    def __len__(self) -> int:
        return len(self._held)
