"""The Blobs port: immutable bytes, named by their SHA-256; and its implementation in memory.

A blob is durable when the call that stores it returns, as far as the implementation is durable. Errors::

    BlobError                the bytes could not be stored or read; nothing of this blob was stored
    |- DigestMismatch        the bytes do not have the announced digest
    |- TooLarge              more bytes than the limit; raised while they arrive
    |- DiskFull              no space or no quota left
    `- Gone                  its bytes cannot be had until somebody stores them again
       |- Damaged            the stored bytes have another digest by now
       `- Missing            no blob with this digest

What a blob is read by checks the bytes against the digest before it gives them. There is no way around it: the port
names no files.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol, Self

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobError(Exception):
    """The bytes could not be stored or read. Nothing of this blob was stored."""


class DigestMismatch(BlobError):
    """The bytes do not have the announced digest."""


class TooLarge(BlobError):
    """There are more bytes than the limit allows."""


class DiskFull(BlobError):
    """The disk, or the quota on it, is full."""


class Gone(BlobError):
    """The bytes of ``digest`` cannot be had until somebody stores them again."""

    def __init__(self, text: str, digest: str) -> None:
        super().__init__(text)
        self.digest = digest


class Missing(Gone):
    """There is no blob with this digest."""


class Damaged(Gone):
    """The bytes that are stored under this digest do not have it any more. Nobody is given them."""


class Spool(Protocol):
    """A blob while it is being received. A context manager: its end discards the bytes unless ``commit`` was called."""

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Appends bytes. TooLarge as soon as they exceed the limit; DiskFull."""
        ...

    def commit(self, expected: str | None = None) -> str:
        """Makes the bytes a durable blob and returns their digest. Storing equal content again is allowed; what is
        stored already is read and compared with the digest, and replaced where it is damaged.

        DigestMismatch when ``expected`` is another digest; DiskFull. In both cases nothing is stored.
        """
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes so far, as 64 hexadecimal digits."""
        ...

    @property
    def size(self) -> int:
        """Number of bytes so far."""
        ...

    @property
    def repaired(self) -> bool:
        """Whether ``commit`` has replaced damaged bytes."""
        ...

    @property
    def handle(self) -> BinaryIO:
        """A file object over the bytes so far: opened at first use, at position 0, and closed with the spool."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Blobs(Protocol):
    """Content-addressed storage, safe to use from several threads.

    Digests are lower-case hexadecimal SHA-256; anything else is Missing.
    """

    def __hash__(self) -> int: ...

    def put(self, data: bytes) -> str:
        """Stores the bytes durably and returns their digest."""
        ...

    def spool(self, limit: int | None = None) -> Spool:
        """A spool that accepts at most ``limit`` bytes (None: any number)."""
        ...

    def open(self, digest: str) -> BinaryIO:
        """The bytes as a file object, which seeks and stays readable when the blob is deleted. It need not be a file of
        this machine: ``blocks.CheckedFile`` reads any ranges. Missing, Damaged; reads from it raise Damaged too, before
        any wrong byte is given."""
        ...

    def size(self, digest: str) -> int:
        """Size in bytes. Missing, Damaged."""
        ...

    def damaged(self) -> list[str]:
        """The digests, sorted, of blobs that were found damaged and are not repaired yet, as far as this process
        knows."""
        ...

    def repaired(self) -> list[str]:
        """The digests, sorted, of blobs that were damaged and are whole again, as far as this process has seen it."""
        ...

    def has(self, digest: str) -> bool:
        """Whether the blob exists; False for a text that is not a digest."""
        ...

    def delete(self, digest: str) -> None:
        """Removes the blob if it exists.

        The caller ensures that nothing refers to it and that nobody stores the same bytes at the same time.
        """
        ...

    def digests(self) -> Iterator[str]:
        """All digests, sorted."""
        ...

    def stored_before(self, at: float) -> Iterator[str]:
        """The digests, sorted, of blobs that were last stored before ``at``, in Unix seconds by the disk's clock."""
        ...


def is_digest(text: str) -> bool:
    """Whether this is a SHA-256 of 64 lower-case hexadecimal digits. Only those become part of a path."""
    return _DIGEST.fullmatch(text) is not None


def damaged(digest: str) -> Damaged:
    """The error for a blob whose bytes have another digest."""
    return Damaged(
        f"Blob {digest} is damaged: what is stored has another SHA-256. Store the right bytes again.", digest
    )


def missing(digest: str) -> Missing:
    """The error for a digest without blob."""
    return Missing(f"There is no blob {digest[:80]!r}.", digest)


def check_limit(size: int, limit: int | None) -> None:
    """TooLarge when ``size`` exceeds the limit (bytes)."""
    if limit is not None and size > limit:
        raise TooLarge(f"There are more than the {limit} bytes that are allowed.")


def check_digest(digest: str, expected: str | None) -> None:
    """DigestMismatch when another digest was announced."""
    if expected is not None and digest != expected:
        raise DigestMismatch(f"The bytes have SHA-256 {digest}, but {expected[:80]} was announced.")


def check_complete(complete: bool) -> None:
    """BlobError when a spool refused or lost some of its bytes: it is never committed, even if its caller continues."""
    if not complete:
        raise BlobError("Some of the bytes were refused or could not be written, so nothing was stored.")


# ------------------------------------------------------------ in memory
# For tests and the fault explorer. Blobs live as long as the process, as bytes that were hashed when they came and that
# nobody can change: so reading them checks nothing.


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

    def __exit__(self, *_: object) -> None:
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
