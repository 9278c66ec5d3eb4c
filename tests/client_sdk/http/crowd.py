"""Many real clients of one ``quorate serve``, each in a thread with a storage in memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from client_sdk.data import Data, Examples
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import MemoryStorage
from client_sdk.http.client import Client, Notice
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import Policy
from tests.coordinator.service.conftest import Server

EXAMPLES = 10
SWITCH_S = 0.1
"""How long a client computes before another thread takes over. Each thread that waits for the interpreter's lock wakes
up after this time: at Python's own 5 ms a thousand of them used two thirds of all CPU time for that."""


class Crowd:
    """A context: client ``slot`` trains ``learners[slot]``, under the name ``learner``, on ten examples.

    ``on``: called with the slot and each notice, in the client's thread, which waits meanwhile."""

    def __init__(
        self,
        server: Server,
        learner: str,
        learners: Sequence[Any],
        policy: Policy,
        on: Callable[[int, Notice], None] = lambda slot, notice: None,
    ) -> None:
        self._server, self._learner, self._learners = server, learner, learners
        self._policy, self._on = policy, on
        self._switch_s = sys.getswitchinterval()
        self.stops = [threading.Event() for _ in learners]
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._live, args=(slot,)) for slot in range(len(learners))]

    def __enter__(self) -> Self:
        sys.setswitchinterval(SWITCH_S)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stop in self.stops:
            stop.set()
        for thread in self._threads:
            thread.join(30)
        sys.setswitchinterval(self._switch_s)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self.failures

    def _live(self, slot: int) -> None:
        data = Data(Examples(np.zeros((EXAMPLES, 1)), np.zeros(EXAMPLES)))
        trainer = LearnerTrainer(Catalogue({self._learner: self._learners[slot]}, installed=()), data)
        settings: dict[str, Any] = {"enrolment_token": self._server.token, "policy": self._policy}
        settings |= {"pacing": Pacing(retry_s=0.2, retry_most_s=2.0)}
        settings |= {"on_notice": lambda notice: self._on(slot, notice)}
        try:
            with Client(self._server.url, MemoryStorage(), trainer, **settings) as client:
                client.run(stop=self.stops[slot])
        except Exception as error:
            self.failures.append(f"client {slot}: {error!r}")
