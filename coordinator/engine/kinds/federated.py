"""Plain rounds with devices: selecting, collecting, committing."""

from __future__ import annotations

from typing import assert_never

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.kinds import RoundKind
from coordinator.engine.phases import collecting, committing, public_record, selecting
from coordinator.engine.phases.refusing import Step
from coordinator.engine.plan import Plan
from coordinator.engine.state import Round, RunState


def device_event(state: RunState, event: ev.DeviceEvent) -> Step:
    """What an event of devices does in a round that is not masked."""
    match event:
        case ev.Drawn():
            return selecting.drawn(state, event)
        case ev.TrainingStarted():
            return collecting.started(state, event)
        case ev.Reported():
            return collecting.reported(state, event)
        case ev.UpdateRefused():
            return collecting.update_refused(state, event)
        case ev.UpdateLost():
            return collecting.update_lost(state, event)
        case ev.Withdrew():
            return collecting.withdrew(state, event)
        case _:
            assert_never(event)


class Federated(RoundKind[ev.DeviceEvent]):
    first_phase = "selecting"

    def happened(self, state: RunState, event: ev.DeviceEvent) -> Step:
        return device_event(state, event)

    def time_is_up(self, state: RunState, at: float) -> Step:
        match state.current.phase:
            case "selecting":
                return state, [*selecting.pending(state)]
            case "collecting":
                return collecting.time_is_up(state, at)
            case _:
                return state, []

    def recovered(self, state: RunState, at: float) -> RunState:
        return collecting.recovered(state, at)

    def pending(self, state: RunState) -> list[fx.Action]:
        match state.current.phase:
            case "selecting":
                return selecting.pending(state)
            case "collecting":
                return collecting.pending(state)
            case "committing":
                return committing.pending(state)
            case _:
                return []

    def public(self, state: RunState) -> dict[str, object]:
        return public_record.fleet_body(state.current)

    def lasts_s(self, plan: Plan, round: Round) -> float:
        return {"selecting": plan.cohort.select_s, "collecting": plan.cohort.collect_s}.get(round.phase, 0.0)
