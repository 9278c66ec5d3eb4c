"""What can happen in datacenter rounds: a worker gets the lease, works, delivers or gives back; devices return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from coordinator.engine.evidence import NO_EVIDENCE, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A worker asked for the datacenter round. The first grant, a takeover, or the same worker started again."""

    kind: ClassVar[str] = "Leased"
    at: float
    round: int
    attempt: int
    """One more than the round's last lease had."""
    fence: int
    """One more than the run's last lease had."""
    worker: str
    instance: str
    waiting: int
    """Eligible devices in the pool: too few to return to them."""
    installation: str = ""
    """The worker's, which is the same when it is started again; empty where it gave none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeat:
    """A heartbeat: the worker trains. Changes the state, and is logged, when the last logged one is a quarter of
    ``lease_s`` old: a lease of an hour makes some hundred rows, however often the worker sends one."""

    kind: ClassVar[str] = "Heartbeat"
    at: float
    round: int
    attempt: int
    fence: int
    worker: str
    step: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnded:
    """The worker returns the lease, or reports that the round cannot be trained."""

    kind: ClassVar[str] = "LeaseEnded"
    at: float
    round: int
    attempt: int
    fence: int
    worker: str
    failed: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A worker's checkpoint was received, validated and made durable; with this event it becomes the model."""

    kind: ClassVar[str] = "Delivered"
    at: float
    round: int
    attempt: int
    fence: int
    worker: str
    digest: str
    bytes: int
    steps: int
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    waiting: int | None = None
    """Eligible devices in the pool at that moment. None: they were not counted."""
    tensors: str = ""
    """Digest of the checkpoint's canonical tensors, where the plan has secure rounds."""
    evidence: Evidence = NO_EVIDENCE
    """The worker's word for the parent that it trained from, which the coordinator has compared with the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReturned:
    """Enough eligible devices wait while no worker has the datacenter round."""

    kind: ClassVar[str] = "FleetReturned"
    at: float
    round: int
    waiting: int
    left_out: int = 0
    """Devices that wait and can contribute to the model no more, where too few others wait: see
    ``leasing.fleet_is_back``."""
