"""The masking phase: the sharers send their masked updates. A failure up to here costs only time.

::

    masking --> agreeing    all sharers have masked, or the deadline: with enough survivors; the list is fixed

Where too few have masked, a new attempt begins (``attempts.fresh``).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.secure.agreeing import begin as begin_agreeing
from coordinator.engine.secure.attempts import (
    awaited,
    close_or_wait,
    enter,
    exchange_deadline,
    route,
    under_way,
    with_secure,
)
from coordinator.engine.secure.messages import accepted, answered, not_a_member, with_message, wrong_phase
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import RunState, altered


def begin(state: RunState, at: float) -> Step:
    state = enter(state, "masking", at, exchange_deadline(state, at))
    secure, _ = under_way(state)
    return state, [record(state, "open"), route(state, secure.shared)]


def masked(state: RunState, event: ev.Masked) -> Step:
    answer = answered(state, event)
    if answer is not None:
        return answer
    state = with_message(state, event)
    state = state.with_member(event.device, altered(state.current.members[event.device], status="reported"))
    following, more = go_on(state, event.at)
    return following, [accepted(event), *more]


def complained(state: RunState, event: ev.Complained) -> Step:
    """Without these dealers' shares the device cannot mask: it leaves this attempt."""
    against = not_a_member(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against)
    secure, _ = under_way(state)
    dealers = tuple(sorted(set(event.dealers)))
    if secure.complaints.get(event.device) == dealers:
        return state, []
    if event.device in secure.complaints:
        return refuse(state, "duplicate", "another complaint of this device came first")
    against = wrong_phase(state, ("masking",))
    if against is not None:
        return refuse(state, *against)
    if event.device in secure.masked:
        return refuse(state, "conflict", "the device has masked with these shares")
    if event.device not in secure.shared or not dealers or not set(dealers) <= secure.shared.keys() - {event.device}:
        return refuse(state, "invalid-request", "a sharer complains of other sharers")
    state = with_secure(state, replace(secure, complaints={**secure.complaints, event.device: dealers}))
    return go_on(state, event.at)


def _answered(secure: SecureRound) -> Set[str]:
    """The devices that have masked, or have reported that they cannot."""
    return secure.masked.keys() | secure.complaints.keys() if secure.complaints else secure.masked.keys()


def go_on(state: RunState, at: float, *, time_is_up: bool = False) -> Step:
    """Goes on to the signatures where all have masked or the time is up; begins a new attempt where too few have."""
    secure, _ = under_way(state)
    return close_or_wait(
        state,
        at,
        did="masked",
        came=secure.masked,
        of=secure.shared,
        answered=_answered(secure),
        following=begin_agreeing,
        time_is_up=time_is_up,
    )


def pending(state: RunState) -> list[fx.Action]:
    secure, _ = under_way(state)
    return [route(state, awaited(state, secure.shared, _answered(secure)))]
