"""The workers' desk: registration by operators, leases of datacenter rounds, heartbeats, results.

Which event a worker's request is, and what it is answered. Raises ``ProblemError`` for what the worker did wrong; lets
``StoreError`` and ``BlobError`` pass for what the machine could not do. It has never heard of torch or of HTTP.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar, cast

from client_sdk.protocol.devices import CheckpointRef, Wait
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import (
    CreateWorker,
    Heartbeat,
    Lease,
    LeaseEnd,
    LeaseKept,
    ResultReceipt,
    ResultReport,
    WorkerCreated,
    WorkerPoll,
    WorkerView,
)
from client_sdk.tensors import HEADER_LIMIT, TensorError, read_header
from coordinator.blobs import Spool
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.leasing import RENEWALS, fleet_is_back, is_restart, reason_against, reason_lost
from coordinator.engine.plan import Datacenter
from coordinator.engine.state import RunState
from coordinator.runtime import records, run_creation
from coordinator.runtime.core import Hub
from coordinator.runtime.run_log import RunLog
from coordinator.store.port import Transaction, WorkerRow

E = TypeVar("E")
_HELD_WAIT_S = (0.0, 1.0)
"""Window after a poll was held to its end: the worker may come back at once."""


class WorkerDesk(Hub):
    # ------------------------------------------------------------ what operators do

    def create_worker(self, request: CreateWorker) -> WorkerCreated:
        token = self._entropy(32).hex()
        row = WorkerRow(
            worker="w" + self._entropy(8).hex(),
            token_hash=_hash(token),
            label=request.label,
            created_at=self.clock.now(),
        )
        with self.store.transaction() as tx:
            tx.insert_worker(row)
        return WorkerCreated(worker=row.worker, token=token)

    def workers(self) -> list[WorkerView]:
        return [self._worker_view(row) for row in self.store.workers()]

    def revoke_worker(self, worker: str) -> WorkerView:
        """Its token is good no more. A lease that it holds ends as if it had fallen silent."""
        if self.store.worker(worker) is None:
            raise problem("unknown-worker", f"there is no worker {worker!r}")
        with self.store.transaction() as tx:
            tx.revoke_worker(worker, self.clock.now())
        row = self.store.worker(worker)
        if row is None:
            raise problem("unknown-worker", f"there is no worker {worker!r}")
        return self._worker_view(row)

    # ------------------------------------------------------------ what workers do

    def authenticate_worker(self, token: str) -> WorkerRow:
        row = self.store.worker_by_token(_hash(token))
        if row is None:
            raise problem("unauthenticated", "this worker token is not valid here; an operator registers workers")
        if row.revoked_at is not None:
            raise problem("unauthenticated", f"worker {row.worker} was revoked by an operator")
        return row

    def authenticate_peer(self, token: str) -> None:
        """A device's token, or a worker's."""
        try:
            self.fleet.authenticate(token)
        except ProblemError:
            if self.store.worker_by_token(_hash(token)) is None:
                raise
            self.authenticate_worker(token)

    def poll(self, worker: WorkerRow, poll: WorkerPoll) -> Lease | Wait | None:
        """A datacenter round for this worker, or why there can be none; None: it waits, and is woken for the next."""
        with self.store.transaction() as tx:
            tx.seen_worker(worker.worker, self.clock.now())
        return self.lease(worker, poll) or self._unfit_worker(poll)

    def lease(self, worker: WorkerRow, poll: WorkerPoll) -> Lease | None:
        """A round that this worker can take now; first of all one that it has."""
        logs = [log for log in list(self._logs.values()) if log.state.plan.datacenter and not log.state.over]
        states = [(log, log.catch_up()) for log in logs]
        for log, state in sorted(states, key=lambda found: not _ours(found[1], worker.worker, poll)):
            free = state.phase == "leasing" or _ours(state, worker.worker, poll)
            if free and _against(state, poll) is None:
                found = self._grant_lease(log, worker.worker, poll)
                if found is not None:
                    return found
        return None

    def hold_over_worker(self, worker: WorkerRow, poll: WorkerPoll) -> Wait:
        """The answer when a poll was held to its end."""
        refused = self._unfit_worker(poll)
        if refused is not None:
            return refused
        others = [
            f"round {state.round} of {state.run}, which is in the hands of another process with this worker's token"
            for state in self._states()
            if _holds(state, worker.worker) and not _ours(state, worker.worker, poll)
        ]
        if others:
            reason = f"this process waits for the end of the lease of {' and of '.join(others)}"
            return Wait(reason=f"{reason}: give each agent a worker of its own", min_s=0.0, max_s=_HELD_WAIT_S[1])
        told = [
            f"run {state.run} is {state.phase} round {state.round}"
            for state in self._states()
            if not state.over and _against(state, poll) is None
        ]
        return Wait(
            reason=f"no datacenter round is open: {'; '.join(told) or 'no run asks for one'}",
            min_s=_HELD_WAIT_S[0],
            max_s=_HELD_WAIT_S[1],
        )

    def heartbeat(self, worker: WorkerRow, run: str, round: int, message: Heartbeat) -> LeaseKept:
        effects = self._submit(
            run,
            lambda at: ev.Heartbeat(
                at=at,
                round=round,
                attempt=message.attempt,
                fence=message.fence,
                worker=worker.worker,
                step=message.step,
                metrics=dict(message.metrics),
            ),
        )
        return LeaseKept(ends_in_s=max(0.0, _only(effects, fx.Kept).ends_at - self.clock.now()))

    def end_lease(self, worker: WorkerRow, run: str, round: int, message: LeaseEnd) -> None:
        self._submit(
            run,
            lambda at: ev.LeaseEnded(
                at=at,
                round=round,
                attempt=message.attempt,
                fence=message.fence,
                worker=worker.worker,
                failed=message.failed,
                reason=message.reason,
            ),
        )

    def result_limit(self, worker: WorkerRow, run: str, round: int, attempt: int, report: ResultReport) -> int:
        """The longest body worth reading; ProblemError when no body can become the model.

        The body of a result that was taken is read again: the same bytes get the same receipt.
        """
        state = self._log(run).catch_up()
        against = reason_lost(state, round, attempt, report.fence, worker.worker)
        if against is not None and self._taken_result(worker.worker, run, round, report.fence) is None:
            self._note_refused_result(worker.worker, run, round, against)
            raise problem("lease-lost", against)
        return min(self.settings.max_checkpoint_bytes, self.blobs.size(state.checkpoint) + HEADER_LIMIT)

    def result(
        self, worker: WorkerRow, run: str, round: int, attempt: int, report: ResultReport, spool: Spool
    ) -> ResultReceipt:
        """Validates a spooled checkpoint, makes it durable, and has it committed."""
        log = self._log(run)
        before = self._result_receipt(worker.worker, run, round, report.fence, spool.digest)
        if before is not None:
            return before
        self._check_result(spool, log.state.checkpoint)
        size, digest = spool.size, spool.commit()

        def delivered(tx: Transaction, state: RunState, at: float) -> ev.Delivered | None:
            if state.round > round and state.checkpoint == digest:
                return None  # the same request, sent twice at a time: the other was first
            if not self.blobs.has(digest):
                raise problem("busy", "the result's bytes were removed again: send them once more", retry_after_s=1)
            return ev.Delivered(
                at=at,
                round=round,
                attempt=attempt,
                fence=report.fence,
                worker=worker.worker,
                digest=digest,
                bytes=size,
                steps=report.steps,
                examples=report.examples,
                metrics=dict(report.metrics),
                optimizer=state.optimizer,
                waiting=None if state.away_since is None else len(self.fleet.eligible(state, tx.waiting(at))),
            )

        effects = log.submit(delivered)
        taken = next((effect for effect in effects if isinstance(effect, fx.Taken)), None)
        if taken is not None:
            return ResultReceipt(
                run=run, round=round, attempt=attempt, worker=worker.worker, digest=digest, version=taken.version
            )
        ended = self._result_receipt(worker.worker, run, round, report.fence, digest)
        if ended is not None:
            return ended
        refused = next((effect for effect in effects if isinstance(effect, fx.Refused)), None)
        if refused is None:
            raise problem("lease-lost", f"round {round} is over")
        raise problem(refused.kind, refused.reason)

    # ------------------------------------------------------------ inside

    def _grant_lease(self, log: RunLog, worker: str, poll: WorkerPoll) -> Lease | None:
        """Asks for the lease. Counts who waits in the same transaction: where it is enough, the fleet has its turn."""

        def make(tx: Transaction, state: RunState, now: float) -> ev.Event | None:
            waiting = len(self.fleet.eligible(state, tx.waiting(now))) if state.phase == "leasing" else state.waiting
            if fleet_is_back(state, now, waiting):
                return ev.FleetReturned(at=now, round=state.round, waiting=waiting)
            if state.phase != "leasing" and not _ours(state, worker, poll):
                return None
            return ev.Leased(
                at=now,
                round=state.round,
                attempt=state.attempt + 1,
                fence=state.fence + 1,
                worker=worker,
                instance=poll.instance,
                waiting=waiting,
                installation=poll.installation,
            )

        granted = [effect for effect in log.submit(make) if isinstance(effect, fx.Granted)]
        section = log.state.plan.datacenter
        if not granted or section is None:
            return None
        return self._lease_of(log, worker, granted[0], section)

    def _lease_of(self, log: RunLog, worker: str, granted: fx.Granted, section: Datacenter) -> Lease:
        size = self.blobs.size(granted.checkpoint)
        return Lease(
            run=log.run,
            round=granted.round,
            attempt=granted.attempt,
            fence=granted.fence,
            worker=worker,
            checkpoint=CheckpointRef(version=granted.version, digest=granted.checkpoint, bytes=size),
            plan_digest=log.row.plan_digest,
            task=log.state.plan.task,
            datacenter=section.work,
            lease_s=section.lease_s,
            heartbeat_s=section.lease_s / RENEWALS,
            within_s=max(0.0, min(granted.give_up_at - self.clock.now(), section.max_s)),
            max_result_bytes=min(self.settings.max_checkpoint_bytes, size + HEADER_LIMIT),
        )

    def _unfit_worker(self, poll: WorkerPoll) -> Wait | None:
        """Why this worker fits no running run that wants a datacenter; None: one may want it, or there is none."""
        asking = [state for state in self._states() if state.plan.datacenter is not None and state.status == "running"]
        reasons = {state.run: _against(state, poll) for state in asking}
        if not reasons or None in reasons.values():
            return None
        return self.fleet.pace("; ".join(f"run {run}: {reason}" for run, reason in reasons.items()))

    def _check_result(self, spool: Spool, parent: str) -> None:
        """invalid-update unless the file is a canonical checkpoint of the run's model, finite."""
        try:
            run_creation.check_checkpoint(spool.path)
            read_header(self.blobs.path(parent)).manifest.require(read_header(spool.path).manifest, "the result")
        except TensorError as error:
            raise problem("invalid-update", str(error)) from None
        except ProblemError as error:
            raise problem("invalid-update", str(error)) from None

    def _taken_result(self, worker: str, run: str, round: int, fence: int) -> tuple[str, int, int] | None:
        """(digest, version, attempt) of the result that was committed under this fence in a round that has ended."""
        row = self.store.round(run, round)
        if row is None or row.kind != "datacenter" or row.status != "committed":
            return None
        body = cast("dict[str, Any]", row.body)
        if (body["lease"]["worker"], body["lease"]["fence"]) != (worker, fence):
            return None
        return body["digest"], body["version"], row.attempt

    def _result_receipt(self, worker: str, run: str, round: int, fence: int, digest: str) -> ResultReceipt | None:
        """The receipt of these bytes where they have become the model; *duplicate* where other bytes have."""
        taken = self._taken_result(worker, run, round, fence)
        if taken is None:
            return None
        known, version, attempt = taken
        if known != digest:
            raise problem("duplicate", f"another result was taken under this lease of round {round}; the first stands")
        return ResultReceipt(run=run, round=round, attempt=attempt, worker=worker, digest=digest, version=version)

    def _note_refused_result(self, worker: str, run: str, round: int, reason: str) -> None:
        """Records a refused result whose body was not read, once for each worker and round."""
        known = any(row.device == worker and row.digest is None for row in self.store.refusals(run, round))
        if known or not 1 <= round <= self._log(run).state.round:
            return
        refusal = fx.RecordRefusal(round=round, device=worker, digest=None, kind="lease-lost", reason=reason)
        with self.store.transaction(run) as tx:
            records.write(tx, run, [(self.clock.now(), refusal)])

    def _worker_view(self, row: WorkerRow) -> WorkerView:
        held = [] if row.revoked_at else [state for state in self._states() if _holds(state, row.worker)]
        return WorkerView(
            worker=row.worker,
            label=row.label,
            created_at=row.created_at,
            last_seen_at=row.last_seen_at,
            revoked_at=row.revoked_at,
            state="revoked" if row.revoked_at is not None else "leased" if held else "idle",
            run=held[0].run if held else None,
            round=held[0].round if held else None,
        )


def _holds(state: RunState, worker: str) -> bool:
    return state.phase == "training" and state.lease is not None and state.lease.worker == worker


def _ours(state: RunState, worker: str, poll: WorkerPoll) -> bool:
    """Whether the worker has the round, and whoever polls is the very process, or that one started again."""
    lease = state.lease
    if lease is None or not _holds(state, worker):
        return False
    return lease.instance == poll.instance or is_restart(lease, poll.installation)


def _against(state: RunState, poll: WorkerPoll) -> str | None:
    return reason_against(state.plan, learners=poll.learners, data=poll.data, nproc=poll.nproc)


def _only(effects: list[fx.Effect], kind: type[E]) -> E:
    return next(effect for effect in effects if isinstance(effect, kind))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
