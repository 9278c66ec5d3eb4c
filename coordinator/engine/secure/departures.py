"""Removes a device from a secure round: it withdraws, is at fault, is spent, or declines the checkpoint. The exchange
continues without it.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.reasons import printable
from coordinator.engine.secure import agreeing, collecting, masking, sharing, unmasking
from coordinator.engine.secure.attempts import under_way, with_secure
from coordinator.engine.secure.complaints import left_out
from coordinator.engine.secure.marks import with_spent
from coordinator.engine.secure.messages import not_a_member, wrong_phase
from coordinator.engine.state import RunState, membership


def withdrew(state: RunState, event: ev.Withdrew) -> Step:
    """A device may withdraw from a secure round at any time. A vector that it has masked stays in the sum. Once the
    list is fixed, the round has let go of the devices that are not on it, and nothing changes."""
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against)
    member = state.current.members[event.device]
    if member.status == "withdrawn" or event.device in state.current.excluded or state.phase == "committing":
        return state, []
    if state.phase in ("agreeing", "unmasking") and event.device not in under_way(state)[0].masked:
        return state, []
    state = state.with_member(event.device, replace(member, status="withdrawn", reason=printable(event.reason)))
    following, more = _without(state, event.at, event.device)
    return following, [fx.Release(round=event.round, devices=(event.device,)), *more]


def spent(state: RunState, event: ev.Spent) -> Step:
    """A device reports that it is spent: no later cohort of this checkpoint has it. The report needs no proof,
    since a false one harms only that device."""
    against = _not_in_secure_round(state, event)
    if against is not None:
        return refuse(state, *against)
    if event.device in state.spent:
        return state, []
    state, mark = with_spent(state, event.device)
    following, more = _leaves(state, event, "it has signed on this checkpoint in an earlier round")
    return following, [mark, *more]


def declined(state: RunState, event: ev.Declined) -> Step:
    """A device reports that it is final: no later cohort of this run on this checkpoint has it. It is believed, as
    ``spent`` is."""
    against = _not_in_secure_round(state, event)
    if event.late and is_declined_late(state, event.round):
        against = None
    if against is not None:
        return refuse(state, *against)
    if event.device in state.spent or event.device in state.declined:
        return state, []
    state = replace(state, declined={**state.declined, event.device: printable(event.reason)})
    return (state, []) if event.late else _leaves(state, event, event.reason)


def is_declined_late(state: RunState, round: int) -> bool:
    """Whether that round is over without another model, so that what a device declined there is still asked for."""
    ended = round < state.round_number + (state.round is None)
    return ended and not state.over and round > max(state.made_by, default=0)


def _not_in_secure_round(state: RunState, event: ev.Spent | ev.Declined) -> tuple[str, str] | None:
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return against
    if state.current.secure is None:
        return "stale", f"round {event.round} is not a secure round"
    return None


def _leaves(state: RunState, event: ev.Spent | ev.Declined, reason: str) -> Step:
    return withdrew(
        state, ev.Withdrew(at=event.at, round=event.round, attempt=event.attempt, device=event.device, reason=reason)
    )


def faulted(state: RunState, event: ev.Faulted) -> Step:
    """The device leaves this round: its messages of the current exchange do not count."""
    against = not_a_member(state, event.round, event.attempt, event.device)
    if against is not None:
        again = state.round is not None and event.device in state.round.excluded
        return (state, []) if again else refuse(state, *against)
    against = wrong_phase(state, ("collecting", "sharing", "masking"))
    if against is not None:
        return refuse(state, *against)
    if state.phase == "masking":
        state, refusals = left_out(state, event.at, event.device, event.reason)
    else:
        excluded, refusals = {**state.current.excluded, event.device: event.reason}, []
        state = state.with_round(replace(state.current, excluded=excluded))
    following, more = _without(state, event.at, event.device)
    return following, [*refusals, fx.Release(round=event.round, devices=(event.device,)), *more]


def _without(state: RunState, at: float, device: str) -> Step:
    """The exchange continues without a device that is withdrawn or excluded in the state. A vector that it has masked
    stays in the sum where it is there."""
    secure, _ = under_way(state)
    match state.phase:
        case "collecting":
            return collecting.gather_if_complete(with_secure(state, secure.without("advertised", device)), at)
        case "sharing" if not secure.roster:
            if device not in secure.advertised:
                return state, []
            return sharing.gather_again(with_secure(state, secure.without("advertised", device)), at)
        case "sharing":
            return sharing.go_on(with_secure(state, secure.without("shared", device)), at)
        case "masking":
            return masking.go_on(state, at)
        case "agreeing":
            return agreeing.agree_if_complete(state, at)
        case "unmasking":
            return unmasking.open_if_complete(state, at)
        case _:
            return state, []
