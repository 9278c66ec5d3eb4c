"""The session of a datacenter's worker, as a generator of actions; it may crash after any of them.

It is a device's session with another job: leases in place of rounds. Becoming known, asking, and waiting for work are a
device's (``client_sdk.device.enrolling``, ``requests``). This file decides and performs no I/O. Its driver performs the
actions and sends the replies back.

::

    becoming known:  certified by the authority, registered at the coordinator (``enrolling``) -> polling
    polling:     Send(poll)   Wait -> Sleep -> polling
                              Lease -> fetching -> training -> delivering -> Ended -> polling
    fetching, training:  the job runs, a heartbeat every heartbeat_s; lease lost -> Halt -> Ended -> polling
    delivering:  Send(result) again and again until a receipt or a final refusal
    cannot:      Send(lease end) -> Ended -> Sleep -> polling

A worker's record holds its key and its certificate, and no round: a crash loses the lease, which expires or ends with
the next poll of the same worker, and the trainer finds the saved steps of the training again. Where the coordinator
does not know its key, or its certificate has expired, the worker becomes known again and keeps its lease.

The drivers of ``work`` are the HTTP worker and the fault explorer. Fetching, training and sending a
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

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from client_sdk.credentials.certificate import HolderClass
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import Answered, Failed, Fetch, Reply, RequestRefused, Send, SharedAction, Sleep
from client_sdk.device.enrolling import Enrolling, begun
from client_sdk.device.record import Record
from client_sdk.device.requests import Pacing, Timed, is_about_credentials, short, why_not
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.devices import CheckIn, Noted, Registered, Wait
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem
from client_sdk.protocol.workers import (
    Heartbeat,
    Lease,
    LeaseEnd,
    LeaseRenewed,
    ResultReceipt,
    ResultReport,
    WorkerPoll,
    WorkerRegistered,
    WorkerRegistration,
)


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


T = TypeVar("T")
Steps = Generator[WorkerAction, WorkerReply, T]
WorkerSession = Steps[int]
"""Returns the number of leases that ended."""
NEW = "This worker has no certificate; start it with --token-file FILE ('quorate authority token --worker' makes one)."


def work(
    record: Record | None,
    offer: Callable[[], WorkerPoll],
    *,
    coordinator: str,
    enrolment_token: EnrolmentToken | None = None,
    label: str = "",
    leases: int | None = None,
    signer: Signer | None = None,
    entropy: Entropy = os.urandom,
    pacing: Pacing | None = None,
    at: float = 0.0,
) -> WorkerSession:
    """A worker's session with one coordinator, from its saved ``record`` (None: a new worker).

    ``coordinator``: its URL; a record of another one registers there. ``offer`` is called before each poll and returns
    this worker's capabilities. Its ``instance`` is new each time the process starts. ``enrolment_token``: needed until
    there is a certificate, and when one has expired. ``signer`` holds the key where the record does not. Ends after
    ``leases`` leases (None: never). ``at``: the time at the start, as in ``client_sdk.device.session.participate``.

    Raises ProblemError where the authority or the coordinator rejects this worker for good (wrong protocol version,
    revoked key). ValueError where the key is missing.
    """
    session = _WorkerSession(begun(record, signer, entropy), CheckIn, enrolment_token, label, pacing or Pacing(), at)
    return session.life(coordinator, offer, leases)


class _LeaseLost(Exception):
    """The lease went to another worker, or its round ended: one sentence."""


class _WorkerSession(Enrolling):
    """The steps of leases."""

    holder: HolderClass = "worker"
    new = NEW
    progress = JobProgress(0, {}, 0.0)
    """The progress of the training under way."""

    def registration(self) -> Send:
        message = WorkerRegistration(certificate=self.record.certificate, label=self.label)
        return Send(method="POST", route=Route.REGISTER_WORKER, answers=(WorkerRegistered,), message=message)

    def registered(self, answer: Message | Problem) -> Registered | None:
        return Registered(device=answer.worker, examples_cap=0) if isinstance(answer, WorkerRegistered) else None

    def life(self, coordinator: str, poll: Callable[[], WorkerPoll], leases: int | None) -> WorkerSession:
        ended = 0
        yield from self.become_known(coordinator)
        while leases is None or ended < leases:
            lease = yield from self.wait_for_work(
                Lease, lambda: Send(method="POST", route=Route.LEASES, answers=(Lease, Wait), message=poll())
            )
            end = yield from self._work_on(lease)
            yield end
            ended += 1
            if end.result in ("failed", "refused", "given-back") and ended != leases:
                low, high = self.pacing.withdrawn_s
                yield Sleep(min_s=low, max_s=high, reason="Pauses before it asks for another round.", trouble=True)
        return ended

    # ------------------------------------------------------------ one lease

    def _work_on(self, lease: Lease) -> Steps[Ended]:
        due_at = self.now + lease.within_s
        self.progress = JobProgress(0, {}, self.now)
        try:
            reason = yield from self._fetch(lease)
            if reason is not None:
                return (yield from self._give_back(lease, "given-back", reason))
            trained = yield from self._while_leased(lease, TrainLease(lease=lease, due_at=due_at))
        except _LeaseLost as lost:
            return Ended(lease=lease, result="lost", reason=str(lost))
        if isinstance(trained, Failed):
            return (yield from self._give_back(lease, "failed", trained.reason))
        if isinstance(trained, Unable):
            return (yield from self._give_back(lease, "given-back", trained.reason))
        if not isinstance(trained, Finished):
            raise TypeError(f"the driver answered TrainLease with {trained!r}")
        if trained.bytes > lease.max_result_bytes:
            reason = f"The result has {trained.bytes} bytes; the coordinator takes {lease.max_result_bytes}."
            return (yield from self._give_back(lease, "failed", reason))
        return (yield from self._deliver(lease, trained))

    def _fetch(self, lease: Lease) -> Steps[str | None]:
        """Why the checkpoint cannot be fetched; None when it is available."""
        fetch = Fetch(checkpoint=lease.checkpoint)

        def rest(reply: Timed | None, failures: int) -> Steps[None]:
            lost = yield from self._heartbeat(lease)
            if lost is not None:
                raise _LeaseLost(lost)
            yield self._wait_leased(lease, reply, failures)

        found = yield from self.repeat(fetch, lambda: self._while_leased(lease, fetch), rest)
        if isinstance(found, Answered):
            raise TypeError(f"the driver answered {fetch!r} with {found!r}")
        return why_not(found)

    def _while_leased(self, lease: Lease, job: Job, *, to_the_end: bool = False) -> Steps[WorkerReply]:
        """The job's reply. _LeaseLost, unless ``to_the_end``: then the reply is waited for also after the lease is
        lost."""
        lost: str | None = None
        yield Begin(job)
        while True:
            reply = self.observe((yield AwaitJob(lease.heartbeat_s)))
            if not isinstance(reply, JobProgress):
                return reply
            if isinstance(job, TrainLease):
                self.progress = reply
            if lost is None:
                lost = yield from self._heartbeat(lease)
            if lost is not None and not to_the_end:
                yield Halt(lost)
                raise _LeaseLost(lost)

    def _heartbeat(self, lease: Lease) -> Steps[str | None]:
        """Send one heartbeat. Returns why the lease is lost, where the coordinator says so; no answer is not a loss."""
        message = Heartbeat(
            attempt=lease.attempt, fence=lease.fence, step=self.progress.step, metrics=dict(self.progress.metrics)
        )
        reply = self.observe((yield _of_round(Route.HEARTBEAT, lease, LeaseRenewed, message)))
        if isinstance(reply, RequestRefused) and is_about_credentials(reply.problem):
            yield from self.regain(reply, 0)
        elif isinstance(reply, RequestRefused) and reply.problem.is_ours and reply.problem.advice != "retry":
            return str(reply.problem)
        return None

    def _wait_leased(self, lease: Lease, reply: Timed | None, failures: int) -> Sleep:
        """The sleep before the next try, short enough for the heartbeats of the lease."""
        sleep, most = self.wait_after(reply, failures), lease.heartbeat_s / 2
        return replace(sleep, min_s=min(sleep.min_s, most), max_s=min(sleep.max_s, most))

    def _deliver(self, lease: Lease, trained: Finished) -> Steps[Ended]:
        """Send the result until it is answered: that answer decides, not those of the heartbeats."""
        report = ResultReport(
            fence=lease.fence,
            parent=trained.parent,
            steps=trained.steps,
            examples=trained.examples,
            metrics=dict(trained.metrics),
        )
        send = Send(
            method="PUT",
            route=Route.RESULT,
            answers=(ResultReceipt,),
            path={"run": lease.run, "round": lease.round, "attempt": lease.attempt},
            message=report,
            update=trained.digest,
        )

        def rest(reply: Timed | None, failures: int) -> Steps[None]:
            yield self._wait_leased(lease, reply, failures)
            yield from self._heartbeat(lease)

        found = yield from self.repeat(send, lambda: self._while_leased(lease, send, to_the_end=True), rest)
        if isinstance(found, RequestRefused):
            if found.problem.kind == "lease-lost":
                return Ended(lease=lease, result="lost", reason=str(found.problem))
            return (yield from self._give_back(lease, "refused", str(found.problem)))
        if not isinstance(found, Answered) or not isinstance(found.message, ResultReceipt):
            raise TypeError(f"the driver answered a result with {found!r}")
        if found.message.digest == trained.digest:
            return Ended(lease=lease, result="committed", version=found.message.version)
        return Ended(lease=lease, result="refused", reason="The receipt is for other bytes.")

    def _give_back(self, lease: Lease, result: Literal["given-back", "failed", "refused"], reason: str) -> Steps[Ended]:
        reason = short(reason)
        message = LeaseEnd(attempt=lease.attempt, fence=lease.fence, failed=result != "given-back", reason=reason)
        yield from self.ask(_of_round(Route.LEASE_END, lease, Noted, message))
        return Ended(lease=lease, result=result, reason=reason)


def _of_round(route: Route, lease: Lease, answer: type[Message], message: Message) -> Send:
    path: dict[str, str | int] = {"run": lease.run, "round": lease.round}
    return Send(method="POST", route=route, answers=(answer,), path=path, message=message)
