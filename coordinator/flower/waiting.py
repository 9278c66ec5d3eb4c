"""A ServerApp that waits for more devices than there are: Flower asks for the nodes again and again, and so waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from client_sdk.protocol.flower import FlowerNodes
from coordinator.flower.happenings import NodesAwaited, OnHappening

CALLS = 4
AFTER_S = 3.0
"""So many calls with the same nodes, and so many seconds, without a message in between."""


class WaitingForNodes:
    """Tells once that the ServerApp waits for nodes, and once more when their number has changed."""

    def __init__(self, tell: OnHappening, clock: Callable[[], float]) -> None:
        self._tell, self._clock = tell, clock
        self._lock = Lock()
        self._sending = 0
        self._calls, self._found, self._since = 0, 0, 0.0
        self._told: int | None = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While it sends messages or waits for replies, the ServerApp does not wait for nodes."""
        with self._lock:
            self._sending += 1
        try:
            yield
        finally:
            with self._lock:
                self._sending -= 1
                self._calls, self._told = 0, None

    def asked(self, nodes: FlowerNodes) -> None:
        """The ServerApp has asked for the nodes."""
        with self._lock:
            if self._sending:
                return
            found = len(nodes.nodes)
            if not self._calls or found != self._found:
                self._calls, self._found, self._since = 0, found, self._clock()
            self._calls += 1
            waits = self._calls >= CALLS and self._clock() - self._since >= AFTER_S
            if not waits or found == self._told:
                return
            self._told = found
        self._tell(NodesAwaited(found, nodes.ineligible))
