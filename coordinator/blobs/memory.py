"""Blobs in memory, for tests and the fault explorer. They live as long as the process, as bytes that were hashed when
they came and that nobody can change: so reading them checks nothing."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import BinaryIO, Self

from coordinator.blobs.port import check_complete, check_digest, check_limit, missing


class MemorySpool:
    """The Spool port over a bytearray."""

    def __init__(self, owner: MemoryBlobs, limit: int | None) -> None:
        self._owner = owner
        self._limit = limit
        self._bytes = bytearray()
        self._complete = True
        self._hash = hashlib.sha256()
        self._reader: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.close()

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        view = memoryview(chunk).cast("B")
        complete, self._complete = self._complete, False
        check_limit(len(self._bytes) + len(view), self._limit)
        self._bytes += view
        self._hash.update(view)
        self._complete = complete

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    @property
    def size(self) -> int:
        return len(self._bytes)

    @property
    def repaired(self) -> bool:
        return False

    @property
    def handle(self) -> BinaryIO:
        if self._reader is None:
            self._reader = io.BytesIO(bytes(self._bytes))
        return self._reader

    def commit(self, expected: str | None = None) -> str:
        check_digest(self.digest, expected)
        check_complete(self._complete)
        self._owner.add(self.digest, bytes(self._bytes))
        return self.digest


class MemoryBlobs:
    """The Blobs port over a dict."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        """``now``: Unix seconds; None: blobs have no age, and none was stored before any time."""
        self._now = now
        self._blobs: dict[str, bytes] = {}
        self._stored_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, digest: str, data: bytes) -> None:
        """Stores the bytes under their digest."""
        with self._lock:
            self._blobs.setdefault(digest, data)
            if self._now is not None:
                self._stored_at[digest] = self._now()

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.add(digest, bytes(data))
        return digest

    def spool(self, limit: int | None = None) -> MemorySpool:
        return MemorySpool(self, limit)

    def open(self, digest: str) -> BinaryIO:
        return io.BytesIO(self._get(digest))

    def size(self, digest: str) -> int:
        return len(self._get(digest))

    def damaged(self) -> list[str]:
        return []

    def repaired(self) -> list[str]:
        return []

    def has(self, digest: str) -> bool:
        return digest in self._blobs

    def delete(self, digest: str) -> None:
        with self._lock:
            self._blobs.pop(digest, None)
            self._stored_at.pop(digest, None)

    def digests(self) -> Iterator[str]:
        with self._lock:
            return iter(sorted(self._blobs))

    def stored_before(self, at: float) -> Iterator[str]:
        with self._lock:
            return iter(sorted(digest for digest, stored in self._stored_at.items() if stored < at))

    def _get(self, digest: str) -> bytes:
        try:
            return self._blobs[digest]
        except KeyError:
            raise missing(digest) from None
