"""Bugs in datacenter rounds: the checks of fences, the accepted results, the end of a lease."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from client_sdk.protocol.workers import ResultReceipt
from coordinator.engine import events as ev
from coordinator.engine.phases import leasing, training
from coordinator.engine.state import RunState
from coordinator.runtime import workers
from coordinator.runtime.commits import Commits
from coordinator.runtime.workers import WorkerResults
from tests.explorer.mutants.registry import mutant
from tests.explorer.plans import DATA

Patches = list[tuple[Any, str, Any]]
_reason_lost = training.reason_lost
_leased = leasing.leased
_delivered = training.delivered
_updates = Commits._updates
CENTER: dict[str, Any] = {
    "datacenter": {"data": DATA, "patience": 1, "every": 2, "wait_s": 4.0, "lease_s": 4.0, "max_s": 60.0}
}
"""The section of a plan that is often in the datacenter."""
_ALWAYS: dict[str, Any] = {
    "datacenter": {**CENTER["datacenter"], "every": 1, "wait_s": 15.0},
    "finish": {"rounds": 50},
}


@mutant("lease-fence-not-checked", "lease", plan=CENTER, workers=2, focus=("worker-silent", "training"))
def _lease_fence_not_checked() -> Patches:
    """Messages of a worker without a live lease are accepted."""

    def lost(state: RunState, round: int, attempt: int, fence: int, worker: str) -> str | None:
        found = _reason_lost(state, round, attempt, fence, worker)
        return None if found is not None and "leased again" in found and state.phase == "training" else found

    return [(training, "reason_lost", lost), (workers, "reason_lost", lost)]


@mutant("old-result-taken", "lease", plan=CENTER, workers=2, focus=("worker-silent", "training"))
def _old_result_taken() -> Patches:
    """A result that arrives after the end of its lease is committed."""

    def lost(state: RunState, round: int, attempt: int, fence: int, worker: str) -> str | None:
        found = _reason_lost(state, round, attempt, fence, worker)
        return None if found is not None and "has ended" in found else found

    def delivered(state: RunState, event: ev.Delivered) -> Any:
        found = _reason_lost(state, event.round, event.attempt, event.fence, event.worker)
        ended = found is not None and "has ended" in found
        return _delivered(state.with_round(replace(state.current, phase="training")) if ended else state, event)

    return [(training, "delivered", delivered), (workers, "reason_lost", lost)]


@mutant("lease-never-ends", "liveness", plan=CENTER, workers=1, lost_workers=1, focus=("worker-crash", "training"))
def _lease_never_ends() -> Patches:
    """The lease of a dead worker never ends."""
    return [(training, "time_passes", lambda state, at: (state, []))]


@mutant("two-results", "lease", "ack-durable", "receipt", plan=CENTER, workers=2, focus=("worker-lie", "training"))
def _two_results() -> Patches:
    """A result for the round before is committed while a worker trains the current round."""

    def delivered(state: RunState, event: ev.Delivered) -> Any:
        current = state.round
        if state.phase != "training" or current is None or current.lease is None or event.round != current.number - 1:
            return _delivered(state, event)
        lease = current.lease
        event = replace(event, round=current.number, attempt=current.attempt, fence=lease.fence, worker=lease.worker)
        return _delivered(state, event)

    def lost(state: RunState, round: int, attempt: int, fence: int, worker: str) -> str | None:
        return None if round == state.round_number - 1 else _reason_lost(state, round, attempt, fence, worker)

    return [
        (training, "delivered", delivered),
        (workers, "reason_lost", lost),
        (WorkerResults, "_result_receipt", lambda self, *result: None),
    ]


@mutant("fence-not-raised", "lease", plan=CENTER, workers=1, focus=("worker-crash", "training"))
def _fence_not_raised() -> Patches:
    """A worker that was started again continues under the fence of the process before."""

    def leased(state: RunState, event: ev.Leased) -> Any:
        lease = None if state.round is None else state.round.lease
        if state.phase == "training" and lease is not None and lease.worker == event.worker:
            state = state.with_round(replace(state.current, lease=replace(lease, instance=event.instance)))
            return state, [leasing._granted(state, lease)]
        return _leased(state, event)

    return [(leasing, "leased", leased)]


@mutant("twin-takes-over", "lease", plan=CENTER, workers=1, focus=("worker-twin", "training"))
def _twin_takes_over() -> Patches:
    """Any process with the worker's token takes over its round, also while it is being trained."""

    def anyone(lease: Any, installation: str) -> bool:
        return True

    return [(owner, "is_restart", anyone) for owner in (leasing, workers)]


@mutant(
    "failures-forgotten", "lease", "log", plan=_ALWAYS, workers=2, storm_s=240.0, focus=("worker-cannot", "training")
)
def _failures_forgotten() -> Patches:
    """A datacenter that cannot train is tried again after each round, for ever."""
    return [(training, "rest_s", lambda failures: 0.0)]


@mutant("devices-not-counted", "lease", "log", "liveness", plan=CENTER, workers=1, focus=("fleet-away", "training"))
def _devices_not_counted() -> Patches:
    """A run stays in the datacenter although enough devices waited when its result arrived."""

    def delivered(state: RunState, event: ev.Delivered) -> Any:
        return _delivered(state, replace(event, waiting=None))

    return [(training, "delivered", delivered)]


@mutant("result-not-kept", "ack-durable", plan=CENTER, workers=1)
def _result_not_kept() -> Patches:
    """A result is acknowledged and not stored."""

    def result(self: Any, worker: Any, run: str, round: int, attempt: int, report: Any, spool: Any) -> ResultReceipt:
        version = self._core.log(run).state.version + 1
        return ResultReceipt(
            run=run, round=round, attempt=attempt, worker=worker.worker, digest=spool.digest, version=version
        )

    return [(WorkerResults, "take", result)]


@mutant("refusal-unrecorded", "named", plan=CENTER, workers=2, focus=("worker-lie", "training"))
def _refusal_unrecorded() -> Patches:
    """A result that arrives too late is refused without a record."""
    return [(WorkerResults, "_note_refused_result", lambda self, *refusal: None)]


@mutant(
    "twin-bytes-deleted",
    "whole-blob",
    "liveness",
    "no-bug",
    plan=CENTER,
    workers=2,
    alike=True,
    focus=("pause", "training"),
)
def _twin_bytes_deleted() -> Patches:
    """The bytes of refused results are deleted at the end of a round, also if an accepted result has the same bytes."""

    def updates(self: Any, run: str, round: int) -> list[str]:
        refused = [row.digest for row in self._core.store.refusals(run, round) if row.digest is not None]
        return refused + _updates(self, run, round)

    return [(Commits, "_updates", updates)]


@mutant("fleet-forgotten", "liveness", plan=CENTER, workers=0)
def _fleet_forgotten() -> Patches:
    """A datacenter round that no worker takes waits for ever, however many devices return."""
    from coordinator.runtime import actions, timekeeping

    def never(state: RunState, at: float, waiting: int, unspendable: int = 0) -> bool:
        return False

    return [(owner, "fleet_is_back", never) for owner in (leasing, actions, timekeeping, workers)]


@mutant("heartbeat-lost", "lease", "liveness", plan=CENTER, workers=1)
def _heartbeat_lost() -> Patches:
    """A heartbeat is answered, and does not renew the lease."""
    heartbeat = training.heartbeat

    def careless(state: RunState, event: ev.WorkerHeartbeat) -> Any:
        following, effects = heartbeat(state, event)
        if following.round is None:
            return following, effects
        return following.with_round(replace(following.round, deadline=state.deadline)), effects

    return [(training, "heartbeat", careless)]
