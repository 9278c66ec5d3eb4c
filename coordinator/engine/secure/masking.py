"""Exchanges 2 and 3: devices share their secrets, then mask. A failure here costs only time: no device is spent.

::

    sharing --> masking     all of the roster have shared, or the deadline: with enough sharers
    masking --> agreeing    all sharers have masked, or the deadline: with enough survivors; the list is fixed

*Enough* is max(quorum, threshold, the shortest list that devices sign), with at least ``threshold`` share holders of
every secret among them. Where that cannot be reached, the next attempt begins (``keying.fresh``).
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine.phases.collecting import refuse
from coordinator.engine.phases.lifecycle import Step, record
from coordinator.engine.secure import events as ev
from coordinator.engine.secure.holders import enough, needed
from coordinator.engine.secure.keying import fresh, gather_again, gather_if_complete
from coordinator.engine.secure.messages import (
    accepted,
    answered,
    exchange_deadline,
    not_a_member,
    present,
    refused,
    route,
    under_way,
    with_message,
    with_secure,
    without,
    wrong_phase,
)
from coordinator.engine.state import RunState


def shared(state: RunState, event: ev.Shared) -> Step:
    answer = answered(state, event, "shared", ("sharing",))
    if answer is not None:
        return answer
    secure, _ = under_way(state)
    if event.device not in secure.order:
        why = "is not in the roster" if secure.roster else "cannot share: there is no roster yet"
        return refused(state, event, "not-selected" if secure.roster else "stale", f"device {event.device} {why}")
    following, more = go_on(with_message(state, event, "shared"), event.at)
    return following, [accepted(event), *more]


def masked(state: RunState, event: ev.Masked) -> Step:
    answer = answered(state, event, "masked", ("masking",))
    if answer is not None:
        return answer
    secure, _ = under_way(state)
    if event.device not in secure.shared:
        return refused(state, event, "not-selected", f"device {event.device} has not shared its secrets")
    if event.device in secure.complaints:
        return refused(state, event, "conflict", "the device has reported that it cannot mask")
    following, more = go_on(with_message(state, event, "masked"), event.at)
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


def faulted(state: RunState, event: ev.Faulted) -> Step:
    """Exclude the device from this round: its message of the exchange under way does not count."""
    against = not_a_member(state, event.round, event.attempt, event.device)
    if against is not None:
        return (state, []) if _left_out(state, event.device) else refuse(state, *against)
    against = wrong_phase(state, ("collecting", "sharing", "masking"))
    if against is not None:
        return refuse(state, *against)
    excluded = {**state.current.excluded, event.device: event.reason}
    refusals = _refusal_of_masked(state, event)
    state = state.with_round(replace(state.current, excluded=excluded))
    following, more = _dropped(state, event.at, event.device)
    return following, [*refusals, fx.Release(round=event.round, devices=(event.device,)), *more]


def withdrew(state: RunState, at: float, device: str) -> Step:
    """The device sends nothing more. A masked vector that it has sent stays in the sum."""
    return _dropped(state, at, device, keep_masked=True)


def _dropped(state: RunState, at: float, device: str, *, keep_masked: bool = False) -> Step:
    """Continue without a device that the state already shows as excluded or withdrawn."""
    secure, _ = under_way(state)
    if state.phase == "collecting":
        state = with_secure(state, without(secure, "advertised", device))
        member = state.current.members[device]
        if member.status == "reported":
            state = state.with_member(device, replace(member, status="training"))
        return gather_if_complete(state, at)
    if state.phase == "sharing" and not secure.roster:
        if device not in secure.advertised:
            return state, []
        return gather_again(with_secure(state, without(secure, "advertised", device)), at)
    if state.phase == "sharing":
        state = with_secure(state, without(secure, "shared", device))
    elif not keep_masked:
        state = with_secure(state, without(secure, "masked", device))
    return go_on(state, at)


def _left_out(state: RunState, device: str) -> bool:
    return state.round is not None and device in state.round.excluded


def _refusal_of_masked(state: RunState, event: ev.Faulted) -> list[fx.Effect]:
    """The recorded reason why an acknowledged masked vector is refused after all."""
    digest = under_way(state)[0].masked.get(event.device)
    if digest is None:
        return []
    why = f"the device was left out: {event.reason}"
    return [fx.RecordRefusal(round=event.round, device=event.device, digest=digest, kind="invalid-update", reason=why)]


def awaited(state: RunState) -> tuple[str, ...]:
    """The devices that may still send their message of this exchange."""
    secure, _ = under_way(state)
    if state.phase == "sharing":
        return tuple(device for device in present(state, secure.order) if device not in secure.shared)
    gone = secure.masked.keys() | secure.complaints.keys()
    return tuple(device for device in present(state, secure.shared) if device not in gone)


def go_on(state: RunState, at: float, *, time_is_up: bool = False) -> Step:
    """End the exchange when all messages have arrived or the time is up; begin the next one, or a new attempt."""
    secure, _ = under_way(state)
    have = secure.shared if state.phase == "sharing" else secure.masked
    quiet = awaited(state)
    wanted = needed(state.plan.cohort.quorum_count, secure)
    if quiet and not time_is_up and len(have) + len(quiet) >= wanted:
        return state, []
    if enough(state.plan.cohort.quorum_count, secure, have, secure.shared):
        return _to_masking(state, at) if state.phase == "sharing" else _to_agreeing(state, at)
    done, of = ("shared", len(secure.order)) if state.phase == "sharing" else ("masked", len(secure.shared))
    reason = f"{len(have)} of {of} devices {done} in attempt {state.current.attempt}"
    reason += f"; it takes {wanted}" if len(have) < wanted else ", too few of them share holders of one device"
    return fresh(state, at, reason, quiet if time_is_up else ())


def _to_masking(state: RunState, at: float) -> Step:
    state = state.with_round(replace(state.current, phase="masking", deadline=exchange_deadline(state, at)))
    secure, _ = under_way(state)
    return state, [record(state, "open"), route(state, secure.shared)]


def _to_agreeing(state: RunState, at: float) -> Step:
    """From here on the list is fixed, and devices that are not on it are released."""
    state = state.with_round(replace(state.current, phase="agreeing", deadline=exchange_deadline(state, at)))
    secure, _ = under_way(state)
    others = tuple(sorted(set(state.current.members) - secure.masked.keys()))
    free = [fx.Release(round=state.round_number, devices=others)] if others else []
    return state, [*free, record(state, "open"), route(state, secure.masked)]
