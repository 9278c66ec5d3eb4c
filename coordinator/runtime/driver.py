"""The threads that drive a Coordinator in a process: one calls ``tick``, a few perform actions, and one opens the sums
of secure rounds, which take seconds of CPU each: the actions of other runs do not wait for them.

A task that fails because of the machine (disk full, database locked) is tried again later, and nothing is lost; the
round's deadline still applies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from coordinator.blobs import BlobError
from coordinator.runtime.coordinator import Coordinator, Task
from coordinator.runtime.core import TASKS
from coordinator.runtime.extensions import MissingExtension
from coordinator.runtime.log_context import about
from coordinator.runtime.secure_rounds import SecureRoundsWait
from coordinator.runtime.tracing import names_of
from coordinator.store.port import StoreError

_LOG = logging.getLogger("quorate.driver")
_IDLE_S = 1.0
"""The longest sleep between two calls of ``tick``, in seconds: a wall clock may jump, and another replica may open a
round."""
_GATHER_S = 0.02
"""Many check-ins arrive together: the pool is counted once for all that arrive within this time in seconds."""
_OVERDUE_S = 0.1
"""Seconds between two calls of ``tick`` while a deadline has passed and its action could not be performed yet."""
_RETRY_S = 2.0
"""Seconds until a failed task returns to the queue. No thread waits for it, so a library of blocking retries does not
fit here; SQLite waits for locks itself, and sessions of devices have a pure backoff."""


class Driver:
    """``start`` recovers pending work and runs until ``close``."""

    def __init__(self, coordinator: Coordinator, *, workers: int = 2) -> None:
        self._coordinator = coordinator
        self._stopping = threading.Event()
        self._retries: deque[tuple[float, Task]] = deque()
        self._retrying = threading.Lock()
        self._bugs: set[Task] = set()
        """Tasks that failed by a bug: each is logged once."""
        self._waiting: set[Task] = set()
        """Tasks that wait for the authority: likewise."""
        self._threads = [threading.Thread(target=self._keep_time, name="quorate-clock", daemon=True)]
        self._threads += [
            threading.Thread(target=self._work, args=(False,), name=f"quorate-worker-{number}", daemon=True)
            for number in range(workers)
        ]
        self._threads.append(threading.Thread(target=self._work, args=(True,), name="quorate-opening", daemon=True))

    def start(self) -> None:
        self._coordinator.recover()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the threads after their current tasks. The next start recovers pending tasks."""
        self._stopping.set()
        self._coordinator.core.signals.wake_many((*TASKS, "fleet"))
        for thread in self._threads:
            thread.join(timeout=30)

    def _keep_time(self) -> None:
        signals, coordinator = self._coordinator.core.signals, self._coordinator
        while not self._stopping.is_set():
            fleet = signals.version("fleet")
            try:
                deadline = coordinator.tick()
            except StoreError as error:
                _LOG.warning("could not handle the passing of time: %s", error)
                deadline = None
            except Exception:  # noqa: BLE001 - deadlines of other runs must still be handled
                _LOG.exception("a bug: could not handle the passing of time")
                deadline = None
            self._put_back_due()
            sleep_s = _IDLE_S
            if deadline is not None:
                left_s = deadline - coordinator.core.clock.now()
                sleep_s = min(sleep_s, left_s + 0.001 if left_s > 0 else _OVERDUE_S)
            if signals.wait("fleet", fleet, sleep_s):
                self._stopping.wait(_GATHER_S)

    def _work(self, openings: bool) -> None:
        key = TASKS[openings]
        signals, coordinator = self._coordinator.core.signals, self._coordinator
        while not self._stopping.is_set():
            seen = signals.version(key)
            task = coordinator.take_task(openings=openings)
            if task is None:
                signals.wait(key, seen, _IDLE_S)
                continue
            with about(**names_of(*task)):
                self._perform(task)

    def _perform(self, task: Task) -> None:
        try:
            self._coordinator.perform(task)
        except (StoreError, BlobError, MissingExtension) as error:
            _LOG.warning("will try again in %g s: %s: %s", _RETRY_S, type(task[1]).__name__, error)
            self._try_later(task)
        except SecureRoundsWait as error:
            if task not in self._waiting:
                self._waiting.add(task)
                _LOG.warning("tried every %g s until it can be: %s: %s", _RETRY_S, type(task[1]).__name__, error)
            self._try_later(task)
        except Exception:  # noqa: BLE001 - one task's bug must not end the thread that performs all others
            if task not in self._bugs:
                self._bugs.add(task)
                name = type(task[1]).__name__
                _LOG.exception("a bug; will try again every %g s: %s of run %s", _RETRY_S, name, task[0])
            self._try_later(task)

    def _try_later(self, task: Task) -> None:
        """Queues the task once, however often it failed: an overdue draw is issued again by each call of ``tick``."""
        with self._retrying:
            if all(waiting != task for _, waiting in self._retries):
                self._retries.append((time.monotonic() + _RETRY_S, task))

    def _put_back_due(self) -> None:
        with self._retrying:
            while self._retries and self._retries[0][0] <= time.monotonic():
                self._coordinator.put_back(self._retries.popleft()[1])
