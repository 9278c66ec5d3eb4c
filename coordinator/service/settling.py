"""Settles answers that wait for a transaction, those of one run together.

::

    alone                  the transaction begins at once
    others come meanwhile  the next transaction begins GATHER_S after the last one's end, with all that have come

A round has hundreds of messages within seconds, and a transaction costs as much as several messages. Nobody waits in a
thread: a device waits some milliseconds longer, and one that has the service for itself does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context, copy_context
from typing import Any

from coordinator.blobs.port import BlobError
from coordinator.requests import Uncommitted
from coordinator.service.core import Service
from coordinator.store.port import StoreError

GATHER_S = 0.05
"""Seconds between two transactions of a run where answers wait for the next one. A device's exchange takes longer."""

_Waiting = tuple[Context, Uncommitted, asyncio.Future[Any]]


class Settling:
    """The answers that wait in this process, by run."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: dict[str, list[_Waiting]] = {}
        """A run is in it as long as a task settles its answers."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, answer: Any) -> Any:
        """The answer itself, once what it acknowledges is durable; raises what ``Uncommitted.settle`` raises.
        CancelledError where the service is closed before."""
        if not isinstance(answer, Uncommitted):
            return answer
        loop = asyncio.get_running_loop()
        waiting = (copy_context(), answer, loop.create_future())
        if answer.run in self._waiting:
            self._waiting[answer.run].append(waiting)
        else:
            self._waiting[answer.run] = [waiting]
            task = loop.create_task(self._settle_all(answer.run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await waiting[2]

    async def _settle_all(self, run: str) -> None:
        """Until none waits."""
        batch: list[_Waiting] = []
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
                if len(batch) > 1 or self._waiting[run]:
                    await asyncio.sleep(GATHER_S)
        finally:
            for _, _, future in batch + self._waiting.pop(run):
                future.cancel()

    def _note(self, error: Exception) -> None:
        if isinstance(error, BlobError | StoreError):
            self._service.coordinator.core.failures.note(error)


def _settled(batch: Sequence[_Waiting]) -> list[tuple[Any, Exception | None]]:
    """The answer or the error of each; the first call commits them all."""
    found: list[tuple[Any, Exception | None]] = []
    for context, answer, _ in batch:
        try:
            found.append((context.run(answer.settle), None))
        except Exception as error:  # noqa: BLE001 - it is raised where its request is answered
            found.append((None, error))
    return found
