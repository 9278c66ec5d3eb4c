"""A store and blobs that crash the process at a chosen moment: before or after anything becomes durable.

Each moment is a numbered point. A test runs the same happenings once for every point and finds the process dead there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coordinator.blobs.port import MemoryBlobs, MemorySpool
from coordinator.store.port import Store, Transaction


class Crash(BaseException):
    """The process is gone. Not an Exception: nobody may catch it and go on."""


class Points:
    """Counts the points that are passed; crashes at those in ``fatal``, once armed."""

    def __init__(self, *fatal: int) -> None:
        self.fatal = fatal
        self.names: list[str] = []
        self.armed = False

    def here(self, name: str) -> None:
        if self.armed:
            self.names.append(name)
            if len(self.names) in self.fatal:
                raise Crash(f"at point {len(self.names)}: {name}")


class FragileStore:
    """The Store port over another: crashes just before a transaction is durable, or just after."""

    def __init__(self, store: Store, points: Points) -> None:
        self._store = store
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(self, run: str | None = None) -> Iterator[Transaction]:
        with self._store.transaction(run) as tx:
            yield tx
            self._points.here("before a transaction is durable")
        self._points.here("after a transaction is durable")


class FragileSpool(MemorySpool):
    def __init__(self, owner: FragileBlobs, limit: int | None, points: Points) -> None:
        super().__init__(owner, limit)
        self._points = points

    def commit(self, expected: str | None = None) -> str:
        self._points.here("before a blob is durable")
        digest = super().commit(expected)
        self._points.here("after a blob is durable")
        return digest


class FragileBlobs(MemoryBlobs):
    """Blobs in memory: crashes around each one that is stored or deleted."""

    def __init__(self, points: Points) -> None:
        super().__init__()
        self._points = points

    def put(self, data: bytes) -> str:
        self._points.here("before a blob is durable")
        digest = super().put(data)
        self._points.here("after a blob is durable")
        return digest

    def spool(self, limit: int | None = None) -> FragileSpool:
        return FragileSpool(self, limit, self._points)

    def delete(self, digest: str) -> None:
        self._points.here("before a blob is deleted")
        super().delete(digest)
        self._points.here("after a blob is deleted")
