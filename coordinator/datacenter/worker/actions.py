"""What a worker's session asks of whoever drives it, and what it gets in return.

These are the actions and replies between ``worker.session.work`` and its drivers: the HTTP worker, the fault explorer.
Fetching, training and sending a result take longer than a lease lasts without a heartbeat, so they are *jobs*: begun,
and attended to while heartbeats go out.

============ ================================================ ==========================================================
action       the driver                                       and sends back
============ ================================================ ==========================================================
Send         delivers one request, once                       Answered, Refused, Unreachable
Begin        begins a job: Fetch, TrainLease or Send          None
Attend       waits for the job, so long at most               Going; or, once it has ended, what came of it: Fetched,
                                                              Finished, Failed, Unable, Answered, Refused, Unreachable
Halt         stops the job; what training saved stays         None
Ended        tells whoever wants to know                      None
Sleep        waits a time drawn from the window               None
============ ================================================ ==========================================================

``at`` is Unix seconds by the driver's clock when the reply came: the session has none of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from client_sdk.device.actions import Answered, Failed, Fetch, Fetched, RequestRefused, Send, Sleep, Unreachable
from client_sdk.protocol.workers import Lease


@dataclass(frozen=True, slots=True)
class Unable:
    """The round cannot be trained here now, and may be elsewhere or later: it is given back."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLease:
    """Train from the checkpoint that was fetched last; be done by ``due_at`` (Unix seconds, driver's clock)."""

    lease: Lease
    due_at: float


Job = Fetch | TrainLease | Send


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin this job and come back at once. One runs at a time."""

    job: Job


@dataclass(frozen=True, slots=True)
class Attend:
    """Let the job go on, ``for_s`` seconds at most, or until it has ended."""

    for_s: float


@dataclass(frozen=True, slots=True)
class Halt:
    """The lease is lost: the job is of no use any more."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A lease has ended for this worker."""

    lease: Lease
    result: Literal["committed", "lost", "failed", "refused", "given-back"]
    """committed: the result is the model. lost: the lease went to another, or its round ended. failed: training could
    not be done. refused: the result was not taken. given-back: this machine could not begin."""
    reason: str = ""
    version: int | None = None
    """The version made, where it was committed."""


WorkerAction = Send | Begin | Attend | Halt | Ended | Sleep


@dataclass(frozen=True, slots=True)
class Going:
    """The job goes on: the training has come so far."""

    step: int
    metrics: dict[str, float]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Training is done; the driver holds the result's bytes under their digest."""

    digest: str
    bytes: int
    steps: int
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    at: float


WorkerReply = Answered | RequestRefused | Unreachable | Fetched | Finished | Failed | Unable | Going | None
