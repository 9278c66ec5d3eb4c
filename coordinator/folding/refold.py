"""Folds a committed round again from updates that are still stored, for an audit to compare with the commit.

Reads blobs; what is written stays in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

from client_sdk.tensors import Roles, TensorError
from coordinator.blobs import BlobError, MemoryBlobs, Spool
from coordinator.engine.aggregation.parameters import Settings
from coordinator.engine.aggregation.registry import Registry
from coordinator.engine.effects import Contribution
from coordinator.engine.named_tensors import called, changes
from coordinator.engine.plan import Plan
from coordinator.folding.aggregator import Aggregator, CannotAggregate, NewCheckpoint
from coordinator.folding.noise import Noise, RoundSeed

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
    settings: Settings | None = None,
    seed: RoundSeed | None = None,
    noise: Noise | None = None,
) -> Iterator[str]:
    """Yields a sentence for each part of ``committed`` that the updates do not give again. ``roles``: the run's;
    ``parent``: the checkpoint that they were added to, with its named tensors and its small state;
    ``settings``: the round's numbers, None: those of the first version; ``seed``: of its noise;
    ``noise``: with what it remembers of the rounds before."""
    overlay: Any = _Overlay(blobs)
    seeded = None if seed is None else lambda: seed
    try:
        found = Aggregator(overlay, plan, parent.digest, roles=roles, registry=registry, run=run, noise=noise).commit(
            round, parent.digest, items, parent.named_tensors, parent.small, settings, seeded
        )
    except (CannotAggregate, BlobError, TensorError, OSError) as error:
        yield f"its updates cannot be added up again: {error}"
        return
    if found.digest != committed.digest:
        yield f"its updates give {short(found.digest)}, not {short(committed.digest)}"
    for name, gives, names in changes(found.named_tensors, committed.named_tensors):
        yield f"its updates give {called(name)} {short(gives)}, not {short(names)}"
    if found.small != committed.small:
        yield "its updates give another small state than the log has"


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
