"""The unmasking phase: the survivors reveal shares, and the sum is opened.

::

    unmasking --> committing   Opened; tried as soon as every secret has enough shares, once more at the end
              --> abandoned    the time is up, or no sum can be opened: dealers of secrets that are lost are barred
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.lifecycle import abandon
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.secure.attempts import exchange_deadline, present, route, under_way, with_deadline, with_secure
from coordinator.engine.secure.holders import lacking
from coordinator.engine.secure.messages import accepted, answered, refused, with_message, wrong_phase
from coordinator.engine.state import RunState


def begin(state: RunState, at: float) -> Step:
    state = state.with_round(replace(state.current, phase="unmasking", deadline=exchange_deadline(state, at)))
    return state, [record(state, "open"), route(state, under_way(state)[0].signed)]


def revealed(state: RunState, event: ev.Revealed) -> Step:
    answer = answered(state, event, "revealed", ("unmasking",))
    if answer is not None:
        return answer
    if event.device not in under_way(state)[0].signed:
        return refused(state, event, "conflict", f"device {event.device} has not signed the survivor list")
    state = with_message(state, event, "revealed")
    following, more = open_if_complete(state, event.at)
    return following, [accepted(event), fx.Release(round=event.round, devices=(event.device,)), *more]


def open_if_complete(state: RunState, at: float) -> Step:
    """Open the sum as soon as every secret has enough shares; after a failure, when all have revealed."""
    secure, _ = under_way(state)
    if secure.opening:
        return state, []
    waiting = _silent(state)
    if secure.failed:
        return _once_more(state, at) if not waiting else (state, [])
    if not lacking(secure, secure.revealed, secure.shared):
        return _open(state)
    return (state, []) if waiting else _too_few_revealed(state, at)


def time_is_up(state: RunState, at: float) -> Step:
    secure, _ = under_way(state)
    if secure.opening:  # only the opening is awaited
        return with_deadline(state, None), []
    return _once_more(state, at) if secure.failed else _too_few_revealed(state, at)


def opened(state: RunState, event: ev.Opened) -> Step:
    """The sum is opened: commit it. The round learns nothing else."""
    secure, _ = under_way(state)
    if secure.sum == event.digest:
        return state, []
    against = wrong_phase(state, ("unmasking",))
    if against is not None:
        return refuse(state, *against)
    if not secure.opening and not secure.failed:
        return refuse(state, "stale", f"no opening of round {event.round} is under way")
    secure = replace(secure, opening=0, sum=event.digest, weight=event.weight, set_aside=event.set_aside)
    state = state.with_round(replace(state.current, phase="committing", deadline=None, secure=secure))
    return state, [fx.Release(round=state.round_number, devices=None), record(state, "open"), commit_sum_action(state)]


def opening_failed(state: RunState, event: ev.OpeningFailed) -> Step:
    """More shares may rebuild the lost secrets; an impossible sum ends the round."""
    against = wrong_phase(state, ("unmasking",))
    if against is not None:
        return refuse(state, *against)
    secure, _ = under_way(state)
    if not secure.opening:
        return refuse(state, "stale", f"no opening of round {event.round} is under way")
    if not event.lost:
        return abandon(state, event.at, f"the sum cannot be used: {event.reason}")
    again = not secure.failed
    secure = replace(secure, opening=0, failed=secure.opening, lost=event.lost, failure=event.reason)
    state = with_secure(state, secure)
    if not again:
        return _give_up_lost(state, event.at)
    time_is_up = state.deadline is None or event.at >= state.deadline
    return _once_more(state, event.at) if time_is_up or not _silent(state) else (state, [])


def commit_sum_action(state: RunState) -> fx.CommitSum:
    secure, _ = under_way(state)
    return fx.CommitSum(
        round=state.round_number,
        parent=state.checkpoint,
        sum=secure.sum,
        weight=secure.weight,
        contributions=state.current.contributions,
        optimizer=state.optimizer,
    )


def pending(state: RunState) -> list[fx.Action]:
    secure, _ = under_way(state)
    current = state.current
    waiting = tuple(device for device in present(state, secure.signed) if device not in secure.revealed)
    opening = [fx.Open(round=current.number, attempt=current.attempt)] if secure.opening else []
    return [route(state, waiting), *opening]


def _silent(state: RunState) -> list[str]:
    """Survivors that may still reveal their shares, those that have not signed yet included."""
    secure, _ = under_way(state)
    return [device for device in present(state, secure.masked) if device not in secure.revealed]


def _open(state: RunState) -> Step:
    secure, _ = under_way(state)
    state = with_secure(state, replace(secure, opening=len(secure.revealed)))
    return state, [fx.Open(round=state.round_number, attempt=state.current.attempt)]


def _once_more(state: RunState, at: float) -> Step:
    """Open a second time, where more shares have arrived."""
    secure, _ = under_way(state)
    if len(secure.revealed) <= secure.failed:
        return _give_up_lost(state, at)
    state, effects = _open(state)
    return with_deadline(state, None), effects


def _give_up_lost(state: RunState, at: float) -> Step:
    """Abandon the round, and bar the dealers whose secret cannot be rebuilt."""
    secure, _ = under_way(state)
    why = f"its secret could not be rebuilt in round {state.round_number}"
    state = replace(state, barred={**state.barred, **dict.fromkeys(secure.lost, why)})
    names = ", ".join(secure.lost)
    return abandon(state, at, f"the secrets that {names} shared cannot be rebuilt: {secure.failure}")


def _too_few_revealed(state: RunState, at: float) -> Step:
    secure, _ = under_way(state)
    short = lacking(secure, secure.revealed, secure.shared)
    reason = f"{len(secure.revealed)} of {len(secure.masked)} survivors revealed their shares"
    return abandon(state, at, f"{reason}: {len(short)} secrets lack shares")
