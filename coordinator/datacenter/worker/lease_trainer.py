"""The port between a worker and torch: what trains leased rounds, and how it says that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from client_sdk.protocol.workers import Lease
from coordinator.datacenter.worker.jobs import TrainingProgress


class TrainingFailed(Exception):
    """The round cannot be trained here or anywhere: one plain sentence, shown to the operator."""


class NotNow(Exception):
    """The round cannot be trained here now, but elsewhere or later: one plain sentence. The lease is returned."""


class Halted(Exception):
    """The trainer stopped because it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOffer:
    """The capabilities of this worker: they decide which rounds it can take."""

    learners: dict[str, str]
    """``package:name`` -> version of the learners installed here."""
    data: tuple[str, ...]
    """Names of the data held here."""
    nproc: int = 1
    """The most processes that can train together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedCheckpoint:
    """The result: a safetensors file without metadata, of the names, shapes and dtypes that training started from."""

    path: Path
    digest: str
    """SHA-256 of the bytes that were written there."""
    parent: str
    """SHA-256 of the checkpoint that training started from, of the bytes as each process read them."""
    steps: int
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)


class LeaseTrainer(Protocol):
    """Trains leased rounds: the port between the worker and torch."""

    def offer(self) -> WorkerOffer:
        """The capabilities now. Called before each poll."""

    def train(
        self, lease: Lease, checkpoint: Path, note: Callable[[TrainingProgress], None], halted: Callable[[], bool]
    ) -> TrainedCheckpoint:
        """Train from ``checkpoint`` to the end of the lease's task; called in a separate thread.

        ``note`` may be called at any time. Raises Halted soon after ``halted()`` is true, and retains saved steps:
        this worker may get the next lease of the same run and checkpoint. Raises NotNow where another worker, or this
        one later, can train it, and TrainingFailed where nobody can; any other exception counts as TrainingFailed.
        """
