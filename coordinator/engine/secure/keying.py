"""Keying: a cohort is drawn, trains and advertises keys, and the roster is made; repeated where an attempt failed.

::

    drawn --> collecting (header announced, devices train and advertise)
                  |  cohort.goal and secure.reserve have advertised, or no device is awaited, or the deadline:
                  |  with at least max(quorum, minimum_cohort)
                  v
              sharing, without a roster (Gather) --> sharing, with it: see ``masking``
                  ^
    fresh --------+  before exchange 4: attempt + 1 under new keys, at most ``secure.attempts`` attempts
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.collecting import refuse
from coordinator.engine.phases.lifecycle import Step, abandon, contributions, record
from coordinator.engine.secure.complaints import excluded_by_complaints
from coordinator.engine.secure.exhausted import why_exhausted
from coordinator.engine.secure.messages import (
    accepted,
    answered,
    exchange_deadline,
    present,
    refused,
    route,
    under_way,
    with_deadline,
    with_message,
    with_secure,
    wrong_phase,
)
from coordinator.engine.secure.plan import Secure
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import Member, RunState


def drawn(state: RunState, event: ev.Drawn, plan: Secure) -> Step:
    """The cohort begins to train, where it is large enough for a roster without spent and barred devices."""
    cohort = [(device, n) for device, n in event.cohort if device not in state.barred and device not in state.spent]
    fewest = plan.fewest_advertisers(state.plan.cohort)
    current = replace(state.current, waiting=event.waiting, pool=event.pool)
    if len(cohort) < fewest:
        exhausted = why_exhausted(state, event, fewest)
        found = exhausted or f"{event.waiting} eligible devices waited; a secure round needs at least {fewest}"
        state = replace(state, round=current, exhausted=exhausted or state.exhausted)
        return abandon(state, event.at, f"{found}. {event.others}" if event.others else found)
    deadline = event.at + state.plan.cohort.collect_s
    current = replace(
        current,
        phase="collecting",
        collecting_at=event.at,
        deadline=deadline,
        members={device: Member(examples=examples) for device, examples in cohort},
        secure=SecureRound(),
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
    answer = answered(state, event, "advertised", ("collecting",))
    if answer is not None:
        return answer
    if not under_way(state)[0].header:
        return refused(state, event, "stale", f"the header of attempt {event.attempt} has not been announced yet")
    state = with_message(state, event, "advertised")
    state = state.with_member(event.device, replace(state.current.members[event.device], status="reported"))
    following, more = gather_if_complete(state, event.at)
    return following, [accepted(event), *more]


def gather_if_complete(state: RunState, at: float) -> Step:
    """Close the roster when it is full or no device is awaited; abandon the round when it stays too small."""
    secure, plan = under_way(state)
    members = state.current.members
    have, left = len(secure.advertised), len(present(state, members))
    fewest = plan.fewest_advertisers(state.plan.cohort)
    if have >= plan.most_advertisers(state.plan.cohort) or (have == left and have >= fewest):
        return gather(state, at)
    if left < fewest:
        reason = f"{left} of {len(members)} devices are left, and a secure round takes {fewest}"
        return abandon(state, at, reason)
    return state, []


def time_to_advertise_is_up(state: RunState, at: float) -> Step:
    secure, plan = under_way(state)
    have, fewest = len(secure.advertised), plan.fewest_advertisers(state.plan.cohort)
    if have >= fewest:
        return gather(state, at)
    reason = (
        f"{have} of {len(state.current.members)} devices advertised keys by the deadline; a secure round takes {fewest}"
    )
    return abandon(state, at, reason)


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
    if list(event.order) != sorted(secure.advertised):
        return refuse(state, "stale", "this is not the roster of the devices that have advertised")
    secure = replace(
        secure,
        roster=event.digest,
        order=event.order,
        threshold=event.threshold,
        signers=event.signers,
        fewest=event.fewest,
        ring=event.ring,
        neighbours=event.neighbours,
    )
    state = with_secure(state, secure)
    state = with_deadline(state, exchange_deadline(state, event.at))
    return state, [record(state, "open"), route(state, present(state, secure.order))]


def fresh(state: RunState, at: float, reason: str, silent: tuple[str, ...] = ()) -> Step:
    """End this attempt, before any device could sign, and begin the next one without the devices that failed."""
    secure, plan = under_way(state)
    current = state.current
    quiet = dict.fromkeys(silent, f"it did not answer in the {current.phase} of attempt {current.attempt}")
    current = replace(current, excluded={**quiet, **excluded_by_complaints(secure.complaints), **current.excluded})
    state = state.with_round(current)
    left, fewest = present(state, current.members), plan.fewest_advertisers(state.plan.cohort)
    if current.attempt + 1 >= plan.attempts:
        times = f"{plan.attempts} time{'s' if plan.attempts > 1 else ''}"
        return abandon(state, at, f"{reason}; it was keyed {times}, the most that the plan allows")
    if len(left) < fewest:
        return abandon(state, at, f"{reason}; {len(left)} devices are left to key it anew, and it takes {fewest}")
    refusals = [
        fx.RecordRefusal(
            round=current.number,
            device=item.device,
            digest=item.digest,
            kind="abandoned",
            reason=f"attempt {current.attempt} of the round was given up: {reason}",
        )
        for item in contributions(current)
    ]
    current = replace(
        current,
        phase="collecting",
        attempt=current.attempt + 1,
        deadline=at + plan.exchange_s,
        secure=SecureRound(older=secure.blobs),
        members={
            device: replace(member, status="training") if member.status == "reported" else member
            for device, member in current.members.items()
        },
    )
    state = state.with_round(current)
    return state, [
        *refusals,
        fx.Release(round=current.number, devices=None),
        fx.Claim(round=current.number, attempt=current.attempt, devices=left, until=at + plan.exchange_s),
        record(state, "open"),
        fx.Announce(round=current.number, attempt=current.attempt),
    ]
