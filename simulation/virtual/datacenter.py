"""A simulated datacenter: a worker that takes a run's datacenter rounds, in this process and in virtual time.

It asks for leases and delivers results over the coordinator's table of requests, and trains with the function of a real
worker's processes, as one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from client_sdk.data import training_part
from client_sdk.learning.errors import Diverged, LearningError
from client_sdk.protocol.names import Message
from client_sdk.protocol.workers import Heartbeat, Lease, LeaseEnd, ResultReport, WorkerPoll, all_strategies
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.requests import Entry, Request
from coordinator.requests.workers import HEARTBEAT, LEASE_END, POLL, RESULT
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import WorkerRow
from simulation.errors import SimulationError
from simulation.virtual.agenda import Agenda

STEP_S = 0.01
"""Virtual seconds that an optimizer step takes in the datacenter."""
_BEATS = 4
"""Heartbeats in ``lease_s``."""
_NAME = "simulated"


class SimulatedDatacenter:
    """``data``: the datacenter's data sets, by the names that plans use."""

    def __init__(self, coordinator: Coordinator, agenda: Agenda, learner: Any, data: Mapping[str, Any]) -> None:
        self._coordinator = coordinator
        self._agenda = agenda
        self._learner = learner
        self._data = data
        self._worker = WorkerRow(worker=_NAME, key_id=None, certificate="", label="simulated", created_at=agenda.now)
        with coordinator.core.store.transaction() as tx:
            if tx.worker(_NAME) is None:
                tx.insert_worker(self._worker)

    def take(self, state: RunState, meanwhile: Callable[[], None]) -> bool:
        """Trains the open round and delivers its model. False where the coordinator grants no lease: the round returned
        to the fleet. ``meanwhile`` is called once while it trains.

        A loss that is not finite ends the round with that reason, as where a real worker trains. SimulationError where
        the learner cannot be trained on this data."""
        lease = self._request(POLL, self._poll(state.plan)).call(POLL.shape.first, self._coordinator)
        if not isinstance(lease, Lease):
            return False
        meanwhile()
        try:
            model, report = self._trained(lease)
        except Exception as error:
            failed = LeaseEnd(attempt=lease.attempt, fence=lease.fence, failed=True, reason=str(error)[:500])
            self._request(LEASE_END, failed, lease).call(LEASE_END.shape.call, self._coordinator)
            if isinstance(error, Diverged):
                return True
            if isinstance(error, LearningError):
                words = f"the datacenter could not train round {lease.round}: {error}"
                raise SimulationError(words) from error
            raise
        if not self._time_passes(lease, report.steps * STEP_S):
            return True
        metrics = {"loss": report.loss} if math.isfinite(report.loss) else {}
        result = ResultReport(
            fence=lease.fence,
            parent=lease.checkpoint.digest,
            steps=report.steps,
            examples=report.examples_seen,
            metrics=metrics,
        )
        request = self._request(RESULT, result, lease, attempt=lease.attempt)
        with self._coordinator.core.blobs.spool() as spool:
            spool.write(to_bytes(model))
            request.call(RESULT.shape.stored, self._coordinator, spool)
        return True

    def _request(self, entry: Entry[Any], message: Message, lease: Lease | None = None, **more: int) -> Request:
        where = {} if lease is None else {"run": lease.run, "round": lease.round, **more}
        return Request(entry, self._worker, message, where)

    def _poll(self, plan: Plan) -> WorkerPoll:
        nproc = plan.datacenter.nproc if plan.datacenter is not None else 1
        learners = {plan.task.learner: plan.task.learner_version or "simulated"}
        data, strategies = tuple(self._data), all_strategies()
        return WorkerPoll(instance=_NAME, learners=learners, data=data, nproc=nproc, strategies=strategies, hold_s=0)

    def _trained(self, lease: Lease) -> tuple[Tensors, Any]:
        from coordinator.datacenter.recipe import recipe_of
        from coordinator.datacenter.training import train

        with self._coordinator.core.blobs.open(lease.checkpoint.digest) as file:
            model = from_bytes(file.read())
        return train(self._learner, model, training_part(self._data[lease.datacenter.data]), recipe_of(lease))

    def _time_passes(self, lease: Lease, seconds: float) -> bool:
        """Lets the time of training pass, with heartbeats. False where the round ended meanwhile."""
        until = self._agenda.now + seconds
        while self._agenda.now < until:
            self._agenda.now = min(until, self._agenda.now + lease.lease_s / _BEATS)
            self._coordinator.tick()
            if self._coordinator.core.state(lease.run).round_number != lease.round:
                return False
            beat = Heartbeat(attempt=lease.attempt, fence=lease.fence, step=0)
            self._request(HEARTBEAT, beat, lease).call(HEARTBEAT.shape.call, self._coordinator)
        return True
