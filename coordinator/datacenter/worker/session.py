"""The session of a datacenter's worker, as a generator of actions; it may crash after any of them.

This file decides and performs no I/O. Its driver, the HTTP worker or the fault explorer, performs the actions of
``worker.actions`` and sends the replies back.

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
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Literal

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import (
    Action,
    Answered,
    Failed,
    Fetch,
    Fetched,
    Reply,
    RequestRefused,
    Send,
    Sleep,
    Unreachable,
)
from client_sdk.device.record import Record
from client_sdk.device.requests import HELD_S, Pacing, is_about_credentials, is_from_coordinator, short
from client_sdk.identity import DeviceKey, Entropy, Signer
from client_sdk.protocol.devices import Noted, Wait
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem, ProblemError
from client_sdk.protocol.workers import (
    Heartbeat,
    Lease,
    LeaseEnd,
    LeaseRenewed,
    ResultReceipt,
    ResultReport,
    WorkerPoll,
)
from coordinator.datacenter.worker.actions import (
    Attend,
    Begin,
    Ended,
    Finished,
    Going,
    Halt,
    Job,
    TrainLease,
    Unable,
    WorkerAction,
    WorkerReply,
)
from coordinator.datacenter.worker.enrolling import WorkerEnrolling, as_worker

WorkerSession = Generator[WorkerAction, WorkerReply, int]
"""Returns the number of leases that ended."""


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
    if record is None or record == Record():
        record = Record(key_seed="" if signer is not None else DeviceKey.create(entropy).seed.hex())
    elif signer is None and not record.key_seed:
        raise ValueError("This worker's key is stored outside its record: give the signer that holds it.")
    if record.coordinator != coordinator:
        record = record.changed(coordinator=coordinator, registered=None)
    pacing = pacing or Pacing()
    known = WorkerEnrolling(record, enrolment_token, label, pacing, at)
    return _WorkerSession(known, offer, pacing).life(leases)


class _WorkerSession:
    def __init__(self, known: WorkerEnrolling, offer: Callable[[], WorkerPoll], pacing: Pacing) -> None:
        self.known = known
        self.offer = offer
        self.pacing = pacing
        self.now = known.now
        self.going = Going(0, {}, 0.0)
        self._there_at = float("-inf")  # when the coordinator was there last

    def life(self, leases: int | None) -> WorkerSession:
        ended = 0
        yield from self._be_known(self.known.become_known())
        while leases is None or ended < leases:
            lease = yield from self._poll()
            end = yield from self._take(lease)
            yield end
            ended += 1
            if end.result in ("failed", "refused", "given-back") and ended != leases:
                low, high = self.pacing.withdrawn_s
                yield Sleep(min_s=low, max_s=high, reason="Pauses before it asks for another round.", trouble=True)
        return ended

    def _poll(self) -> Generator[WorkerAction, WorkerReply, Lease]:
        while True:
            self.known.now = self.now
            yield from self._be_known(self.known.renew_in_time())
            asked_at = self.now
            poll = self.offer()
            answer = yield from self._ask(self._send("POST", Route.LEASES, (Lease, Wait), poll), polling=True)
            if isinstance(answer, Lease):
                return answer
            if isinstance(answer, Problem):
                raise ProblemError(answer)
            if not isinstance(answer, Wait):
                raise TypeError(f"the driver answered a poll with {answer!r}")
            low, high = answer.min_s, max(answer.min_s, answer.max_s)
            if self.now - asked_at < 1.0:
                low, high = max(low, self.pacing.soon_s[0]), max(high, self.pacing.soon_s[1])
            if high > 0:
                yield Sleep(min_s=low, max_s=high, reason=answer.reason)

    # ------------------------------------------------------------ one lease

    def _take(self, lease: Lease) -> Generator[WorkerAction, WorkerReply, Ended]:
        due_at = self.now + lease.within_s
        self.going = Going(0, {}, self.now)
        wrong = failures = 0
        while True:
            reply = yield from self._while_leased(lease, Fetch(checkpoint=lease.checkpoint))
            if isinstance(reply, Fetched):
                break
            if isinstance(reply, str):
                return Ended(lease=lease, result="lost", reason=reply)
            if isinstance(reply, Failed):
                return (yield from self._give_back(lease, "given-back", reply.reason))
            failures += 1
            if isinstance(reply, RequestRefused):
                if is_about_credentials(reply.problem):
                    yield from self._regain(reply, failures - 1)
                    continue
                if reply.problem.advice == "stop":
                    raise ProblemError(reply.problem)
                wrong += reply.problem.kind == "digest-mismatch"
                final = reply.problem.advice == "drop" and reply.problem.is_ours
                if wrong >= 2 or final:
                    reason = f"The checkpoint cannot be fetched. {reply.problem}"
                    return (yield from self._give_back(lease, "given-back", reason))
            lost = yield from self._pause(lease, reply, failures)
            if lost is not None:
                return Ended(lease=lease, result="lost", reason=lost)
        trained = yield from self._while_leased(lease, TrainLease(lease=lease, due_at=due_at))
        if isinstance(trained, str):
            return Ended(lease=lease, result="lost", reason=trained)
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

    def _while_leased(
        self, lease: Lease, job: Job, *, to_the_end: bool = False
    ) -> Generator[WorkerAction, WorkerReply, WorkerReply | str]:
        """The job's reply, or why the lease is lost. ``to_the_end``: wait for the reply also after the lease is
        lost."""
        lost: str | None = None
        yield Begin(job)
        while True:
            reply = self._noted((yield Attend(lease.heartbeat_s)))
            if not isinstance(reply, Going):
                return reply
            if isinstance(job, TrainLease):
                self.going = reply
            if lost is None:
                lost = yield from self._heartbeat(lease)
            if lost is not None and not to_the_end:
                yield Halt(lost)
                return lost

    def _heartbeat(self, lease: Lease) -> Generator[WorkerAction, WorkerReply, str | None]:
        """Send one heartbeat. Returns why the lease is lost, where the coordinator says so; no answer is not a loss."""
        message = Heartbeat(
            attempt=lease.attempt, fence=lease.fence, step=self.going.step, metrics=dict(self.going.metrics)
        )
        reply = self._noted((yield self._of_round("POST", Route.HEARTBEAT, lease, LeaseRenewed, message)))
        if isinstance(reply, RequestRefused) and is_about_credentials(reply.problem):
            yield from self._regain(reply, 0)
        elif isinstance(reply, RequestRefused) and reply.problem.is_ours and reply.problem.advice != "retry":
            return str(reply.problem)
        return None

    def _pause(
        self, lease: Lease, reply: WorkerReply | str, failures: int
    ) -> Generator[WorkerAction, WorkerReply, str | None]:
        """Wait before the next attempt, after a heartbeat. Returns why the lease is lost, or None."""
        lost = yield from self._heartbeat(lease)
        if lost is None:
            low, high = self._backoff(reply, failures)
            most = lease.heartbeat_s / 2
            yield Sleep(min_s=min(low, most), max_s=min(high, most), reason=_why(reply), trouble=True)
        return lost

    def _deliver(self, lease: Lease, trained: Finished) -> Generator[WorkerAction, WorkerReply, Ended]:
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
        failures = 0
        while True:
            reply = yield from self._while_leased(lease, send, to_the_end=True)
            if isinstance(reply, Answered) and isinstance(reply.message, ResultReceipt):
                if reply.message.digest == trained.digest:
                    return Ended(lease=lease, result="committed", version=reply.message.version)
                return Ended(lease=lease, result="refused", reason="The receipt is for other bytes.")
            if isinstance(reply, RequestRefused):
                refused = reply.problem
                if is_about_credentials(refused):
                    yield from self._regain(reply, failures)
                    failures += 1
                    continue
                if refused.advice == "stop":
                    raise ProblemError(refused)
                if refused.kind == "lease-lost":
                    return Ended(lease=lease, result="lost", reason=str(refused))
                if refused.advice == "drop" and refused.is_ours:
                    return (yield from self._give_back(lease, "refused", str(refused)))
            elif not isinstance(reply, Unreachable):
                raise TypeError(f"the driver answered a result with {reply!r}")
            failures += 1
            low, high = self._backoff(reply, failures)
            most = lease.heartbeat_s / 2
            yield Sleep(min_s=min(low, most), max_s=min(high, most), reason=_why(reply), trouble=True)
            yield from self._heartbeat(lease)

    def _give_back(
        self, lease: Lease, result: Literal["given-back", "failed", "refused"], reason: str
    ) -> Generator[WorkerAction, WorkerReply, Ended]:
        reason = short(reason)
        message = LeaseEnd(attempt=lease.attempt, fence=lease.fence, failed=result != "given-back", reason=reason)
        yield from self._ask(self._of_round("POST", Route.LEASE_END, lease, Noted, message))
        return Ended(lease=lease, result=result, reason=reason)

    # ------------------------------------------------------------ asking

    def _ask(self, send: Send, *, polling: bool = False) -> Generator[WorkerAction, WorkerReply, Message | Problem]:
        """The answer, or the final problem. Without an answer, and on transient problems, it retries with backoff."""
        failures = regained = 0
        while True:
            reply = self._noted((yield send))
            if isinstance(reply, Answered):
                return reply.message
            if isinstance(reply, RequestRefused):
                if is_about_credentials(reply.problem):
                    yield from self._regain(reply, regained)
                    regained += 1
                    continue
                if reply.problem.advice == "stop":
                    raise ProblemError(reply.problem)
                passing = polling and reply.problem.status in (404, 409)
                if reply.problem.advice == "drop" and reply.problem.is_ours and not passing:
                    return reply.problem
            elif not isinstance(reply, Unreachable):
                raise TypeError(f"the driver answered {send.method} {send.url} with {reply!r}")
            elif reply.held_s >= HELD_S:
                failures = 0  # the connection broke: the coordinator was there, and is about to be again
            failures += 1
            low, high = self._backoff(reply, failures)
            yield Sleep(min_s=low, max_s=high, reason=_why(reply), trouble=True)

    def _be_known(self, steps: Generator[Action, Reply, None]) -> Generator[WorkerAction, WorkerReply, None]:
        yield from as_worker(steps)
        self.now = max(self.now, self.known.now)

    def _regain(self, reply: RequestRefused, times: int) -> Generator[WorkerAction, WorkerReply, None]:
        """Become known again; ProblemError where that is impossible, or was tried ``times`` times, too often."""
        self.known.now = self.now
        yield from self._be_known(self.known.regain(reply, times))

    def _noted(self, reply: WorkerReply) -> WorkerReply:
        """Note the reply's time, and whether the coordinator was there, and return the reply."""
        if reply is not None:
            self.now = reply.at
            if is_from_coordinator(reply):
                self._there_at = reply.at
        return reply

    def _send(self, method: str, route: Route, answers: tuple[type[Message], ...], message: Message) -> Send:
        return Send(method=method, route=route, answers=answers, message=message)

    def _of_round(self, method: str, route: Route, lease: Lease, answer: type[Message], message: Message) -> Send:
        path: dict[str, str | int] = {"run": lease.run, "round": lease.round}
        return Send(method=method, route=route, answers=(answer,), path=path, message=message)

    def _backoff(self, reply: WorkerReply | str, failures: int) -> tuple[float, float]:
        """The window before the next try. A coordinator that was there a short while ago is thought to restart, as
        devices think (``client_sdk.device.requests``)."""
        silent_s = self.now - self._there_at
        match reply:
            case RequestRefused(problem=refused):
                return self.pacing.backoff(
                    failures, refused.retry_after_s, silent_s=float("inf") if refused.is_ours else silent_s
                )
            case Unreachable(held_s=held_s) if held_s >= HELD_S:
                return self.pacing.after_break_s
            case _:
                return self.pacing.backoff(failures, silent_s=silent_s)


def _why(reply: WorkerReply | str) -> str:
    if isinstance(reply, RequestRefused):
        return str(reply.problem)
    return reply.reason if isinstance(reply, Unreachable) else "No answer."
