"""Decides when a run is finished: enough rounds, a metric at its target, or a metric that no longer improves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.lifecycle import end_run
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.plan import Finish
from coordinator.engine.state import RunState


def scored(state: RunState, event: ev.Scored) -> Step:
    """The score is recorded, whichever checkpoint it is of; it may end the run."""
    if not 0 <= event.version <= state.version:
        reason = f"the run has no version {event.version}: it is at version {state.version}"
        return refuse(state, "unknown-checkpoint", reason)
    effects: list[fx.Effect] = [
        fx.RecordMetrics(version=event.version, source=event.source, examples=event.examples, metrics=event.metrics)
    ]
    seen, finished = observe(state, event.version, event.source, event.metrics)
    if finished is None or state.over or state.ending is not None:
        return seen, effects
    following, more = end_run(seen, event.at, "finished", finished)
    return following, effects + more


def enough_rounds(state: RunState) -> str | None:
    """Why the run is finished after its last commit, or None."""
    wanted = state.plan.finish.rounds
    return f"reached {wanted} round{'s' if wanted > 1 else ''}" if state.version >= wanted else None


def observe(state: RunState, version: int, source: str, metrics: Mapping[str, float]) -> tuple[RunState, str | None]:
    """The state after a score, and why the run is finished now, or None. Scores of older checkpoints can reach the
    target, but do not count for improvement."""
    finish = state.plan.finish
    if finish.metric is None or source != finish.source or finish.metric not in metrics:
        return state, None
    value = metrics[finish.metric]
    if finish.target is not None and _at_least_as_good(finish, value, finish.target):
        return state, f"{finish.metric} {value:.4g} reached the target {finish.target:.4g} at version {version}"
    if version <= state.last_scored:
        return state, None
    if state.best is None or _better_by(finish, value, state.best) > finish.min_delta:
        return dataclasses.replace(state, best=value, unimproved=0, last_scored=version), None
    state = dataclasses.replace(state, unimproved=state.unimproved + 1, last_scored=version)
    if finish.patience is not None and state.unimproved >= finish.patience:
        return state, f"{finish.metric} has not improved on {state.best:.4g} for {state.unimproved} scored checkpoints"
    return state, None


def _better_by(finish: Finish, value: float, other: float) -> float:
    return value - other if finish.better == "higher" else other - value


def _at_least_as_good(finish: Finish, value: float, target: float) -> bool:
    return _better_by(finish, value, target) >= 0
