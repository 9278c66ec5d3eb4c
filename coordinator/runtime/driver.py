"""The threads that drive a Coordinator in a process: one calls ``tick``, a few perform actions, and one opens the sums
of secure rounds, which take seconds of CPU each: the actions of other runs do not wait for them.

A task that fails because of the machine (disk full, database locked) is tried again later, and nothing is lost; the
round's deadline still applies. One that fails by a bug is tried again too, after pauses that double, and is noted in
``core.process.run_errors`` until it succeeds: a newer version may do it. No deadline gives up the opening of a sum,
since its devices have signed, and would be spent for nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from coordinator.blobs import BlobError
from coordinator.engine import effects as fx
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
_IDLE_WORK_S = 30.0
"""The longest sleep of a thread that performs actions, in seconds: it is woken for each."""
_GATHER_S = 0.02
"""Many check-ins arrive together: the pool is counted once for all that arrive within this time in seconds."""
_OVERDUE_S = 0.1
"""Seconds between two calls of ``tick`` while a deadline has passed and its action could not be performed yet."""
_RETRY_S = 2.0
"""Seconds until a failed task returns to the queue. No thread waits for it, so a library of blocking retries does not
fit here; SQLite waits for locks itself, and sessions of devices have a pure backoff."""
_MOST_RETRY_S = 300.0
"""The longest pause after a bug: each failure of a task doubles it."""
_WHAT: Mapping[type[fx.Action], str] = {
    fx.Draw: "the selection of the cohort",
    fx.Return: "the return to the fleet",
    fx.Fold: "the addition of an update",
    fx.Commit: "the commit",
    fx.Announce: "the announcement of the header",
    fx.Gather: "the making of the roster",
    fx.Open: "the opening of the sum",
    fx.CommitSum: "the commit",
    fx.Advance: "the advance of the model",
    fx.Discard: "the deletion of updates",
}
"""What an action does, for people."""


class Driver:
    """``start`` recovers pending work and runs until ``close``."""

    def __init__(self, coordinator: Coordinator, *, workers: int = 2) -> None:
        self._coordinator = coordinator
        self._stopping = threading.Event()
        self._retries: list[tuple[float, Task]] = []
        self._retrying = threading.Lock()
        self._bugs: dict[Task, int] = {}
        """Task -> how often it failed by a bug."""
        self._logged: dict[Task, str] = {}
        """Task -> why it is tried again, as it was logged: an unchanged reason is one line, however long it lasts."""
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
            task = coordinator.core.take_task(openings=openings)
            if task is None:
                signals.wait(key, seen, _IDLE_WORK_S)
                continue
            with about(**names_of(*task)):
                self._perform(task)

    def _perform(self, task: Task) -> None:
        errors = self._coordinator.core.process.run_errors
        try:
            self._coordinator.perform(task)
            self._bugs.pop(task, None)
            self._logged.pop(task, None)
            errors.clear(task[0], _about(task))
        except (StoreError, BlobError, MissingExtension, SecureRoundsWait) as error:
            if self._logged.get(task) != str(error):
                self._logged[task] = str(error)
                _LOG.warning("will try again, every %g s: %s: %s", _RETRY_S, type(task[1]).__name__, error)
            self._try_later(task)
        except Exception as error:  # noqa: BLE001 - one task's bug must not end the thread that performs all others
            self._bugs[task] = self._bugs.get(task, 0) + 1
            errors.note(task[0], error, _about(task))
            self._try_later(task, pause_s(self._bugs[task]))

    def _try_later(self, task: Task, after_s: float | None = None) -> None:
        """Queues the task once, however often it failed: an overdue draw is issued again by each call of ``tick``."""
        due = time.monotonic() + (_RETRY_S if after_s is None else after_s)
        with self._retrying:
            if all(waiting != task for _, waiting in self._retries):
                self._retries.append((due, task))

    def _put_back_due(self) -> None:
        now = time.monotonic()
        with self._retrying:
            due = [task for at, task in self._retries if at <= now]
            self._retries = [(at, task) for at, task in self._retries if at > now]
        for task in due:
            self._coordinator.core.put_back(task)


def pause_s(failures: int) -> float:
    """Seconds until a task that failed so often in a row by a bug is tried again."""
    return min(_MOST_RETRY_S, _RETRY_S * 2.0 ** min(failures - 1, 32))


def _about(task: Task) -> str:
    """The action in words, by which its trouble is known."""
    what, number = type(task[1]), names_of(*task).get("round")
    return _WHAT.get(what, what.__name__) + ("" if number is None else f" of round {number}")
