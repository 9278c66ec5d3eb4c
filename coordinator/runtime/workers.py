"""Answers the requests of workers: leases of datacenter rounds, heartbeats, results; and those of operators who list
and revoke workers.

Translates a request to an event, and the event's effects to the answer. Raises ``ProblemError`` for an error of the
worker; ``StoreError`` and ``BlobError`` pass through where the database or the disk failed.

A worker that starts again is known by its folder: its agent draws a name once (``installation``) and sends it in every
poll. While a lease lives, only the same process, or another one of the same installation (under a higher fence), is
granted it. Without this, two agents of one worker would take each other's rounds for ever; an address says nothing,
since agents share one and move.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, cast

from client_sdk.protocol.devices import CheckpointRef, Wait
from client_sdk.protocol.names import Page, copied
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import (
    Heartbeat,
    Lease,
    LeaseEnd,
    LeaseRenewed,
    ResultReceipt,
    ResultReport,
    WorkerPoll,
    WorkerView,
)
from client_sdk.tensors import SHORT_HEADER, TensorError, canonical_digest, header_limit, read_header
from coordinator.blobs import Spool
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.event_fields import Evidence
from coordinator.engine.phases.leasing import fleet_is_back, is_restart, reason_against
from coordinator.engine.phases.training import RENEWALS, reason_lost
from coordinator.engine.plan import Datacenter
from coordinator.engine.state import RunState
from coordinator.runtime import records, run_creation
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.identities import Identities
from coordinator.runtime.run_log import RunLog
from coordinator.store.paging import page_of
from coordinator.store.port import Transaction, WorkerRow


class WorkerResults:
    """Results of datacenter rounds: the limit of a body before it is read, and the checkpoint that is made of it."""

    def __init__(self, core: Core, fleet: Fleet) -> None:
        self._core = core
        self._fleet = fleet

    def limit(self, worker: WorkerRow, run: str, round: int, attempt: int, report: ResultReport) -> int:
        """Returns the longest accepted body in bytes. ProblemError where no body can become the model.

        The body of a committed result is read again: the same bytes get the same receipt.
        """
        state = self._core.log(run).catch_up()
        against = reason_lost(state, round, attempt, report.fence, worker.worker)
        if against is not None and self._taken_result(worker.worker, run, round, report.fence) is None:
            self._note_refused_result(worker.worker, run, round, against)
            raise problem("lease-lost", against)
        return min(self._core.settings.max_checkpoint_bytes, self._core.blobs.size(state.checkpoint) + SHORT_HEADER)

    def take(
        self, worker: WorkerRow, run: str, round: int, attempt: int, report: ResultReport, spool: Spool
    ) -> ResultReceipt:
        """Validates a spooled checkpoint, makes it durable, and commits it."""
        log = self._core.log(run)
        before = self._result_receipt(worker.worker, run, round, report.fence, spool.digest)
        if before is not None:
            return before
        if round == log.state.round_number and report.parent not in ("", log.state.checkpoint):
            started, wanted = report.parent[:12], log.state.checkpoint[:12]
            raise problem("invalid-update", f"it was trained from {started}, and the round is one from {wanted}")
        self._check_result(spool, log.state.checkpoint)
        tensors = "" if log.state.plan.secure is None else canonical_digest(spool.handle)
        size, digest = spool.size, spool.commit()

        def delivered(tx: Transaction, state: RunState, at: float) -> ev.Delivered | None:
            if state.round_number > round and state.checkpoint == digest:
                return None  # the same request was sent twice at a time: the other was first
            if not self._core.blobs.has(digest):
                raise problem("busy", "the result's bytes were removed again: send them once more", retry_after_s=1)
            return copied(
                ev.Delivered,
                report,
                at=at,
                round=round,
                attempt=attempt,
                worker=worker.worker,
                digest=digest,
                bytes=size,
                metrics=dict(report.metrics),
                tensors=tensors,
                evidence=Evidence(parent=report.parent),
                waiting=None if state.fallback.away_since is None else len(self._fleet.waiting(tx, state, at)),
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
        if refused is None:  # another worker's result had the same bytes
            self._note_refused_result(worker.worker, run, round, f"round {round} is over")
            raise problem("lease-lost", f"round {round} is over")
        raise problem(refused.kind, refused.reason)

    def _check_result(self, spool: Spool, parent: str) -> None:
        """ProblemError *invalid-update* unless the file is a canonical, finite checkpoint of the run's model."""
        try:
            with self._core.blobs.open(parent) as file:
                wanted = read_header(file).manifest
            found = run_creation.check_checkpoint(spool.handle, header_limit(wanted))
            wanted.require(found.manifest, "the result")
        except TensorError as error:
            raise problem("invalid-update", str(error)) from None
        except ProblemError as error:
            raise problem("invalid-update", str(error)) from None

    def _taken_result(self, worker: str, run: str, round: int, fence: int) -> tuple[str, int, int] | None:
        """Returns (digest, version, attempt) of the result that was committed under this fence in a round that has
        ended."""
        row = self._core.store.round(run, round)
        if row is None or row.kind != "datacenter" or row.status != "committed":
            return None
        body = cast("dict[str, Any]", row.body)
        if (body["lease"]["worker"], body["lease"]["fence"]) != (worker, fence):
            return None
        return body["digest"], body["version"], row.attempt

    def _result_receipt(self, worker: str, run: str, round: int, fence: int, digest: str) -> ResultReceipt | None:
        """Returns the receipt of these bytes where they are the model; ProblemError *duplicate* where other bytes
        are."""
        taken = self._taken_result(worker, run, round, fence)
        if taken is None:
            return None
        known, version, attempt = taken
        if known != digest:
            raise problem(
                "duplicate", f"another result of this lease of round {round} was committed; the first one counts"
            )
        return ResultReceipt(run=run, round=round, attempt=attempt, worker=worker, digest=digest, version=version)

    def _note_refused_result(self, worker: str, run: str, round: int, reason: str) -> None:
        """Records a refused result whose body was not read, once for each worker and round."""
        known = any(row.digest is None for row in self._core.store.refusals_of(run, round, worker))
        if known or not 1 <= round <= self._core.log(run).state.round_number:
            return
        refusal = fx.RecordRefusal(round=round, device=worker, digest=None, kind="lease-lost", reason=reason)
        with self._core.store.transaction(run) as tx:
            records.write(tx, run, [(self._core.clock.now(), refusal)])


