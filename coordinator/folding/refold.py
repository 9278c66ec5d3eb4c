"""Folds a committed round again from updates that are still stored, for an audit to compare with the commit.

Reads blobs; what is written stays in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from client_sdk.tensors import Roles, TensorError
from coordinator.blobs import BlobError, MemoryBlobs, Spool
from coordinator.blobs.blocks import BlockTags, CheckedFile, hash_file, read_sums
from coordinator.blobs.port import damaged, is_digest, missing
from coordinator.engine.aggregation.registry import Registry
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan
from coordinator.folding.aggregator import Aggregator, CannotAggregate, NewCheckpoint

_PIECE = 1 << 20


class Readable(Protocol):
    """The part of the Blobs port that reading needs."""

    def has(self, digest: str) -> bool: ...
    def open(self, digest: str) -> BinaryIO: ...


def differences(
    blobs: Readable,
    plan: Plan,
    registry: Registry,
    *,
    run: str,
    roles: Roles,
    round: int,
    parent: NewCheckpoint,
    items: tuple[Contribution, ...],
    committed: NewCheckpoint,
) -> Iterator[str]:
    """Yields a sentence for each part of ``committed`` that the updates do not give again. ``roles``: the run's;
    ``parent``: the checkpoint that they were added to, with its server optimizer's state."""
    overlay: Any = _Overlay(blobs)
    try:
        found = Aggregator(overlay, plan, parent.digest, roles=roles, registry=registry, run=run).commit(
            round, parent.digest, items, parent.optimizer
        )
    except (CannotAggregate, BlobError, TensorError, OSError) as error:
        yield f"its updates cannot be added up again: {error}"
        return
    if found.digest != committed.digest:
        yield f"its updates give {short(found.digest)}, not {short(committed.digest)}"
    if found.optimizer != committed.optimizer:
        gives, names = short(found.optimizer), short(committed.optimizer)
        yield f"its updates give the server optimizer's state {gives}, not {names}"


def short(digest: str | None) -> str:
    """The first digits of a digest, for people."""
    return digest[:12] if digest is not None else "none"


class _Overlay:
    """Readable blobs; what is written on top of them stays in memory."""

    def __init__(self, blobs: Readable) -> None:
        self.has, self.open = blobs.has, blobs.open

    def spool(self, limit: int | None = None) -> Spool:
        return MemoryBlobs().spool(limit)


def hashed(blobs: Readable, digest: str) -> tuple[str, int]:
    """Returns (SHA-256, bytes) of the content of a blob."""
    digesting, size = hashlib.sha256(), 0
    with blobs.open(digest) as file:
        while piece := file.read(_PIECE):
            digesting.update(piece)
            size += len(piece)
    return digesting.hexdigest(), size


class BlobFolder:
    """The blobs of a folder of ``FileBlobs``, read only: no folder is made, no file is swept or marked. What is read is
    checked likewise."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, digest: str) -> bool:
        return is_digest(digest) and (self._folder / digest[:2] / digest).is_file()

    def open(self, digest: str) -> BinaryIO:
        if not is_digest(digest):
            raise missing(digest)
        path = self._folder / digest[:2] / digest
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            was = path.with_name(f"{digest}.damaged").exists()
            raise damaged(digest) if was else missing(digest) from None

        def judge() -> BlockTags:
            file.seek(0)
            found = hash_file(file)
            if found.digest != digest:
                raise damaged(digest)
            return found.end()

        try:
            size = path.stat().st_size
            sums = read_sums(path.with_name(f"{digest}.sums"), digest, size) if size else None
            return cast("BinaryIO", CheckedFile(file, digest, sums or judge(), judge))
        except BaseException:
            file.close()
            raise
