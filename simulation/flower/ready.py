"""Which simulated nodes have work: those that a push has woken, the lowest partition first.

A coordinator wakes a device by a signal when there is a message for it. These signals put the device into an order
that does not depend on which thread was faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Condition

from coordinator.runtime.signals import Signals

PREFIX = "flower:"
"""How the keys of devices begin that wait for a message (``coordinator.runtime.flower.ground.device_key``)."""


class ReadyNodes(Signals):
    """``take`` gives the next node with work to a thread, and to no other one until ``done``."""

    def __init__(self, devices: Iterable[str]) -> None:
        super().__init__()
        self._place = {PREFIX + device: place for place, device in enumerate(devices)}
        self._changed = Condition()
        self._waiting: set[int] = set()
        self._taken: set[int] = set()
        self._closed = False

    def wake_many(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        super().wake_many(keys)
        places = [place for key in keys if (place := self._place.get(key)) is not None]
        if places:
            with self._changed:
                self._waiting.update(places)
                self._changed.notify_all()

    def take(self) -> int | None:
        """The lowest place of a node that was woken; waits for one. None: it is closed."""
        with self._changed:
            while not self._closed:
                place = min(self._waiting - self._taken, default=None)
                if place is not None:
                    self._waiting.discard(place)
                    self._taken.add(place)
                    return place
                self._changed.wait()
            return None

    def done(self, place: int, *, again: bool = False) -> None:
        """The thread has done this node's work. ``again``: the node is to be looked at once more."""
        with self._changed:
            self._taken.discard(place)
            if again:
                self._waiting.add(place)
            self._changed.notify_all()

    def close(self) -> None:
        """``take`` gives no more nodes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
