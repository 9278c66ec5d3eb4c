"""Threads that drive a Coordinator in a process: one lets time pass, a few perform actions.

A task that fails because the machine could not (disk full, database locked) is tried again later, with nothing lost;
the round's deadline still holds. This file knows nothing of what a task is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from coordinator.blobs import BlobError
from coordinator.runtime.coordinator import Coordinator, Task
from coordinator.runtime.extensions import MissingExtension
from coordinator.store.port import StoreError

_LOG = logging.getLogger("quorate.driver")
_IDLE_S = 1.0
"""The longest sleep between two looks at the clock: a wall clock may jump, and another replica may open a round."""
_GATHER_S = 0.02
"""Check-ins come in crowds: the pool is counted once for all that arrive within this time."""
_OVERDUE_S = 0.1
"""Between two looks while a deadline has passed and what it asks for could not be done yet."""
_RETRY_S = 2.0
"""A task that failed goes back to the queue after this. No thread waits for it, so a library of blocking retries does
not serve here; SQLite waits for locks itself, and sessions of devices have a pure backoff."""


class Driver:
    """``start`` recovers what was in flight and runs until ``close``."""

    def __init__(self, coordinator: Coordinator, *, workers: int = 2) -> None:
        self._coordinator = coordinator
        self._stopping = threading.Event()
        self._retries: deque[tuple[float, Task]] = deque()
        self._retrying = threading.Lock()
        self._threads = [threading.Thread(target=self._keep_time, name="quorate-clock", daemon=True)]
        self._threads += [
            threading.Thread(target=self._work, name=f"quorate-worker-{number}", daemon=True)
            for number in range(workers)
        ]

    def start(self) -> None:
        self._coordinator.recover()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the threads after the tasks they are at. Undone tasks are found again by the next start."""
        self._stopping.set()
        self._coordinator.core.signals.wake_many(("tasks", "fleet"))
        for thread in self._threads:
            thread.join(timeout=30)

    def _keep_time(self) -> None:
        signals, coordinator = self._coordinator.core.signals, self._coordinator
        while not self._stopping.is_set():
            fleet = signals.version("fleet")
            try:
                deadline = coordinator.tick()
            except StoreError as error:
                _LOG.warning("could not let time pass: %s", error)
                deadline = None
            except Exception:  # noqa: BLE001 - whatever it was, other runs' deadlines must still be kept
                _LOG.exception("a bug: could not let time pass")
                deadline = None
            self._put_back_due()
            sleep_s = _IDLE_S
            if deadline is not None:
                left_s = deadline - coordinator.core.clock.now()
                sleep_s = min(sleep_s, left_s + 0.001 if left_s > 0 else _OVERDUE_S)
            if signals.wait("fleet", fleet, sleep_s):
                self._stopping.wait(_GATHER_S)

    def _work(self) -> None:
        signals, coordinator = self._coordinator.core.signals, self._coordinator
        while not self._stopping.is_set():
            seen = signals.version("tasks")
            task = coordinator.take_task()
            if task is None:
                signals.wait("tasks", seen, _IDLE_S)
                continue
            try:
                coordinator.perform(task)
            except (StoreError, BlobError, MissingExtension) as error:
                _LOG.warning("will try again in %g s: %s: %s", _RETRY_S, type(task[1]).__name__, error)
                self._try_later(task)
            except Exception:  # noqa: BLE001 - one task's bug must not end the thread that performs all others
                _LOG.exception("a bug; will try again in %g s: %s", _RETRY_S, type(task[1]).__name__)
                self._try_later(task)

    def _try_later(self, task: Task) -> None:
        """Once, however often it failed meanwhile: an overdue draw is handed out anew at each look at the clock."""
        with self._retrying:
            if all(waiting != task for _, waiting in self._retries):
                self._retries.append((time.monotonic() + _RETRY_S, task))

    def _put_back_due(self) -> None:
        with self._retrying:
            while self._retries and self._retries[0][0] <= time.monotonic():
                self._coordinator.put_back(self._retries.popleft()[1])
