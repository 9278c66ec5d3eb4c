"""The parts that all device messages of a secure round share: is it in time, is it a repetition, and the state with it
and without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from coordinator.engine import effects as fx
from coordinator.engine.phases.refusing import Step, membership, refuse
from coordinator.engine.secure import events as ev
from coordinator.engine.secure.attempts import under_way, with_secure
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import RunState

Message = ev.Advertised | ev.Shared | ev.Masked | ev.Signed | ev.Revealed
Exchange = Literal["advertised", "shared", "masked", "signed", "revealed"]

_ORDER = ("selecting", "collecting", "sharing", "masking", "agreeing", "unmasking", "committing")


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
    """The answer to a message that changes nothing: refused, or sent before. None: it is to be accepted."""
    against = not_a_member(state, event.round, event.attempt, event.device)
    if against is not None:
        return refused(state, event, *against)
    sent: Mapping[str, str] = getattr(state.current.secure, exchange)
    if sent.get(event.device) == event.digest:
        return state, [accepted(event)]
    if event.device in sent:
        return refused(state, event, "duplicate", "another message of this device came first in this exchange")
    binds = exchange in ("signed", "revealed")
    if state.current.members[event.device].status == "withdrawn" and not binds:
        return refused(state, event, "withdrawn", "the device has withdrawn from this round")
    against = wrong_phase(state, phases)
    if against is not None and against[0] == "late" and exchange == "advertised":
        against = "late", f"the roster of attempt {event.attempt} of round {event.round} was closed without this device"
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
    sent: Mapping[str, str] = getattr(secure, exchange)
    member = state.current.members[event.device]
    state = state.with_member(event.device, replace(member, bytes=member.bytes + event.bytes))
    size = {**secure.bytes, exchange: secure.bytes.get(exchange, 0) + event.bytes}
    more: dict[str, Mapping[str, str]] = {exchange: {**sent, event.device: event.digest}}
    return with_secure(state, replace(secure, bytes=size, **more))  # type: ignore[arg-type]


def without(secure: SecureRound, exchange: Exchange, device: str) -> SecureRound:
    """The attempt without what this device sent in an exchange; its blob is deleted when the round ends."""
    sent: Mapping[str, str] = getattr(secure, exchange)
    if device not in sent:
        return secure
    rest: dict[str, Mapping[str, str]] = {exchange: {other: sent[other] for other in sent if other != device}}
    return replace(secure, older=(*secure.older, sent[device]), **rest)  # type: ignore[arg-type]


def accepted(event: Message) -> fx.Accepted:
    """The answer to a message that was accepted."""
    return fx.Accepted(device=event.device, digest=event.digest, weight=0)
