"""The sharing phase: the roster is made of the devices that advertised, and they share their secrets with each other.

::

    sharing, without a roster (Gather) --> sharing, with it
    sharing, with it --> masking    all of the roster have shared, or the deadline: with enough sharers

Where too few have shared, a new attempt begins (``attempts.fresh``).
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.secure.attempts import (
    awaited,
    close_or_wait,
    enter,
    exchange_deadline,
    fresh,
    present,
    route,
    under_way,
    with_secure,
)
from coordinator.engine.secure.margin import margin
from coordinator.engine.secure.masking import begin as begin_masking
from coordinator.engine.secure.messages import accepted, answered, with_message, wrong_phase
from coordinator.engine.state import RunState


def gather(state: RunState, at: float) -> Step:
    """Fix the roster's devices. Making the roster has no deadline but the attempt's expiry."""
    secure, _ = under_way(state)
    state = state.with_round(replace(state.current, phase="sharing", deadline=float(secure.expires_at)))
    return state, [record(state, "open"), gather_action(state)]


def gather_again(state: RunState, at: float) -> Step:
    """A device was excluded before any device saw the roster: make it of the others, where they are enough."""
    secure, plan = under_way(state)
    have = len(secure.advertised)
    if have >= plan.fewest_advertisers(state.plan.cohort):
        return state, [gather_action(state)]
    return fresh(state, at, f"{have} devices are left for the roster")


def gather_action(state: RunState) -> fx.Gather:
    secure, _ = under_way(state)
    return fx.Gather(
        round=state.round_number,
        attempt=state.current.attempt,
        advertised=tuple(sorted(secure.advertised.items())),
    )


def rostered(state: RunState, event: ev.Rostered) -> Step:
    secure, _ = under_way(state)
    if secure.roster:
        if secure.roster == event.digest:
            return state, []
        return refuse(state, "conflict", f"attempt {event.attempt} of round {event.round} has another roster")
    against = wrong_phase(state, ("sharing",))
    if against is not None:
        return refuse(state, *against)
    places = [device for group in event.groups for device in sorted(group.order)]
    if sorted(places) != sorted(secure.advertised) or places != [one for group in event.groups for one in group.order]:
        return refuse(state, "stale", "this is not the roster of the devices that have advertised")
    margins = tuple(margin(state, len(group.order), group.signers) for group in event.groups)
    state = with_secure(state, replace(secure, roster=event.digest, groups=event.groups, margins=margins))
    state = enter(state, "sharing", event.at, exchange_deadline(state, event.at))
    return state, [record(state, "open"), route(state, present(state, secure.advertised))]


def shared(state: RunState, event: ev.Shared) -> Step:
    answer = answered(state, event)
    if answer is not None:
        return answer
    following, more = go_on(with_message(state, event), event.at)
    return following, [accepted(event), *more]


def go_on(state: RunState, at: float, *, time_is_up: bool = False) -> Step:
    """Goes on to the masks where all have shared or the time is up; begins a new attempt where too few have."""
    secure, _ = under_way(state)
    return close_or_wait(
        state,
        at,
        did="shared",
        came=secure.shared,
        of=secure.group_of,
        answered=secure.shared.keys(),
        following=begin_masking,
        time_is_up=time_is_up,
    )


def time_is_up(state: RunState, at: float) -> Step:
    if not under_way(state)[0].roster:
        return fresh(state, at, "the attempt expired before its roster was there")
    return go_on(state, at, time_is_up=True)


def pending(state: RunState) -> list[fx.Action]:
    secure, _ = under_way(state)
    if not secure.roster:
        return [gather_action(state)]
    return [route(state, awaited(state, secure.group_of, secure.shared.keys()))]
