"""Results of datacenter rounds: the limit of a body before it is read, and the checkpoint that is made of it.

Raises ``ProblemError`` for an error of the worker; ``StoreError`` and ``BlobError`` pass through where the database or
the disk failed.
"""

from __future__ import annotations

from typing import Any, cast

from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import ResultReceipt, ResultReport
from client_sdk.tensors import SHORT_HEADER, TensorError, canonical_digest, header_limit, read_header
from coordinator.blobs import Spool
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.evidence import Evidence
from coordinator.engine.phases.training import reason_lost
from coordinator.engine.state import RunState
from coordinator.runtime import records, run_creation
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Fleet
from coordinator.store.port import Transaction, WorkerRow


class WorkerResults:
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
        known = any(row.device == worker and row.digest is None for row in self._core.store.refusals(run, round))
        if known or not 1 <= round <= self._core.log(run).state.round_number:
            return
        refusal = fx.RecordRefusal(round=round, device=worker, digest=None, kind="lease-lost", reason=reason)
        with self._core.store.transaction(run) as tx:
            records.write(tx, run, [(self._core.clock.now(), refusal)])
