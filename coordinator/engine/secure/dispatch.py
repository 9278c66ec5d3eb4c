"""Dispatches the events of a secure round to the phases, and lists the actions that must be in flight in each phase.

::

    selecting --> collecting --> sharing --> masking --> agreeing --> unmasking --> committing
       Drawn        Advertised      Shared      Masked      Signed       Revealed      CommitSum
                    \\___ keying ___/ \\____ masking ____/ \\_______ unmasking ______/
                         ^                    |
                         +---- attempt + 1 ---+      before any device could sign, under new keys

From *agreeing* on the survivor list is fixed and there is no further attempt: a device that signs is spent on this
checkpoint. The engine sees digests and counts only, never keys, shares or vectors.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.collecting import membership, refuse
from coordinator.engine.phases.lifecycle import Step
from coordinator.engine.secure import keying, masking, unmasking
from coordinator.engine.secure.exhausted import advance_action, advanced
from coordinator.engine.secure.messages import present, route, under_way
from coordinator.engine.state import RunState

OfAttempt = (
    ev.Announced
    | ev.Advertised
    | ev.Rostered
    | ev.Shared
    | ev.Masked
    | ev.Complained
    | ev.Faulted
    | ev.Spent
    | ev.Signed
    | ev.Revealed
    | ev.Opened
    | ev.OpeningFailed
)
SecureEvent = OfAttempt | ev.Discarded | ev.Advanced


def happened(state: RunState, event: SecureEvent) -> Step:
    """The new state and the effects of one of these events. Total, like ``rounds.step``."""
    match event:
        case ev.Discarded():
            return _discarded(state, event)
        case ev.Advanced():
            return advanced(state, event)
        case ev.Advertised():
            return keying.advertised(state, event)
        case ev.Shared():
            return masking.shared(state, event)
        case ev.Masked():
            return masking.masked(state, event)
        case ev.Complained():
            return masking.complained(state, event)
        case ev.Faulted():
            return masking.faulted(state, event)
        case ev.Spent():
            return spent(state, event)
        case ev.Signed():
            return unmasking.signed(state, event)
        case ev.Revealed():
            return unmasking.revealed(state, event)
        case _:
            return _performed(state, event)


def _performed(state: RunState, event: ev.Announced | ev.Rostered | ev.Opened | ev.OpeningFailed) -> Step:
    """The results of the coordinator's own actions; stale where the attempt is over."""
    current = state.round
    if current is None or current.secure is None or (event.round, event.attempt) != (current.number, current.attempt):
        reason = f"attempt {event.attempt} of round {event.round} is not under way as a secure round"
        return refuse(state, "stale", reason)
    match event:
        case ev.Announced():
            return keying.announced(state, event)
        case ev.Rostered():
            return keying.rostered(state, event)
        case ev.Opened():
            return unmasking.opened(state, event)
        case ev.OpeningFailed():
            return unmasking.opening_failed(state, event)


def reported(state: RunState, event: ev.Reported) -> Step:
    """A secure round refuses every plain update."""
    against = membership(state, event.round, event.attempt, event.device)
    reason = "this round is secure: a device advertises keys and sends its update masked"
    return refuse(state, *(against or ("invalid-update", reason)))


def withdrew(state: RunState, event: ev.Withdrew) -> Step:
    """A device may withdraw from a secure round at any time. A vector that it has masked stays in the sum."""
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against)
    member = state.current.members[event.device]
    if member.status == "withdrawn" or event.device in state.current.excluded or state.phase == "committing":
        return state, []
    state = state.with_member(event.device, replace(member, status="withdrawn"))
    if state.phase == "agreeing":
        following, more = unmasking.agree_if_complete(state, event.at)
    elif state.phase == "unmasking":
        following, more = unmasking.open_if_complete(state, event.at)
    else:
        following, more = masking.withdrew(state, event.at, event.device)
    return following, [fx.Release(round=event.round, devices=(event.device,)), *more]


def spent(state: RunState, event: ev.Spent) -> Step:
    """A device reports that it is spent: no cohort of this checkpoint is drawn with it any more. The report needs no
    proof, since a false one harms only that device."""
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against)
    if state.current.secure is None:
        return refuse(state, "stale", f"round {event.round} is not a secure round")
    if event.device in state.spent:
        return state, []
    reason = "it has signed on this checkpoint in an earlier round"
    state = replace(state, spent=tuple(sorted({*state.spent, event.device})))
    return withdrew(
        state, ev.Withdrew(at=event.at, round=event.round, attempt=event.attempt, device=event.device, reason=reason)
    )


def time_is_up(state: RunState, at: float) -> Step:
    """The deadline of a phase of a secure round has passed."""
    match state.phase:
        case "collecting":
            return keying.time_to_advertise_is_up(state, at)
        case "sharing" if not under_way(state)[0].roster:
            return keying.fresh(state, at, "the attempt expired before its roster was there")
        case "sharing" | "masking":
            return masking.go_on(state, at, time_is_up=True)
        case "agreeing":
            return unmasking.agreed(state, at)
        case _:
            return unmasking.time_to_reveal_is_up(state, at)


def pending(state: RunState) -> list[fx.Action]:
    """The actions that must be in flight in a secure round, in its own phases and in *collecting* and *committing*."""
    current = state.current
    if current.advancing:
        return [advance_action(state)]
    secure = current.secure
    if secure is None:
        return []
    match current.phase:
        case "collecting":
            waiting = tuple(d for d in present(state, current.members) if d not in secure.advertised)
            announce = fx.Announce(round=current.number, attempt=current.attempt)
            return [fx.Wake(devices=waiting), route(state, waiting) if secure.header else announce]
        case "sharing" if not secure.roster:
            return [keying.gather_action(state)]
        case "sharing" | "masking":
            return [route(state, masking.awaited(state))]
        case "agreeing":
            return [route(state, (d for d in present(state, secure.masked) if d not in secure.signed))]
        case "unmasking":
            waiting = tuple(d for d in present(state, secure.signed) if d not in secure.revealed)
            opening = [fx.Open(round=current.number, attempt=current.attempt)] if secure.opening else []
            return [route(state, waiting), *opening]
        case "committing":
            return [unmasking.commit_sum_action(state)]
        case _:
            return []


def _discarded(state: RunState, event: ev.Discarded) -> Step:
    """All blobs of that round are deleted."""
    if event.round not in state.leftovers:
        return state, []
    rest = {number: blobs for number, blobs in state.leftovers.items() if number != event.round}
    return replace(state, leftovers=rest), []
