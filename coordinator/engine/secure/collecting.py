"""The collecting phase of a secure round: the cohort trains and advertises keys, not updates.

::

    drawn --> collecting (header announced, devices train and advertise)
                  |  cohort.goal and secure.reserve have advertised, or no other device can, or the deadline:
                  |  with at least max(quorum, minimum_cohort)
                  v
              sharing, without a roster (Gather)
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.lifecycle import abandon, missed
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.phases.selecting import not_selecting
from coordinator.engine.secure.attempts import (
    awaited,
    count_awaited,
    exchange_deadline,
    present,
    route,
    under_way,
    with_deadline,
    with_secure,
)
from coordinator.engine.secure.exhausted import why_exhausted, why_unspendable
from coordinator.engine.secure.messages import accepted, answered, with_message
from coordinator.engine.secure.sharing import gather
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import Member, Members, RunState, altered, membership


def drawn(state: RunState, event: ev.Drawn) -> Step:
    """The cohort begins to train, where it is large enough for a roster without devices that are spent, have
    declined or are barred."""
    current = state.round
    if current is None or current.phase != "selecting" or event.round != current.number:
        return not_selecting(state, event.round)
    unfit = {*state.spent, *state.declined, *state.barred}
    cohort = [(device, examples) for device, examples in event.cohort if device not in unfit]
    fewest = state.plan.fewest_devices
    current = replace(current, waiting=event.waiting, pool=event.pool)
    if len(cohort) < fewest:
        exhausted = why_exhausted(state, event, fewest)
        others = f" ({without})" if (without := why_unspendable(event.spent, event.declined, event.barred)) else ""
        found = exhausted or f"{event.waiting} eligible devices waited{others}; a secure round needs at least {fewest}"
        state = replace(state, round=current, exhausted=exhausted or state.exhausted)
        waits = bool(state.exhausted) and event.waiting < fewest
        return missed(state, event.at, f"{found}. {event.others}" if event.others else found, waits=waits)
    deadline = event.at + state.plan.cohort.collect_s
    current = replace(
        current,
        phase="collecting",
        collecting_at=event.at,
        deadline=deadline,
        members=Members({device: Member(examples=examples) for device, examples in cohort}),
        secure=SecureRound(began={"collecting": event.at}),
    )
    state = replace(state, round=current, exhausted="")
    devices = tuple(current.members)
    return state, [
        fx.Claim(round=current.number, attempt=current.attempt, devices=devices, until=deadline),
        record(state, "open"),
        fx.Wake(devices=devices),
        fx.Announce(round=current.number, attempt=current.attempt),
    ]


def announced(state: RunState, event: ev.Announced) -> Step:
    """The first header of an attempt is valid, since devices may have seen it."""
    secure, _ = under_way(state)
    if secure.header:
        if secure.header == event.header:
            return state, []
        return refuse(state, "conflict", f"attempt {event.attempt} of round {event.round} has another header")
    secure = replace(secure, header=event.header, expires_at=event.expires_at)
    state, current = with_secure(state, secure), state.current
    until = (
        exchange_deadline(state, event.at) if current.attempt else min(current.deadline or event.at, event.expires_at)
    )
    state = with_deadline(state, until)
    return state, [route(state, present(state, current.members))]


def advertised(state: RunState, event: ev.Advertised) -> Step:
    answer = answered(state, event)
    if answer is not None:
        return answer
    state = with_message(state, event)
    state = state.with_member(event.device, altered(state.current.members[event.device], status="training"))
    following, more = gather_if_complete(state, event.at)
    return following, [accepted(event), *more]


def reported(state: RunState, event: ev.Reported | ev.UpdateRefused) -> Step:
    """A secure round refuses every plain update."""
    against = membership(state, event.round, event.attempt, event.device)
    reason = "this round is secure: a device advertises keys and sends its update masked"
    return refuse(state, *(against or ("invalid-update", reason)))


def gather_if_complete(state: RunState, at: float) -> Step:
    """Close the roster when it is full or no device is awaited; abandon the round when it stays too small."""
    secure, plan = under_way(state)
    members = state.current.members
    have = len(secure.advertised)  # who leaves takes its advertisement along
    fewest = plan.fewest_advertisers(state.plan.cohort)
    left = have + count_awaited(state, members, secure.advertised.keys(), most=max(1, fewest - have))
    if have >= plan.most_advertisers(state.plan.cohort) or (have == left and have >= fewest):
        return gather(state, at)
    if left < fewest:
        reason = f"{left} of {len(members)} devices are left, and a secure round takes {fewest}"
        return abandon(state, at, reason)
    return state, []


def time_is_up(state: RunState, at: float) -> Step:
    secure, plan = under_way(state)
    have, fewest = len(secure.advertised), plan.fewest_advertisers(state.plan.cohort)
    if have >= fewest:
        return gather(state, at)
    reason = (
        f"{have} of {len(state.current.members)} devices advertised keys by the deadline; a secure round takes {fewest}"
    )
    return abandon(state, at, reason)


def pending(state: RunState) -> list[fx.Action]:
    secure, _ = under_way(state)
    current = state.current
    waiting = awaited(state, current.members.keys(), secure.advertised.keys())
    announce = fx.Announce(round=current.number, attempt=current.attempt)
    return [fx.Wake(devices=waiting), route(state, waiting) if secure.header else announce]
