"""The length of each phase, and the times that move back when the coordinator's clock goes back."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from coordinator.engine import events as ev
from coordinator.engine.phases.refusing import Step
from coordinator.engine.plan import Plan
from coordinator.engine.state import Round, RunState


def phase_s(plan: Plan, round: Round) -> float:
    """How long the phase lasts from its beginning to its deadline, at most. 0 for those without one."""
    cohort, section, secure = plan.cohort, plan.datacenter, plan.secure
    match round.phase:
        case "selecting":
            return cohort.select_s
        case "collecting":
            return cohort.collect_s if secure is None or not round.attempt else secure.exchange_s
        case "leasing":
            return section.wait_s if section is not None and round.planned else cohort.select_s
        case "training":
            return 0.0 if section is None else section.lease_s
        case "sharing" if secure is not None and round.secure is not None and not round.secure.roster:
            return secure.expires_s
        case "sharing" | "masking" | "agreeing" | "unmasking":
            return 0.0 if secure is None else secure.exchange_s
        case "committing":
            return 0.0
        case _:
            assert_never(round.phase)


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
