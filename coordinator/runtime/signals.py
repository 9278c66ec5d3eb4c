"""Wakes threads and asyncio tasks of any event loop that wait for a change.

A signal is a hint to read again. It carries no data, may come without cause, and may get lost (another replica made the
change), so a waiter also reads again on a timer. A key is any text; the coordinator's are ``device:<id>``,
``secure:<device>``, ``run:<id>`` and ``fleet``.

How to wait without missing a change::

    seen = signals.version(key)                       # 1. before reading
    state = read()                                    # 2. no result yet?
    await signals.async_wait(key, seen, timeout_s)    # 3. returns at once if anybody woke the key since 1.

The cost: a waiting task is one future and one timer, a waiting thread one event. ``wake_many`` of 300 keys from
another thread crosses into the event loop once, not 300 times. Versions live in a fixed table of counters that keys
share by hash, so memory does not grow with the fleet; two keys in one cell only cause an unnecessary read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import TypeVar

_CELLS = 1 << 14


def secure_key(device: str) -> str:
    """The key under which a device waits for answers of its secure round."""
    return f"secure:{device}"


_T = TypeVar("_T")

_LoopFutures = list["asyncio.Future[bool]"]


class Signals:
    """Thread-safe wake-ups by key, in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions = [0] * _CELLS
        self._events: dict[str, set[threading.Event]] = {}
        self._futures: dict[str, set[asyncio.Future[bool]]] = {}
        self._crossing: dict[asyncio.AbstractEventLoop, _LoopFutures] = {}

    def version(self, key: str) -> int:
        """A number that changes when ``key`` is woken. Read it before reading what the key stands for."""
        return self._versions[hash(key) % _CELLS]

    def wake(self, key: str) -> None:
        """Wakes all waiters for ``key``, and those that have read its version and do not wait yet."""
        self.wake_many((key,))

    def wake_many(self, keys: Iterable[str]) -> None:
        """``wake`` for many keys, with one crossing into each event loop that has a waiter."""
        with self._lock:
            loops: dict[asyncio.AbstractEventLoop, _LoopFutures] = {}
            for key in keys:
                self._versions[hash(key) % _CELLS] += 1
                for event in self._events.pop(key, ()):
                    event.set()
                for future in self._futures.pop(key, ()):
                    loops.setdefault(future.get_loop(), []).append(future)
            # A loop with futures still to cross has its call scheduled already.
            fresh = [loop for loop in loops if loop not in self._crossing]
            for loop, futures in loops.items():
                self._crossing.setdefault(loop, []).extend(futures)
        for loop in fresh:
            try:
                loop.call_soon_threadsafe(self._arrive, loop)
            except RuntimeError:  # the loop closed with waiters in it: none is left to wake
                with self._lock:
                    self._crossing.pop(loop, None)

    def wake_all(self) -> None:
        """Wakes every waiter."""
        with self._lock:
            keys = [*self._events, *self._futures]
        self.wake_many(keys)

    @property
    def waiting(self) -> int:
        """How many threads and tasks wait now."""
        with self._lock:
            return sum(map(len, self._events.values())) + sum(map(len, self._futures.values()))

    def wait(self, key: str, seen: int, timeout_s: float) -> bool:
        """Blocks this thread until ``key`` is woken (True) or ``timeout_s`` seconds have passed (False).

        Returns True at once when the version is no longer ``seen``.
        """
        event = threading.Event()
        with self._lock:
            if self._versions[hash(key) % _CELLS] != seen:
                return True
            self._events.setdefault(key, set()).add(event)
        try:
            return event.wait(timeout_s)
        finally:
            with self._lock:
                _forget(self._events, key, event)

    async def async_wait(self, key: str, seen: int, timeout_s: float) -> bool:
        """Waits as ``wait`` does, in a task: the event loop does nothing for it until then. It may be cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self._versions[hash(key) % _CELLS] != seen:
                return True
            self._futures.setdefault(key, set()).add(future)
        timer = loop.call_later(timeout_s, _settle, future, False)
        try:
            return await future
        finally:
            timer.cancel()
            with self._lock:
                _forget(self._futures, key, future)

    def _arrive(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            futures = self._crossing.pop(loop, [])
        for future in futures:
            _settle(future, True)


def _settle(future: asyncio.Future[bool], woken: bool) -> None:
    if not future.done():
        future.set_result(woken)


def _forget(waiters: dict[str, set[_T]], key: str, waiter: _T) -> None:
    if (there := waiters.get(key)) is not None:
        there.discard(waiter)
        if not there:
            del waiters[key]
