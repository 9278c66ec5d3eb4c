"""Bugs in answers: an offer with a wrong field, a receipt that names another event, a repetition that is refused, a
caller who should get nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from client_sdk.protocol.devices import Assignment, Wait
from client_sdk.protocol.workers import DatacenterTask, Lease, ResultReceipt
from coordinator.engine import events as ev
from coordinator.engine.phases import collecting, lifecycle
from coordinator.engine.phases.refusing import refuse
from coordinator.engine.state import RunState
from coordinator.runtime import run_log
from coordinator.runtime.devices import DeviceRequests
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.workers import WorkerRequests, WorkerResults
from tests.explorer.mutants.datacenter import CENTER
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]


@mutant("offered-size-wrong", "offer")
def _offered_size_wrong() -> Patches:
    """An assignment names fewer bytes than the checkpoint has."""
    checkpoint = DeviceRequests._checkpoint

    def shorter(self: DeviceRequests, state: RunState, *version: int) -> Any:
        found = checkpoint(self, state, *version)
        return found.model_copy(update={"bytes": found.bytes - 8})

    return [(DeviceRequests, "_checkpoint", shorter)]


@mutant("limit-of-updates-lost", "offer")
def _limit_of_updates_lost() -> Patches:
    """An assignment has the limit of the settings, and not the one of the plan's codec."""
    assignment = DeviceRequests.assignment

    def unlimited(self: DeviceRequests, device: str) -> Assignment | None:
        found = assignment(self, device)
        most = self._core.settings.max_update_bytes
        return None if found is None else found.model_copy(update={"max_update_bytes": most})

    return [(DeviceRequests, "assignment", unlimited)]


@mutant("lease-with-another-recipe", "offer", plan=CENTER, workers=1)
def _lease_with_another_recipe() -> Patches:
    """A lease has the defaults of the datacenter's section, and rare heartbeats."""
    lease_of = WorkerRequests._lease_of

    def default(self: WorkerRequests, log: Any, worker: str, granted: Any, section: Any) -> Lease:
        found = lease_of(self, log, worker, granted, section)
        changed = {"datacenter": DatacenterTask(data=section.data, steps=1), "heartbeat_s": section.lease_s}
        return found.model_copy(update=changed)

    return [(WorkerRequests, "_lease_of", default)]


@mutant("asked-again-at-once", "offer")
def _asked_again_at_once() -> Patches:
    """Devices for whom there is no work check in again without a pause."""

    def pace(self: Fleet, reason: str) -> Wait:
        return Wait(reason=reason, min_s=0.0, max_s=0.0)

    return [(Fleet, "pace", pace)]


@mutant("receipt-names-another-event", "receipt")
def _receipt_names_another_event() -> Patches:
    """A receipt names the event before the one that counts the update."""
    with_place = run_log._with_place
    return [(run_log, "_with_place", lambda effects, seq, link: with_place(effects, seq - 1, link))]


@mutant("receipt-again-names-nothing", "receipt")
def _receipt_again_names_nothing() -> Patches:
    """The receipt for bytes that are sent again names no event."""
    return [(RunLog, "_place", lambda self, tx, again: (0, ""))]


@mutant("other-result-gets-receipt", "receipt", plan=CENTER, workers=2, focus=("worker-lie", "training"), storm_s=60.0)
def _other_result_gets_receipt() -> Patches:
    """Whatever a worker sends after its result was committed gets the receipt of the result."""
    result_receipt = WorkerResults._result_receipt

    def any_bytes(self: WorkerResults, worker: str, run: str, round: int, fence: int, digest: str) -> Any:
        taken = self._taken_result(worker, run, round, fence)
        found = None if taken is None else result_receipt(self, worker, run, round, fence, taken[0])
        assert found is None or isinstance(found, ResultReceipt)
        return found

    return [(WorkerResults, "_result_receipt", any_bytes)]


@mutant("withdrawal-refused-again", "receipt", focus=("duplicate", "collecting"), liars=2)
def _withdrawal_refused_again() -> Patches:
    """A withdrawal that arrives a second time is refused."""
    withdrew = collecting.withdrew

    def once(state: RunState, event: ev.Withdrew) -> Any:
        member = None if state.round is None else state.round.members.get(event.device)
        if member is not None and member.status == "withdrawn":
            return refuse(state, "conflict", "the device has left the round")
        return withdrew(state, event)

    return [(collecting, "withdrew", once)]


@mutant("pause-refused", "operator", focus=("op-pause", "committing"))
def _pause_refused() -> Patches:
    """A run that commits a round cannot be paused."""
    paused = lifecycle.paused

    def idle_only(state: RunState, event: ev.Paused) -> Any:
        if state.phase in ("collecting", "committing"):
            return refuse(state, "conflict", "the run is at work")
        return paused(state, event)

    return [(lifecycle, "paused", idle_only)]


@mutant("uncapped-report", "draw", "fleet")
def _uncapped_report() -> Patches:
    """An update counts with all held-out examples that the device says it has."""
    count = DeviceRequests.count

    def uncapped(self: DeviceRequests, arrived: Any, **more: Any) -> Any:
        return count(self, replace(arrived, device=replace(arrived.device, examples_cap=2**31)), **more)

    return [(DeviceRequests, "count", uncapped)]
