"""The requests of datacenter workers: register, poll for a round, renew the lease, send the result, end the lease; and
those of operators who list and revoke workers.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from client_sdk.protocol.devices import Noted, Wait
from client_sdk.protocol.names import Route, RunId, WorkerId
from client_sdk.protocol.workers import (
    RESULT_HEADER,
    Heartbeat,
    Lease,
    LeaseEnd,
    LeaseRenewed,
    ResultReceipt,
    ResultReport,
    WorkerPoll,
    WorkerRegistered,
    WorkerRegistration,
    WorkerView,
)
from coordinator.access import Operator
from coordinator.blobs import Spool
from coordinator.requests.entry import (
    About,
    Attempt,
    Audited,
    Beside,
    Body,
    Direct,
    Entry,
    Held,
    Limit,
    Permission,
    RoundNumber,
)
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.identities import Registrant
from coordinator.store.port import WorkerRow

AfterWorker = Annotated[WorkerId | Literal[""], About("workers whose id sorts after this, for paging")]


def register(to: Coordinator, holder: Registrant, message: WorkerRegistration) -> WorkerRegistered:
    """A worker shows its certificate, in a request that the certified key signs; again with each new certificate.

    The same certificate again gets the same answer. An older one than the newest is refused (*not-certified*).
    """
    return WorkerRegistered(worker=to.identities.register_worker(holder.certificate, label=message.label).worker)


def listed(to: Coordinator, operator: Operator, *, after: AfterWorker = "", limit: Limit = 1000) -> list[WorkerView]:
    """Workers in order of id: when each was last seen, and which round it has. Who does not see everything sees those
    that have a round of a run in scope."""
    return to.workers.listed(None if operator.sees_everything else operator.sees, after, limit)


def revoke(to: Coordinator, operator: Operator, *, worker: WorkerId) -> WorkerView:
    """Gives a worker no more rounds, permanently. A lease that it holds expires as if its heartbeats had stopped."""
    return to.workers.revoke(worker)


def poll(to: Coordinator, worker: WorkerRow, message: WorkerPoll) -> Lease | Wait | None:
    """The worker is available for a datacenter round. Held open until there is one, or until `hold_s` has passed.

    The instance that has a lease gets it again. A restart of the same installation gets a new lease at once; any
    other instance waits until the lease has ended.
    """
    return to.workers.poll(worker, message)


def waits_for(worker: WorkerRow, message: WorkerPoll) -> str:
    return "workers"


def is_process(worker: WorkerRow, message: WorkerPoll) -> str:
    return f"{worker.worker} {message.instance}"


def lease(to: Coordinator, worker: WorkerRow, message: WorkerPoll) -> Lease | None:
    return to.workers.lease(worker, message)


def poll_over(to: Coordinator, worker: WorkerRow, message: WorkerPoll) -> Wait:
    return to.workers.hold_over(worker, message)


def heartbeat(
    to: Coordinator, worker: WorkerRow, message: Heartbeat, *, run: RunId, round: RoundNumber
) -> LeaseRenewed:
    """Renews the lease for another `lease_s` seconds, and reports the progress of the training."""
    return to.workers.heartbeat(worker, run, round, message)


def lease_end(to: Coordinator, worker: WorkerRow, message: LeaseEnd, *, run: RunId, round: RoundNumber) -> Noted:
    """The worker returns the round, or reports that it cannot be trained."""
    to.workers.end_lease(worker, run, round, message)
    return Noted()


def admit_result(
    to: Coordinator, worker: WorkerRow, message: ResultReport, *, run: RunId, round: RoundNumber, attempt: Attempt
) -> int:
    return to.workers.results.limit(worker, run, round, attempt, message)


def result(
    to: Coordinator,
    worker: WorkerRow,
    message: ResultReport,
    body: Spool,
    *,
    run: RunId,
    round: RoundNumber,
    attempt: Attempt,
) -> ResultReceipt:
    """The worker's result: the complete next checkpoint, with its buffers, committed unchanged.

    The receipt confirms that the result is durable and is the model. The same bytes again get the same receipt; other
    bytes are refused (*duplicate*), and so is a result under a lease that has ended (*lease-lost*).
    """
    return to.workers.results.take(worker, run, round, attempt, message, body)


BESIDE = Beside(
    header=RESULT_HEADER,
    about="A ResultReport as JSON: the lease's fence, steps, examples, metrics.",
    missing=f'Send {RESULT_HEADER} with the lease\'s fence: {{"fence": 3, ...}}.',
)
_worker = partial(Entry, permission=Permission.WORKER, group="workers")

REGISTER = Entry(
    "POST",
    Route.REGISTER_WORKER,
    Direct(register),
    "Register a worker",
    permission=Permission.CERTIFIED,
    audited=Audited("worker.register", asks=("label",), makes=("worker",)),
    group="workers",
    operation="register_worker",
    created=True,
)
LIST = Entry(
    "GET", Route.WORKERS, Direct(listed), "List workers", permission=Permission.VIEWER, scoped=True, group="fleet"
)
REVOKE = Entry(
    "POST",
    Route.REVOKE_WORKER,
    Direct(revoke),
    "Revoke a worker",
    permission=Permission.OPERATOR,
    audited=Audited("worker.revoke", makes=("worker",)),
    group="fleet",
)
POLL = _worker(
    "POST",
    Route.LEASES,
    Held(poll, key=waits_for, peer=is_process, again=lease, expired=poll_over),
    "Poll for a datacenter round",
    operation="lease",
)
HEARTBEAT = _worker("POST", Route.HEARTBEAT, Direct(heartbeat), "Renew the lease")
RESULT = _worker(
    "PUT", Route.RESULT, Body(admit_result, result, beside=BESIDE), "Send the result", operation="put_result"
)
LEASE_END = _worker("POST", Route.LEASE_END, Direct(lease_end), "End the lease")
ENTRIES = (REGISTER, LIST, REVOKE, POLL, HEARTBEAT, RESULT, LEASE_END)
