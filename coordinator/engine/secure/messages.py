"""The parts that all device messages of a secure round share: is it in time and in turn, is it a repetition, and the
state with it and without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import assert_never

from coordinator.engine import effects as fx
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.secure import events as ev
from coordinator.engine.secure.attempts import under_way, with_secure
from coordinator.engine.secure.state import Exchange, SecureRound
from coordinator.engine.state import RoundPhase, RunState, altered, membership

Message = ev.Advertised | ev.Shared | ev.Complained | ev.PairsOpened | ev.Masked | ev.Signed | ev.Revealed

_ORDER = ("selecting", "collecting", "sharing", "masking", "agreeing", "unmasking", "committing")
_EXCHANGES: Mapping[type[Message], tuple[Exchange, tuple[RoundPhase, ...]]] = {
    ev.Advertised: ("advertised", ("collecting",)),
    ev.Shared: ("shared", ("sharing",)),
    ev.Complained: ("complained", ("masking",)),
    ev.PairsOpened: ("opened", ("masking",)),
    ev.Masked: ("masked", ("masking",)),
    ev.Signed: ("signed", ("agreeing", "unmasking", "committing")),
    ev.Revealed: ("revealed", ("unmasking",)),
}
"""Message -> its exchange, and the phases in which it is in time."""


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


def answered(state: RunState, event: Message) -> Step | None:
    """The answer to a message that changes nothing: refused, or sent before. None: it is to be accepted. It looks at
    this device alone, so that it can be asked before a body is read."""
    against = not_a_member(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against)
    exchange, phases = _EXCHANGES[type(event)]
    secure, _ = under_way(state)
    came = sent(secure, type(event))
    if isinstance(event, ev.PairsOpened):  # a dealer sends one for each time that it is shown complaints
        again = bool(event.holders) and secure.opened.get(event.device, {}).keys() >= set(event.holders)
    else:
        again = came.get(event.device) == event.digest
    if again:
        return state, [accepted(event)]
    if event.device in came and not isinstance(event, ev.PairsOpened):
        return refuse(state, "duplicate", "another message of this device came first in this exchange")
    binds = exchange in ("signed", "revealed")
    if state.current.members[event.device].status == "withdrawn" and not binds:
        return refuse(state, "withdrawn", "the device has withdrawn from this round")
    against = wrong_phase(state, phases)
    if against is not None and against[0] == "late" and exchange == "advertised":
        against = "late", f"the roster of attempt {event.attempt} of round {event.round} was closed without this device"
    against = against or _out_of_turn(secure, event, state.current.excluded)
    return None if against is None else refuse(state, *against)


def sent(secure: SecureRound, message: type[Message]) -> Mapping[str, str]:
    """Device -> digest of its message of this exchange, for those that have come."""
    found: Mapping[str, str] = getattr(secure, _EXCHANGES[message][0])
    return found


def _out_of_turn(secure: SecureRound, event: Message, out: Collection[str]) -> tuple[str, str] | None:
    """Why a message in time is refused: what must come before it has not come. (kind, reason), or None. ``out``: the
    devices that are excluded."""
    device = event.device
    match event:
        case ev.Advertised():
            announced = bool(secure.header)
            return None if announced else ("stale", f"the header of attempt {event.attempt} is not announced yet")
        case ev.Shared() if not secure.roster:
            return "stale", f"device {device} cannot share: there is no roster yet"
        case ev.Shared():
            return None if device in secure.group_of else ("not-selected", f"device {device} is not in the roster")
        case ev.Complained() if device in secure.masked:
            return "conflict", "the device has masked with these shares"
        case ev.Complained():
            fair = device in secure.shared and set(event.dealers) <= secure.shared.keys() - {device}
            return None if fair else ("invalid-request", "a sharer complains of other sharers")
        case ev.PairsOpened():
            asked = all(device in secure.complaints.get(holder, ()) for holder in event.holders)
            return None if asked else ("invalid-request", "a dealer opens the pairs of which their holders complain")
        case ev.Masked() if not set(secure.lacks.get(device, ())) <= set(out):
            return "conflict", "the device's complaint is not settled yet"
        case ev.Masked():
            return None if device in secure.shared else ("not-selected", f"device {device} has not shared its secrets")
        case ev.Signed():
            return None if device in secure.masked else ("not-selected", f"device {device} is not on the survivor list")
        case ev.Revealed():
            return (
                None if device in secure.signed else ("conflict", f"device {device} has not signed the survivor list")
            )
        case _:
            assert_never(event)


def with_message(state: RunState, event: Message) -> RunState:
    """The state with this message in it."""
    exchange, _ = _EXCHANGES[type(event)]
    secure, _ = under_way(state)
    member = state.current.members[event.device]
    state = state.with_member(event.device, altered(member, bytes=member.bytes + event.bytes))
    size = {**secure.bytes, exchange: secure.bytes.get(exchange, 0) + event.bytes}
    mine: object = event.digest
    if isinstance(event, ev.PairsOpened):
        mine = {**dict.fromkeys(event.holders, event.digest), **secure.opened.get(event.device, {})}
    came = {**sent(secure, type(event)), event.device: mine}
    return with_secure(state, altered(secure, bytes=size, **{exchange: came}))


def accepted(event: Message) -> fx.Accepted:
    """The answer to a message that was accepted."""
    return fx.Accepted(device=event.device, digest=event.digest, weight=0)
