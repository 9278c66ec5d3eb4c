"""The checks that all devices' messages of a secure round share: membership, phase and repetition; and how the state
records a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from coordinator.engine import effects as fx
from coordinator.engine.phases.collecting import membership, refuse
from coordinator.engine.phases.lifecycle import Step
from coordinator.engine.secure import events as ev
from coordinator.engine.secure.plan import Secure
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import RunState

Message = ev.Advertised | ev.Shared | ev.Masked | ev.Signed | ev.Revealed
Exchange = Literal["advertised", "shared", "masked", "signed", "revealed"]

_ORDER = ("selecting", "collecting", "sharing", "masking", "agreeing", "unmasking", "committing")


def under_way(state: RunState) -> tuple[SecureRound, Secure]:
    """The attempt and the plan's section ``[secure]``; only for states with a secure round under way."""
    secure = state.current.secure
    if secure is None or state.plan.secure is None:
        raise AssertionError(f"round {state.round_number} of run {state.run} is not a secure round under way")
    return secure, state.plan.secure


def with_secure(state: RunState, secure: SecureRound) -> RunState:
    """The state with this attempt."""
    return state.with_round(replace(state.current, secure=secure))


def with_deadline(state: RunState, deadline: float | None) -> RunState:
    """The state with this deadline of its phase."""
    return state.with_round(replace(state.current, deadline=deadline))


def not_a_member(state: RunState, round: int, attempt: int, device: str) -> tuple[str, str] | None:
    """Why this device does not belong to this attempt: (kind, reason), or None where it does."""
    against = membership(state, round, attempt, device)
    if against is not None:
        return against
    if state.current.secure is None:
        return "stale", f"round {round} is not a secure round"
    why = state.current.excluded.get(device)
    if why is not None:
        return "not-selected", f"device {device} was left out of round {round}: {why}"
    return None


def wrong_phase(state: RunState, phases: tuple[str, ...]) -> tuple[str, str] | None:
    """Why a message of these phases comes too early or too late: (kind, reason), or None where it is in time."""
    if state.phase in phases:
        return None
    what = f"the {phases[0]} of attempt {state.current.attempt} of round {state.round_number}"
    if state.phase in _ORDER and _ORDER.index(state.phase) < _ORDER.index(phases[0]):
        return "stale", f"{what} has not begun: it is {state.phase}"
    return "late", f"{what} has ended: it is {state.phase}"


def answered(state: RunState, event: Message, exchange: Exchange, phases: tuple[str, ...]) -> Step | None:
    """The answer to a message that changes nothing: refused, or repeated. None: it is to be accepted."""
    against = not_a_member(state, event.round, event.attempt, event.device)
    if against is not None:
        return refused(state, event, *against)
    received: Mapping[str, str] = getattr(state.current.secure, exchange)
    if received.get(event.device) == event.digest:
        return state, [accepted(event)]
    if event.device in received:
        return refused(state, event, "duplicate", "another message of this device came first in this exchange")
    binds = exchange in ("signed", "revealed")
    if state.current.members[event.device].status == "withdrawn" and not binds:
        return refused(state, event, "withdrawn", "the device has withdrawn from this round")
    against = wrong_phase(state, phases)
    return None if against is None else refused(state, event, *against)


def refused(state: RunState, event: Message, kind: str, reason: str) -> Step:
    """The state unchanged and the reason. For a masked vector that is too late it is recorded, as for an update."""
    step = refuse(state, kind, reason)
    if isinstance(event, ev.Masked) and kind in ("late", "duplicate", "withdrawn"):
        step[1].append(
            fx.RecordRefusal(round=event.round, device=event.device, digest=event.digest, kind=kind, reason=reason)
        )
    return step


def with_message(state: RunState, event: Message, exchange: Exchange) -> RunState:
    """The state with this message in it."""
    secure, _ = under_way(state)
    received: Mapping[str, str] = getattr(secure, exchange)
    member = state.current.members[event.device]
    state = state.with_member(event.device, replace(member, bytes=member.bytes + event.bytes))
    more: dict[str, Mapping[str, str]] = {exchange: {**received, event.device: event.digest}}
    return with_secure(state, replace(secure, **more))  # type: ignore[arg-type]


def without(secure: SecureRound, exchange: Exchange, device: str) -> SecureRound:
    """The attempt without this device's message of an exchange; its blob is deleted when the round ends."""
    received: Mapping[str, str] = getattr(secure, exchange)
    if device not in received:
        return secure
    rest: dict[str, Mapping[str, str]] = {exchange: {other: received[other] for other in received if other != device}}
    return replace(secure, older=(*secure.older, received[device]), **rest)  # type: ignore[arg-type]


def accepted(event: Message) -> fx.Accepted:
    """The answer to a message that was accepted."""
    return fx.Accepted(device=event.device, digest=event.digest, weight=0)


def present(state: RunState, devices: Iterable[str]) -> tuple[str, ...]:
    """Those of these devices that are neither withdrawn nor excluded, sorted."""
    members, gone = state.current.members, state.current.excluded
    return tuple(sorted(d for d in devices if d not in gone and members[d].status != "withdrawn"))


def route(state: RunState, devices: Iterable[str]) -> fx.Route:
    """The hint that the answers of this phase are ready for these devices."""
    current = state.current
    return fx.Route(round=current.number, attempt=current.attempt, phase=current.phase, devices=tuple(sorted(devices)))


def exchange_deadline(state: RunState, at: float) -> float:
    """The deadline of an exchange that begins now: never after the attempt has expired."""
    secure, plan = under_way(state)
    return min(at + plan.exchange_s, float(secure.expires_at))
