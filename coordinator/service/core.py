"""What the routes of a coordinator share: the coordinator itself, its signals, and what any service has.

Held check-ins and event streams need no thread.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from starlette.types import Receive

from coordinator.access import Operator
from coordinator.blobs.port import BlobError
from coordinator.requests import Caller, PendingCommit
from coordinator.runtime import log_context
from coordinator.runtime.identities import Registrant
from coordinator.runtime.signals import Signals
from coordinator.service.limits.admission import LOCAL, Sender
from coordinator.service.observe import Meters
from coordinator.service.serving import Serving
from coordinator.service.stream_slots import StreamSlots
from coordinator.settings import Settings
from coordinator.store.port import DeviceRow, StoreError, WorkerRow

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator


class Service(Serving):
    """One process's HTTP side of a coordinator. Lives as ``app.state.service``."""

    def __init__(self, coordinator: Coordinator, settings: Settings, signals: Signals) -> None:
        super().__init__(settings, Meters(coordinator))
        self.coordinator = coordinator
        self.signals = signals
        self.stream_slots = StreamSlots(settings.streams, "event streams")
        self.viewer_slots = StreamSlots(settings.viewers, "viewers")
        self._lock = threading.Lock()
        self._woken: list[asyncio.Future[None]] = []
        """Of answers that are settled, until the event loop knows."""

    def stop(self) -> None:
        super().stop()
        self.signals.wake_all()

    def count(self, caller: Caller, sender: Sender = LOCAL) -> Caller:
        """Counts a request of this caller, whom the log names from now on, and returns the caller. Operators are
        counted where their address is. ProblemError *too-many-requests*."""
        name = caller_name(caller)
        if name is not None:
            kind, _, own = name.partition(":")
            log_context.known(**{kind: own})
            if sender.key or not isinstance(caller, Operator):
                self.admission.caller(name)
        return caller

    async def settled(self, answer: Any) -> Any:
        """The answer itself where ``settling`` returned another one: once what it acknowledges is durable. Raises what
        ``PendingCommit.settle`` raises."""
        if not isinstance(answer, Future):
            return answer
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        answer.add_done_callback(lambda _: self._wake(loop, woken))
        await woken
        try:
            return answer.result()
        except (BlobError, StoreError) as error:
            self.coordinator.core.process.storage_errors.note(error)
            raise

    def _wake(self, loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
        """Wakes the event loop once for all answers of a moment, as each time is a switch of threads."""
        with self._lock:
            self._woken.append(woken)
            if len(self._woken) > 1:
                return
        loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        with self._lock:
            woken, self._woken = self._woken, []
        for one in woken:
            if not one.done():  # its request was cancelled
                one.set_result(None)


def settling(answer: Any) -> Any:
    """Settles a pending answer, in the thread of its request. Where it has company there, it returns a future in place
    of the answer, for ``Service.settled``."""
    if not isinstance(answer, PendingCommit):
        return answer
    future: Future[Any] = Future()
    answer.commits.gather(partial(_settle, copy_context(), answer, future))
    return future.result() if future.done() else future


def _settle(context: Context, answer: PendingCommit, future: Future[Any]) -> None:
    try:
        future.set_result(context.run(answer.settle))
    except BaseException as error:  # noqa: BLE001 - it is raised where the request is answered
        future.set_exception(error)


def caller_name(caller: Caller) -> str | None:
    """The name under which a caller is counted: ``device:d-1``; None: it is nobody."""
    match caller:
        case DeviceRow():
            return f"device:{caller.device}"
        case WorkerRow():
            return f"worker:{caller.worker}"
        case Operator():
            return f"operator:{caller.id}"
        case Registrant():
            return f"{caller.certificate.holder}:{caller.certificate.id}"
        case None:
            return None
        case _:
            assert_never(caller)


async def until_gone(receive: Receive) -> None:
    """Returns when the peer has closed its connection. Drops what the peer still sends."""
    while (await receive())["type"] != "http.disconnect":
        pass
