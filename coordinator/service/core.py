"""What the routes share: the coordinator, the settings, the meters, and the threads for blocking calls.

The event loop only moves bytes and waits. Code that reads the database, touches a file, hashes or validates runs in a
thread by ``Service.work``; held check-ins and event streams use none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, ParamSpec, TypeVar, assert_never

from starlette.types import Receive

from client_sdk.protocol.problems import Problem, problem
from coordinator.requests import Caller, Operator, Permission, identify
from coordinator.runtime.signals import Signals
from coordinator.service import log_context
from coordinator.service.limits import Admission
from coordinator.service.limits.admission import spread
from coordinator.service.observe import Meters
from coordinator.service.sockets.limits import Limits, most_connections
from coordinator.settings import Settings
from coordinator.store.port import DeviceRow, WorkerRow

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

P = ParamSpec("P")
T = TypeVar("T")

OVERLOAD = 4096
"""Requests that may queue for a thread before new ones are refused as *busy*: some seconds of work."""


class Service:
    """One process's HTTP side of a coordinator. Lives as ``app.state.service``."""

    def __init__(self, coordinator: Coordinator, settings: Settings, signals: Signals) -> None:
        self.coordinator = coordinator
        self.settings = settings
        self.signals = signals
        self.meters = Meters(coordinator)
        self.limits = Limits.of(settings)
        self.most_connections = most_connections(settings)
        self.admission = Admission(settings, self.most_connections)
        self.stopping = False
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="quorate")
        self._queued = 0

    async def work(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``task`` in a thread and returns its result or raises its error."""
        self._queued += 1
        try:
            loop = asyncio.get_running_loop()
            context = copy_context()
            return await loop.run_in_executor(self._threads, lambda: context.run(task, *args, **kwargs))
        finally:
            self._queued -= 1

    def admit(self) -> None:
        """ProblemError *busy* where too many requests wait for a thread: a new one would only wait longer."""
        if self._queued >= OVERLOAD:
            raise problem("busy", f"{self._queued} requests wait for a thread already.", retry_after_s=spread(5))

    def identify(self, permission: Permission, token: str) -> Caller:
        """Returns the caller of a request, and counts the request. Reads the store: call it in a thread. ProblemError
        *unauthenticated*, *too-many-requests*."""
        caller = identify(self.coordinator, permission, token)
        name = caller_name(caller)
        if name is not None:
            kind, _, own = name.partition(":")
            log_context.known(**{kind: own})
            self.admission.caller(name)
        return caller

    def count_refusal(self, found: Problem) -> None:
        """Counts a problem that was answered below the routes."""
        self.meters.refused(found)

    def stop(self) -> None:
        """Answers all held requests and holds no more. Requests still arrive until the sockets close."""
        self.stopping = True
        self.signals.wake_all()

    def close(self) -> None:
        """Waits until the threads have finished."""
        self._threads.shutdown(wait=True, cancel_futures=True)


def caller_name(caller: Caller) -> str | None:
    """The name under which a caller is counted: ``device:d-1``; None: it is not counted."""
    match caller:
        case DeviceRow():
            return f"device:{caller.device}"
        case WorkerRow():
            return f"worker:{caller.worker}"
        case Operator() | None:
            return None
        case _:
            assert_never(caller)


async def until_gone(receive: Receive) -> None:
    """Returns when the peer has closed its connection. Drops what the peer still sends."""
    while (await receive())["type"] != "http.disconnect":
        pass
