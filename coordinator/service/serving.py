"""What any service of ours has, a coordinator's or an authority's: settings, meters, and threads for blocking calls.

The event loop only moves bytes and waits. Code that reads the database, touches a file, hashes or validates runs in a
thread by ``Serving.work``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from client_sdk.protocol.problems import problem
from coordinator.service.edge import Hosts
from coordinator.service.limits import Admission
from coordinator.service.limits.admission import spread
from coordinator.service.observe import Meters
from coordinator.service.sockets.limits import Limits, most_connections
from coordinator.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

PROBES = frozenset({"/healthz", "/readyz"})
"""Routes that a proxy's own health checks read."""
OVERLOAD = 4096
"""Requests that may queue for a thread before new ones are refused as *busy*: some seconds of work."""


class Serving:
    """One process's HTTP side. Lives as ``app.state.service``."""

    def __init__(self, settings: Settings, meters: Meters) -> None:
        self.settings = settings
        self.meters = meters
        self.limits = Limits.of(settings)
        self.most_connections = most_connections(settings)
        self.admission = Admission(settings, self.most_connections)
        self.hosts = Hosts(settings.public, PROBES)
        self.stopping = False
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="quorate")
        self._queued = 0
        self._closed = False

    async def work(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``task`` in a thread and returns its result or raises its error. CancelledError where the service is
        closed before a thread is free."""
        self._queued += 1
        try:
            context = copy_context()
            return await self._in_thread(lambda: context.run(task, *args, **kwargs))
        finally:
            self._queued -= 1

    def _in_thread(self, task: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(self._threads, task)
        except RuntimeError:
            if not self._closed:
                raise
            raise asyncio.CancelledError from None

    def admit(self) -> None:
        """ProblemError *busy* where too many requests wait for a thread: a new one would only wait longer."""
        if self._queued >= OVERLOAD:
            raise problem("busy", f"{self._queued} requests wait for a thread already.", retry_after_s=spread(5))

    def stop(self) -> None:
        """Answers all held requests and holds no more. Requests still arrive until the sockets close."""
        self.stopping = True

    def close(self) -> None:
        """Cancels the work that waits for a thread, and waits until the threads have finished. It is called beside the
        event loop, which sends the answers of what runs meanwhile."""
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
