"""The blobs of one replica: the real ones, with faults.

::

    write    full (DiskFull), torn (BlobError in the middle)      nothing is stored
    commit   crash, pause                                         before and after the blob is durable
             lost acknowledgement (BlobError, stored)             after
    delete   crash                                                before and after
    open     a flipped bit (``flips``)                            before it is opened, and before it is read
"""

from __future__ import annotations

from typing import Any, BinaryIO, Self

from coordinator.blobs import BlobError, Blobs, DiskFull, Spool
from tests.explorer.process import Process


class FaultyBlobs:
    """Behaves like ``blobs`` where no fault strikes."""

    def __init__(self, blobs: Blobs, replica: Process) -> None:
        self._blobs = blobs
        self._replica = replica
        self._flips = replica.durable.flips if "bit-flip" in replica.world.possible else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    def open(self, digest: str) -> BinaryIO:
        if self._flips is None:
            return self._blobs.open(digest)
        return self._flips.open(self._blobs, digest, self._replica)

    def put(self, data: bytes) -> str:
        with self.spool() as spool:
            spool.write(data)
            return spool.commit()

    def spool(self, limit: int | None = None) -> FaultySpool:
        return FaultySpool(self._blobs.spool(limit), self._replica)

    def delete(self, digest: str) -> None:
        self._replica.die_at("before delete")
        self._blobs.delete(digest)
        self._replica.die_at("after delete")


class FaultySpool:
    def __init__(self, spool: Spool, replica: Process) -> None:
        self._spool = spool
        self._replica = replica
        self._torn = False

    def __enter__(self) -> Self:
        self._spool.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._spool.__exit__(*raised)

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        if self._replica.strikes("blob-full", "write"):
            self._torn = True
            raise DiskFull("Could not write a blob: the disk is full (explorer).")
        if self._replica.strikes("blob-torn", "write"):
            self._torn = True
            self._spool.write(memoryview(chunk)[: len(chunk) // 2])
            raise BlobError("Could not use a blob: the disk reported an error (explorer).")
        self._spool.write(chunk)

    def commit(self, expected: str | None = None) -> str:
        if self._torn:
            raise BlobError("Some of the bytes were refused or could not be written, so the rest is not stored.")
        self._replica.die_at("before blob")
        digest = self._spool.commit(expected)
        if self._replica.world.shape.secure:
            self._replica.world.vectors.stored.append(digest)
        for told in self._replica.world.stored:
            told(digest)
        self._replica.point("blob")
        if self._replica.strikes("blob-lost-ack", "blob"):
            raise BlobError("Could not use a blob: the disk reported an error after it was written (explorer).")
        return digest

    @property
    def digest(self) -> str:
        return self._spool.digest

    @property
    def size(self) -> int:
        return self._spool.size

    @property
    def repaired(self) -> bool:
        return self._spool.repaired

    @property
    def handle(self) -> BinaryIO:
        return self._spool.handle
