"""The Blobs port: immutable bytes under their own SHA-256.

It has never heard of rounds, tensors or HTTP, nor of how bytes are kept.

What is returned as stored is durable (or as durable as the implementation says it is). Errors::

    BlobError                the bytes could not be stored or read; nothing of this blob was stored
    |- DigestMismatch        the bytes are not those that were announced
    |- TooLarge              more bytes than the limit; raised while they arrive
    |- DiskFull              no space or no quota left
    `- Missing               no blob of that digest
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobError(Exception):
    """The bytes could not be stored or read. Nothing of this blob was stored."""


class DigestMismatch(BlobError):
    """The bytes that arrived have another digest than the one announced."""


class TooLarge(BlobError):
    """More bytes arrived than the limit allows."""


class DiskFull(BlobError):
    """The disk, or the quota on it, is full."""


class Missing(BlobError):
    """There is no blob of this digest."""


class Spool(Protocol):
    """Bytes on their way in. A context manager: leaving it without ``commit`` discards them."""

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Takes the next bytes. TooLarge as soon as they exceed the limit; DiskFull."""
        ...

    def commit(self, expected: str | None = None) -> str:
        """Makes the bytes a durable blob and returns their digest; equal content again is fine and cheap.

        DigestMismatch when ``expected`` is another; DiskFull. In both cases nothing is stored.
        """
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of what came so far, as 64 hexadecimal digits."""
        ...

    @property
    def size(self) -> int:
        """Bytes so far."""
        ...

    @property
    def path(self) -> Path:
        """A file with the bytes so far; after ``commit`` the blob's. Read only."""
        ...

    @property
    def handle(self) -> BinaryIO:
        """The bytes so far, for reading: opened at their start at first use, closed with the spool."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Blobs(Protocol):
    """Content-addressed storage, safe to use from several threads.

    Digests are lower-case hexadecimal SHA-256; anything else is Missing.
    """

    def put(self, data: bytes) -> str:
        """Stores the bytes durably and returns their digest."""
        ...

    def spool(self, limit: int | None = None) -> Spool:
        """Somewhere to write bytes as they arrive, at most ``limit`` of them."""
        ...

    def open(self, digest: str) -> BinaryIO:
        """The bytes, for reading. Missing. A blob deleted afterwards stays readable through an open handle."""
        ...

    def path(self, digest: str) -> Path:
        """A file with these bytes, read only. Missing."""
        ...

    def size(self, digest: str) -> int:
        """In bytes. Missing."""
        ...

    def has(self, digest: str) -> bool: ...
    def delete(self, digest: str) -> None:
        """Removes the blob; one that is not there is fine.

        The caller knows that nothing refers to it and that nobody is storing the same bytes right now.
        """
        ...

    def digests(self) -> Iterator[str]:
        """All digests, in order."""
        ...


def is_digest(text: str) -> bool:
    """Whether this is a SHA-256 as we write it: 64 lower-case hexadecimal digits. Only those become part of a path."""
    return _DIGEST.fullmatch(text) is not None


def missing(digest: str) -> Missing:
    return Missing(f"There is no blob {digest[:80]!r} here.")


def check_limit(size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        raise TooLarge(f"More than the {limit} bytes that are allowed here have arrived.")


def check_digest(digest: str, expected: str | None) -> None:
    if expected is not None and digest != expected:
        raise DigestMismatch(f"The bytes have SHA-256 {digest}, but {expected[:80]} was announced.")


def check_complete(complete: bool) -> None:
    """A spool that refused or lost some of its bytes is never committed, even when its caller went on."""
    if not complete:
        raise BlobError("Some of the bytes were refused or could not be written, so the rest is not stored.")
