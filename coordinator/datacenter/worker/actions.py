"""The actions that a worker's session requests from its driver, and the replies.

The drivers of ``worker.session.work`` are the HTTP worker and the fault explorer. Fetching, training and sending a
result take longer than a lease lasts without a heartbeat, so they are *jobs*: started, and waited for between
heartbeats. The other actions are a device's (``client_sdk.device.actions``).

============ ================================================ ==========================================================
action       the driver                                       and replies with
============ ================================================ ==========================================================
Begin        starts a job: Fetch, TrainLease or Send          None
AwaitJob     waits for the job, at most ``for_s`` seconds     JobProgress; or, once it has ended, its result: Fetched,
                                                              Finished, Failed, Unable, Answered, Refused, Unreachable
Halt         stops the job; saved steps remain                None
Ended        reports the end of the lease                     None
============ ================================================ ==========================================================

``at`` is Unix seconds by the driver's clock when the reply came: the session has no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from client_sdk.device.actions import Fetch, Reply, Send, SharedAction
from client_sdk.protocol.workers import Lease


@dataclass(frozen=True, slots=True)
class Unable:
    """The round cannot be trained here now, but elsewhere or later: the lease is returned."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLease:
    """Train from the checkpoint that was fetched last; finish by ``due_at`` (Unix seconds, driver's clock)."""

    lease: Lease
    due_at: float


Job = Fetch | TrainLease | Send


@dataclass(frozen=True, slots=True)
class Begin:
    """Start this job and return at once. One job runs at a time."""

    job: Job


@dataclass(frozen=True, slots=True)
class AwaitJob:
    """Wait for the job, ``for_s`` seconds at most."""

    for_s: float


@dataclass(frozen=True, slots=True)
class Halt:
    """The lease is lost: stop the job."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A lease has ended for this worker."""

    lease: Lease
    result: Literal["committed", "lost", "failed", "refused", "given-back"]
    """committed: the result is the model. lost: the lease went to another, or its round ended. failed: training
    failed. refused: the result was not accepted. given-back: this machine could not start."""
    reason: str = ""
    version: int | None = None
    """The new version, where the result was committed."""


WorkerAction = SharedAction | Begin | AwaitJob | Halt | Ended


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The job is still running: the progress of training."""

    step: int
    metrics: dict[str, float]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Training is done; the driver holds the result's bytes under their digest."""

    digest: str
    parent: str
    """SHA-256 of the checkpoint that training started from, as it was read."""
    bytes: int
    steps: int
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    at: float


WorkerReply = Reply | Finished | Unable | JobProgress
