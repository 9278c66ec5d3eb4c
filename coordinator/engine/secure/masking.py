"""The masking phase: the sharers send their masked updates. A failure up to here costs only time.

::

    masking --> agreeing    all sharers have masked and complaints are settled, or the deadline: with enough survivors;
                            the list is fixed

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
    present,
    route,
    under_way,
    with_deadline,
    with_secure,
)
from coordinator.engine.secure.complaints import accused, put_out, settled, with_time
from coordinator.engine.secure.disputes import with_disputes
from coordinator.engine.secure.messages import accepted, answered, with_message
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
    """The dealers are asked for their pairs, and the device masks once that is settled."""
    answer = answered(state, event)
    if answer is not None:
        return answer
    secure, _ = under_way(state)
    if not event.dealers:
        return refuse(state, "invalid-request", "a complaint names a dealer")
    if event.at > exchange_deadline(state, max(secure.began["masking"], secure.recovered_at)):
        return refuse(state, "late", f"the time for complaints of attempt {event.attempt} is over")
    state = with_message(state, event)
    secure, _ = under_way(state)
    state = with_secure(state, replace(secure, complaints={**secure.complaints, event.device: event.dealers}))
    disputes = with_disputes(state.disputes, event.round, event.device, event.dealers)
    following, more = go_on(with_time(replace(state, disputes=disputes), event.at), event.at)
    return following, [accepted(event), *more]


def pairs_opened(state: RunState, event: ev.PairsOpened) -> Step:
    """The holders get the pairs of which they had complained."""
    answer = answered(state, event)
    if answer is not None:
        return answer
    following, more = go_on(with_time(with_message(state, event), event.at), event.at)
    return following, [accepted(event), *more]


def _came(state: RunState) -> Set[str]:
    """The devices for which the phase does not wait: they have masked, and answered the complaints of them."""
    secure, _ = under_way(state)
    return secure.masked.keys() - accused(state) if secure.complaints else secure.masked.keys()


def go_on(state: RunState, at: float, *, time_is_up: bool = False) -> Step:
    """Goes on to the signatures where all have masked and complaints are settled, or the time is up; begins a new
    attempt where too few have."""
    secure, _ = under_way(state)
    if not secure.complaints:
        return _close_or_wait(state, at, time_is_up=time_is_up)
    unanswered, expired = accused(state), at >= secure.expires_at
    everybody = time_is_up and not expired  # a fresh attempt blames nobody, where this one has expired
    state, out = put_out(state, at, unanswered if everybody else unanswered - set(present(state, unanswered)))
    secure, waiting = under_way(state)[0], settled(state)
    if time_is_up and waiting and secure.settle_by > at:
        time_is_up = False
    following, more = _close_or_wait(state, at, time_is_up=time_is_up)
    if following.phase != "masking":
        return following, [*out, *more]
    following = with_deadline(following, max(following.deadline or 0.0, secure.settle_by))
    return following, [*out, *more, route(following, {*waiting, *present(following, accused(following))})]


def _close_or_wait(state: RunState, at: float, *, time_is_up: bool) -> Step:
    secure, _ = under_way(state)
    return close_or_wait(
        state,
        at,
        did="masked",
        came=secure.masked,
        of=secure.shared,
        answered=_came(state),
        following=begin_agreeing,
        time_is_up=time_is_up,
        listed=True,
    )


def pending(state: RunState) -> list[fx.Action]:
    secure, _ = under_way(state)
    return [route(state, awaited(state, secure.shared, _came(state)))]
