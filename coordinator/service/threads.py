"""The threads of a service: they run what its event loop must not wait for.

``ThreadPoolExecutor`` with ``run_in_executor`` makes two futures for each call, which tell each other, one of them with
a lock and a condition, and wakes the event loop; a short request has several calls. Here a call has the event loop's
future alone, and the loop is woken once for all calls that are done by then.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[Callable[[], Any], asyncio.Future[Any]]


class Threads:
    """At most so many threads, each started when no other is free. ``run`` is for one event loop."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False
        """Whether the event loop will look at what is done."""
        self._threads: list[threading.Thread] = []
        self._free = 0
        """Threads that wait for a call, less the calls that wait for a thread."""
        self._lock = threading.Lock()
        self.closed = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """A future of the running event loop: the result or the error of the call. A call whose future was cancelled
        before a thread was free is not made; where the threads are closed before, the future is cancelled."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self.closed:
                future.cancel()
                return future
            self._free -= 1
            if self._free < 0 and len(self._threads) < self._most:
                self._free += 1
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._calls.put((call, future))
        return future

    def close(self) -> None:
        """Cancels the calls that wait for a thread, and waits until the threads have ended. To be called beside the
        event loop."""
        with self._lock:
            self.closed = True
        with suppress(Empty):
            while True:
                if (waiting := self._calls.get_nowait()) is not None:
                    self._tell(waiting[1], None, asyncio.CancelledError())
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            call, future = given
            found: Any = None
            error: BaseException | None = None
            if not future.cancelled():
                try:
                    found = call()
                except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
                    error = raised
            with self._lock:
                self._free += 1
            self._tell(future, found, error)
            del given, call, future, found, error  # what a thread that waits holds is not freed

    def _tell(self, future: asyncio.Future[Any], found: Any, error: BaseException | None) -> None:
        self._done.append((future, found, error))
        if not self._told:
            self._told = True
            try:
                future.get_loop().call_soon_threadsafe(self._settle)
            except RuntimeError:  # the event loop is closed: nobody waits
                self._told = False

    def _settle(self) -> None:
        self._told = False
        while self._done:
            future, found, error = self._done.popleft()
            if future.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            elif isinstance(error, StopIteration):  # no future takes it
                future.set_exception(RuntimeError(f"a call raised {error!r}").with_traceback(error.__traceback__))
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(found)
