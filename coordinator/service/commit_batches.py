"""Settles answers that wait for a transaction, those of one run together.

::

    alone                                         the transaction begins at once, in the thread of the request
    another of the run is settled at this moment  the next transaction begins after it, with all that have come; those
                                                  after that one GATHER_S apart, until one of them has a single answer

A round has hundreds of messages within seconds, and a transaction costs as much as several messages. Nobody waits in a
thread: in a crowd a device waits up to GATHER_S longer, and one that has the service for itself does not. Check-ins
belong to no run, and share transactions among themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextvars import Context, copy_context
from typing import Any

from coordinator.blobs.port import BlobError
from coordinator.requests import PendingCommit
from coordinator.service.core import Service
from coordinator.store.port import StoreError

GATHER_S = 0.25
"""Seconds between two transactions of a run where answers wait for the next one. A device's exchange takes longer."""

_Waiting = tuple[Context, PendingCommit[Any], asyncio.Future[Any]]


class CommitBatches:
    """The answers that wait in this process, by run."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._alone: set[str] = set()
        """Runs of which a thread settles a single answer."""
        self._waiting: dict[str, list[_Waiting]] = {}
        """A run is in it as long as a task settles its answers."""
        self._tasks: set[asyncio.Task[None]] = set()

    def alone(self, answer: Any) -> Any:
        """Settles the answer in this thread where no other of its run is being settled or waits. Else it is returned as
        it is, for ``together``."""
        if not isinstance(answer, PendingCommit):
            return answer
        with self._lock:
            if answer.run in self._alone or answer.run in self._waiting:
                return answer
            self._alone.add(answer.run)
        try:
            return answer.settle()
        finally:
            with self._lock:
                self._alone.discard(answer.run)

    async def together(self, answer: Any) -> Any:
        """The answer itself, once what it acknowledges is durable; raises what ``PendingCommit.settle`` raises.
        CancelledError where the service is closed before."""
        if not isinstance(answer, PendingCommit):
            return answer
        loop = asyncio.get_running_loop()
        waiting = (copy_context(), answer, loop.create_future())
        if answer.run in self._waiting:
            self._waiting[answer.run].append(waiting)
        else:
            with self._lock:
                self._waiting[answer.run] = [waiting]
            task = loop.create_task(self._settle_all(answer.run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await waiting[2]

    async def _settle_all(self, run: str) -> None:
        """Until none waits."""
        batch: list[_Waiting] = []
        crowded = True
        try:
            while batch := self._waiting[run]:
                self._waiting[run] = []
                settled = await self._service.work(_settled, batch)
                for (_, _, future), (found, error) in zip(batch, settled, strict=True):
                    if future.done():  # its request was cancelled
                        continue
                    if error is None:
                        future.set_result(found)
                    else:
                        self._note(error)
                        future.set_exception(error)
                if crowded or len(batch) > 1:
                    await asyncio.sleep(GATHER_S)
                crowded = False
        finally:
            with self._lock:
                left = self._waiting.pop(run)
            for _, _, future in batch + left:
                future.cancel()

    def _note(self, error: Exception) -> None:
        if isinstance(error, BlobError | StoreError):
            self._service.coordinator.core.process.storage_errors.note(error)


def _settled(batch: Sequence[_Waiting]) -> list[tuple[Any, Exception | None]]:
    """The answer or the error of each; the first call commits them all."""
    found: list[tuple[Any, Exception | None]] = []
    for context, answer, _ in batch:
        try:
            found.append((context.run(answer.settle), None))
        except Exception as error:  # noqa: BLE001 - it is raised where its request is answered
            found.append((None, error))
    return found
