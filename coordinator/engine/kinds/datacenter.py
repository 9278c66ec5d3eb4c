"""Rounds that a worker trains, on a datacenter's machines: leasing, training."""

from __future__ import annotations

from typing import assert_never, get_args

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.kinds import RoundKind
from coordinator.engine.kinds.federated import device_event
from coordinator.engine.phases import leasing, public_record, training
from coordinator.engine.phases.refusing import Step
from coordinator.engine.plan import Plan
from coordinator.engine.state import Round, RunState


class Datacenter(RoundKind[ev.DeviceEvent | ev.WorkerEvent]):
    first_phase = "leasing"
    events = get_args(ev.WorkerEvent)
    of_devices = False

    def happened(self, state: RunState, event: ev.DeviceEvent | ev.WorkerEvent) -> Step:
        """Devices have no place in the round: what they send gets the reason."""
        match event:
            case ev.Leased():
                return leasing.leased(state, event)
            case ev.WorkerHeartbeat():
                return training.heartbeat(state, event)
            case ev.LeaseEnded():
                return training.lease_ended(state, event)
            case ev.Delivered():
                return training.delivered(state, event)
            case ev.FleetReturned():
                return leasing.fleet_returned(state, event)
            case (
                ev.Drawn() | ev.TrainingStarted() | ev.Reported() | ev.UpdateRefused() | ev.UpdateLost() | ev.Withdrew()
            ):
                return device_event(state, event)
            case _:
                assert_never(event)

    def time_is_up(self, state: RunState, at: float) -> Step:
        match state.current.phase:
            case "leasing":
                return leasing.time_passes(state, at)
            case "training":
                return training.time_passes(state, at)
            case _:
                return state, []

    def pending(self, state: RunState) -> list[fx.Action]:
        return leasing.pending(state) if state.phase == "leasing" else []

    def public(self, state: RunState) -> dict[str, object]:
        current = state.current
        body = {**public_record.fleet_body(current), "because": current.because}
        lease = current.lease
        if lease is None:
            return body
        holder = {
            "worker": lease.worker,
            "attempt": current.attempt,
            "fence": lease.fence,
            "since_at": lease.granted_at,
            "seen_at": lease.renewed_at,
            "step": lease.step,
            "metrics": lease.metrics,
        }
        return {**body, "lease": holder, "bytes_in": lease.bytes, "metrics": lease.metrics}

    def lasts_s(self, plan: Plan, round: Round) -> float:
        section = plan.datacenter
        match round.phase:
            case "leasing":
                return section.wait_s if section is not None and round.planned else plan.cohort.select_s
            case "training":
                return 0.0 if section is None else section.lease_s
            case _:
                return 0.0
