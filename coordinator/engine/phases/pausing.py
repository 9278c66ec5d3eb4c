"""What operators do to a run: pause, resume and stop it."""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import events as ev
from coordinator.engine.phases.ending import abandon, end_run
from coordinator.engine.phases.opening import open_next
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.state import RunState


def paused(state: RunState, event: ev.Paused) -> Step:
    """The round under way goes on; one that waits for a worker has not begun, and does not keep the run open."""
    if state.status != "running":
        return refuse(state, "conflict", f"the run is {state.status} and cannot be paused")
    state = replace(state, status="paused", reason="paused by the operator")
    if state.phase == "leasing":
        return abandon(state, event.at, "the run was paused while no worker had the round")
    return state, []


def resumed(state: RunState, event: ev.Resumed) -> Step:
    """A datacenter that rests is tried again: whoever resumes has seen to it."""
    if state.status != "paused":
        return refuse(state, "conflict", f"the run is {state.status}, not paused")
    fallback = replace(state.fallback, failures=0, rests_until=None)
    state = replace(state, status="running", reason="", fallback=fallback)
    return open_next(state, event.at) if state.round is None else (state, [])


def stopped(state: RunState, event: ev.Stopped) -> Step:
    if state.over or state.ending is not None:
        return refuse(state, "conflict", f"the run has ended already: {state.reason or 'it ends with this round'}")
    return end_run(state, event.at, "stopped", "stopped by the operator")