E = TypeVar("E")
_HELD_WAIT_S = (0.0, 1.0)
"""Seconds until the next poll after a hold has expired: the worker may poll at once."""


class WorkerRequests:
    def __init__(self, core: Core, fleet: Fleet, identities: Identities) -> None:
        self._core = core
        self._fleet = fleet
        self._identities = identities
        self.results = WorkerResults(core, fleet)
        self._leasing = Lock()
        """Of two processes with one certificate that ask at once, one gets a lease, whichever runs have one to give."""

    # ------------------------------------------------------------ requests of operators

    def listed(self, sees: Callable[[str], bool] | None = None, after: str = "", limit: int = 1000) -> Page[WorkerView]:
        """Workers in order of id; with ``sees`` those that have a round of a run for which it is true."""

        def show(row: WorkerRow) -> WorkerView | None:
            view = self._worker_view(row)
            return view if sees is None or (view.run is not None and sees(view.run)) else None

        return page_of(self._core.store.workers, lambda row: row.worker, show, after, limit, hidden=True)

    def revoke(self, worker: str) -> WorkerView:
        """Gives the worker no more rounds. A lease that the worker holds expires as if its heartbeats had stopped."""
        if self._core.store.worker(worker) is None:
            raise problem("unknown-worker", f"there is no worker {worker!r}")
        with self._core.store.transaction() as tx:
            tx.revoke_worker(worker, self._core.clock.now())
        self._identities.forget_cached()
        self._core.signals.wake("workers")
        row = self._core.store.worker(worker)
        if row is None:
            raise problem("unknown-worker", f"there is no worker {worker!r}")
        return self._worker_view(row)

    # ------------------------------------------------------------ requests of workers

    def poll(self, worker: WorkerRow, poll: WorkerPoll) -> Lease | Wait | None:
        """Returns a lease of a datacenter round, or why there is none for this worker. None: the worker waits, and is
        woken for the next round."""
        with self._core.store.transaction() as tx:
            tx.seen_worker(worker.worker, self._core.clock.now())
        return self.lease(worker, poll) or self._unfit_worker(worker, poll)

    def lease(self, worker: WorkerRow, poll: WorkerPoll) -> Lease | None:
        """Returns the lease of a round that this worker can take now; one that it has already comes first. None also
        while another process with its certificate has a lease, of whichever run."""
        with self._leasing:
            logs = [log for log in self._core.process.going() if log.state.plan.datacenter]
            states = [(log, log.catch_up()) for log in logs]
            if any(_anothers(state, worker.worker, poll) for _, state in states):
                return None
            for log, state in sorted(states, key=lambda found: not _ours(found[1], worker.worker, poll)):
                free = state.phase == "leasing" or _ours(state, worker.worker, poll)
                if free and self._against(state, poll) is None:
                    found = self._grant_lease(log, worker.worker, poll)
                    if found is not None:
                        return found
            return None

    def hold_over(self, worker: WorkerRow, poll: WorkerPoll) -> Wait:
        """Returns the answer to a poll whose hold has expired."""
        refused = self._unfit_worker(worker, poll)
        if refused is not None:
            return refused
        others = [
            f"round {state.round_number} of {state.run}, which another process has with this worker's certificate"
            for state in self._core.states()
            if _anothers(state, worker.worker, poll)
        ]
        if others:
            reason = f"this process waits for the end of the lease of {' and of '.join(others)}"
            return Wait(reason=f"{reason}: give each agent a certificate of its own", min_s=0.0, max_s=_HELD_WAIT_S[1])
        found = [
            f"run {state.run} is {state.phase} round {state.round_number}"
            for state in self._core.states()
            if self._against(state, poll) is None
        ]
        return Wait(
            reason=f"no datacenter round is open: {'; '.join(found) or 'no run asks for one'}",
            min_s=_HELD_WAIT_S[0],
            max_s=_HELD_WAIT_S[1],
        )

    def heartbeat(self, worker: WorkerRow, run: str, round: int, message: Heartbeat) -> LeaseRenewed:
        effects = self._core.submit(
            run,
            lambda at: copied(
                ev.WorkerHeartbeat, message, at=at, round=round, worker=worker.worker, metrics=dict(message.metrics)
            ),
        )
        return LeaseRenewed(ends_in_s=max(0.0, _only(effects, fx.Renewed).ends_at - self._core.clock.now()))

    def end_lease(self, worker: WorkerRow, run: str, round: int, message: LeaseEnd) -> None:
        self._core.submit(run, lambda at: copied(ev.LeaseEnded, message, at=at, round=round, worker=worker.worker))

    # ------------------------------------------------------------ inside

    def _grant_lease(self, log: RunLog, worker: str, poll: WorkerPoll) -> Lease | None:
        """Grants the lease. Counts the waiting devices in the same transaction: where they are enough, the round
        returns to the fleet."""

        def make(tx: Transaction, state: RunState, now: float) -> ev.Event | None:
            if state.round is None:
                return None
            leasing = state.phase == "leasing"
            waiting = len(self._fleet.waiting(tx, state, now)) if leasing else state.round.waiting
            if fleet_is_back(state, now, waiting):
                return ev.FleetReturned(at=now, round=state.round_number, waiting=waiting)
            if state.phase != "leasing" and not _ours(state, worker, poll):
                return None
            return ev.Leased(
                at=now,
                round=state.round_number,
                attempt=state.round.attempt + 1,
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
        size = self._core.blobs.size(granted.checkpoint)
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
            within_s=max(0.0, min(granted.give_up_at - self._core.clock.now(), section.max_s)),
            max_result_bytes=min(self._core.settings.max_checkpoint_bytes, size + SHORT_HEADER),
        )

    def _unfit_worker(self, worker: WorkerRow, poll: WorkerPoll) -> Wait | None:
        """Returns why this worker can serve no running run with a datacenter. None: it can serve one, or there is
        none."""
        asking = [
            state for state in self._core.states() if state.plan.datacenter is not None and state.status == "running"
        ]
        reasons = {state.run: self._against(state, poll) for state in asking}
        self._core.process.unfit_workers.note(worker.worker, {run: why for run, why in reasons.items() if why})
        if not reasons or None in reasons.values():
            return None
        return self._fleet.pace("; ".join(f"run {run}: {reason}" for run, reason in reasons.items()))

    def _against(self, state: RunState, poll: WorkerPoll) -> str | None:
        asked = state.plan.datacenter is not None and poll.memory_bytes is not None
        return reason_against(state.plan, poll, self._core.blobs.size(state.checkpoint) if asked else 0)

    def _worker_view(self, row: WorkerRow) -> WorkerView:
        held = [] if row.revoked_at else [state for state in self._core.states() if _holds(state, row.worker)]
        return copied(
            WorkerView,
            row,
            state="revoked" if row.revoked_at is not None else "leased" if held else "idle",
            run=held[0].run if held else None,
            round=held[0].round_number if held else None,
        )


def _holds(state: RunState, worker: str) -> bool:
    lease = None if state.round is None else state.round.lease
    return state.phase == "training" and lease is not None and lease.worker == worker


def _ours(state: RunState, worker: str, poll: WorkerPoll) -> bool:
    """Whether the worker has the round, and the poll is of the same process or of its restart."""
    lease = None if state.round is None else state.round.lease
    if lease is None or not _holds(state, worker):
        return False
    return lease.instance == poll.instance or is_restart(lease, poll.installation)


def _anothers(state: RunState, worker: str, poll: WorkerPoll) -> bool:
    """Whether another process with the worker's certificate has the round."""
    return _holds(state, worker) and not _ours(state, worker, poll)


def _only(effects: list[fx.Effect], kind: type[E]) -> E:
    return next(effect for effect in effects if isinstance(effect, kind))
