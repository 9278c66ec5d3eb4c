"""Batches of several proposals: a thread that has put its proposal in the queue of a group commit stands still before
its turn, and another thread commits both in one transaction.

The lock of a group commit is replaced by a ``QueuedLock``, which is the same lock with a place before it where the
fault ``queued`` may strike. Nothing else of the product is changed.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from coordinator.runtime.coordinator import Coordinator
from tests.explorer.process import Process


class QueuedLock:
    """The lock of one group commit, for the threads of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lock = threading.Lock()
        self.locked = self._lock.locked

    def __enter__(self) -> None:
        if not self._lock.locked():
            self._process.queued()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def watch_turns(process: Process, coordinator: Coordinator, watched: int) -> int:
    """Every group commit that the coordinator has by now gets a ``QueuedLock``; the first ``watched`` have one. Returns
    how many there are."""
    logs = coordinator.core.logs()
    for log in logs[watched:]:
        commit: Any = log._commits
        commit._turn = QueuedLock(process)
    return len(logs)
