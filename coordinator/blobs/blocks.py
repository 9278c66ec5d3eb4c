"""Blocks of a blob and their tags, and a reader that checks each block before it gives its bytes.

A tag is the GMAC (NIST SP 800-38D: AES-128-GCM of no text) of a block, under a key that is drawn for each blob: what a
disk does to a block goes unnoticed with a chance of 2^-112 at most, for a tenth of the time of a SHA-256. Whoever can
write to the folder can compute tags too. Tags are computed while a blob is received. They only save time, and condemn
nothing: where one does not fit, or they are lost, the whole file is read again, and its digest decides.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coordinator.blobs.port import BlobError

BLOCK = 1 << 16
"""Bytes of a block; the last one of a blob may be shorter. A reader holds up to two: with blocks of 1 MiB, sixteen
readers would hold 32 MiB. Smaller ones cost calls."""
_DIGEST, _KEY, _TAG = 32, 16, 16
_HELD = 2
"""Blocks that a reader holds: codecs read scales and values in turn."""


class BlockTags(NamedTuple):
    """What the blocks of one blob are checked with."""

    key: bytes
    """Empty: there is one block, and its tag is the blob's SHA-256."""
    tags: bytes
    """Of all blocks, one after the other."""

    def fits(self, index: int, block: bytes) -> bool:
        if not self.key:
            return hashlib.sha256(block).digest() == self.tags
        tag = AESGCM(self.key).encrypt(_nonce(index), b"", block)
        return tag == self.tags[index * _TAG : (index + 1) * _TAG]

    def covers(self, size: int) -> bool:
        """Whether there is a tag for each block of a blob of so many bytes."""
        return len(self.tags) == (blocks_of(size) * _TAG if self.key else _DIGEST)


Judge = Callable[[], BlockTags]


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "big")


class BlobHash:
    """SHA-256 of bytes as they arrive, and the tag of each of their blocks. Memory: one block."""

    def __init__(self) -> None:
        self.size = 0
        self._whole = hashlib.sha256()
        self._begun = bytearray()
        """Bytes of the block that is not full yet: a copy and one call cost less than a context for its pieces."""
        self._key, self._tags = os.urandom(_KEY), bytearray()

    def update(self, view: memoryview) -> None:
        """``view``: of bytes."""
        self._whole.update(view)
        self.size += len(view)
        while view:
            piece = view[: BLOCK - len(self._begun)]
            view = view[len(piece) :]
            if len(piece) == BLOCK:
                self._add_tag(piece)
                continue
            self._begun += piece
            if len(self._begun) == BLOCK:
                self._add_tag(self._begun)
                self._begun.clear()

    @property
    def digest(self) -> str:
        """Of all bytes so far, in hexadecimal."""
        return self._whole.hexdigest()

    def end(self) -> BlockTags:
        """The tags of all blocks. No bytes may follow."""
        if self._begun:
            self._add_tag(self._begun)
            self._begun.clear()
        return BlockTags(self._key, bytes(self._tags))

    def _add_tag(self, block: bytearray | memoryview) -> None:
        self._tags += AESGCM(self._key).encrypt(_nonce(len(self._tags) // _TAG), b"", block)


def hash_file(file: BinaryIO) -> BlobHash:
    """Hashes a file from its beginning."""
    found, buffer = BlobHash(), bytearray(BLOCK)
    with memoryview(buffer) as view:
        while count := file.readinto(view):  # type: ignore[attr-defined]
            found.update(view[:count])
    return found


def sums_bytes(digest: str, sums: BlockTags) -> bytes:
    """The file of sums of the blob with this digest."""
    body = sums.key + sums.tags
    return hashlib.sha256(bytes.fromhex(digest) + body).digest() + body


def read_sums(path: Path, digest: str, size: int) -> BlockTags | None:
    """The sums of a blob of this digest and size; None where the file has none that are whole."""
    if size <= BLOCK:
        return BlockTags(b"", bytes.fromhex(digest))
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[_DIGEST:]
    whole = hashlib.sha256(bytes.fromhex(digest) + body).digest() == data[:_DIGEST]
    if not whole or len(body) != _KEY + blocks_of(size) * _TAG:
        return None
    return BlockTags(body[:_KEY], body[_KEY:])


def blocks_of(size: int) -> int:
    """How many blocks a blob of so many bytes has."""
    return -(-size // BLOCK)


class Ranges(NamedTuple):
    """Stored bytes that are read by ranges: those of a file, or of an object in a store over a network."""

    size: int
    """In bytes."""
    read: Callable[[int, int], bytes]
    """Returns so many bytes (first argument) from a position on (second argument), as ``pread`` does. OSError."""
    close: Callable[[], object]

    @classmethod
    def of_file(cls, file: BinaryIO) -> Ranges:
        return cls(os.fstat(file.fileno()).st_size, partial(os.pread, file.fileno()), file.close)


class CheckedFile(io.RawIOBase):
    """Stored bytes as a file that gives them only after the block that they are in was checked. Memory: one block, and
    a second one while two places are read in turn."""

    def __init__(self, stored: Ranges, digest: str, sums: BlockTags, judge: Judge) -> None:
        """``judge`` is called where a block does not have its tag: it returns the sums of the blocks where the whole
        has its digest after all, and raises where it does not."""
        self._stored, self._digest, self._sums, self._judge = stored, digest, sums, judge
        self._size = stored.size
        self._at = 0
        self._held: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "a position before the beginning of the file")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """As many bytes as are asked for, but at the end of the file."""
        left = max(0, self._size - self._at)
        return b"".join(self._pieces(left if size is None or size < 0 else min(size, left)))

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        """Fills the buffer, but at the end of the file."""
        view, done = memoryview(buffer).cast("B"), 0
        for piece in self._pieces(min(len(view), max(0, self._size - self._at))):
            view[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def close(self) -> None:
        self._held.clear()
        self._stored.close()
        super().close()

    def _pieces(self, count: int) -> Iterator[memoryview]:
        while count:
            index, start = divmod(self._at, BLOCK)
            begun = start == 0 or index in self._held
            block = self._checked(index)
            piece = memoryview(block)[start : start + count]
            if begun and start + len(piece) == len(block):  # a look at its end alone comes before the rest
                self._held.pop(index, None)
            self._at += len(piece)
            count -= len(piece)
            yield piece

    def _checked(self, index: int) -> bytes:
        block = self._held.get(index)
        if block is None:
            block = self._read(index)
            if not self._sums.fits(index, block):
                self._sums = self._judge()
                block = self._read(index)
                if not self._sums.fits(index, block):
                    raise BlobError(f"Block {index} of blob {self._digest} reads differently each time.")
        self._held[index] = block
        self._held.move_to_end(index)
        if len(self._held) > _HELD:
            self._held.popitem(last=False)
        return block

    def _read(self, index: int) -> bytes:
        try:
            return self._stored.read(min(BLOCK, self._size - index * BLOCK), index * BLOCK)
        except OSError as error:
            raise BlobError(f"Could not read block {index} of blob {self._digest}: {error.strerror}.") from error
