"""The length of each phase, and the times that move back when the coordinator's clock goes back."""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import events as ev
from coordinator.engine.kinds import kind_of
from coordinator.engine.phases.refusing import Step
from coordinator.engine.plan import Plan
from coordinator.engine.state import Round, RunState


def phase_s(plan: Plan, round: Round) -> float:
    """How long the phase lasts from its beginning to its deadline, at most. 0 for those without one."""
    return kind_of(round).lasts_s(plan, round)


def clock_fell(state: RunState, event: ev.ClockFell) -> Step:
    """Moves the state's times back with the clock, where a deadline is open."""
    current, rests_until = state.round, state.fallback.rests_until
    if current is None or current.deadline is None:
        return state, []
    lease, give_up_at = current.lease, current.give_up_at
    current = replace(
        current,
        deadline=current.deadline - event.by_s,
        lease=None if lease is None else replace(lease, renewed_at=lease.renewed_at - event.by_s),
        give_up_at=None if give_up_at is None else give_up_at - event.by_s,
    )
    rests_until = None if rests_until is None else rests_until - event.by_s
    return replace(state, round=current, fallback=replace(state.fallback, rests_until=rests_until)), []
