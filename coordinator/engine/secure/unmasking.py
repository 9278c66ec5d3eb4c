"""The unmasking phase: the survivors reveal shares, and the sum is opened.

::

    unmasking --> committing   Opened; tried once, as soon as every secret has enough shares
              --> abandoned    the time is up, or no sum can be opened: dealers that are proven at fault are barred
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.kinds import kind_of
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.secure import margin
from coordinator.engine.secure.attempts import (
    awaited,
    count_awaited,
    enter,
    exchange_deadline,
    go_on_with,
    present,
    route,
    under_way,
    with_deadline,
    with_secure,
)
from coordinator.engine.secure.holders import lacking
from coordinator.engine.secure.marks import with_barred
from coordinator.engine.secure.messages import accepted, answered, with_message, wrong_phase
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.secure.suspicion import faded, raised
from coordinator.engine.state import RunState, altered


def begin(state: RunState, at: float) -> Step:
    state = enter(state, "unmasking", at, exchange_deadline(state, at))
    return state, [record(state, "open"), route(state, under_way(state)[0].signed)]


def revealed(state: RunState, event: ev.Revealed) -> Step:
    answer = answered(state, event)
    if answer is not None:
        return answer
    state = with_message(state, event)
    following, more = open_if_complete(state, event.at)
    return following, [accepted(event), fx.Release(round=event.round, devices=(event.device,)), *more]


def open_if_complete(state: RunState, at: float) -> Step:
    """Open the sum as soon as every secret has enough shares; they have been compared with what the dealers signed."""
    secure, _ = under_way(state)
    if secure.opening:
        return state, []
    if not lacking(secure, secure.revealed, secure.shared):
        return _open(state, at)
    return (state, []) if _may_reveal(state) else _open_where_enough(state, at)


def time_is_up(state: RunState, at: float) -> Step:
    secure, _ = under_way(state)
    if secure.opening:  # only the opening is awaited
        return with_deadline(state, None), []
    return _open_where_enough(state, at)


def opened(state: RunState, event: ev.Opened) -> Step:
    """The sum of a group is opened: with the last one, commit them. The round learns nothing else."""
    secure, _ = under_way(state)
    if secure.sums.get(event.group) == event.digest:
        return state, []
    against = _not_opening(state, event)
    if against is not None:
        return refuse(state, *against)
    sums = {**secure.sums, event.group: event.digest}
    state = altered(state, suspicion=faded(state.suspicion, _listed(secure, event.group)))
    return _commit_if_opened(
        with_secure(state, replace(secure, sums=sums, weight=secure.weight + event.weight)), event.at
    )


def opening_failed(state: RunState, event: ev.OpeningFailed) -> Step:
    """The round goes on without this group, or ends; dealers that are proven at fault are barred, and without a proof
    all on the group's list are suspected."""
    against = _not_opening(state, event)
    if against is not None:
        return refuse(state, *against)
    secure, _ = under_way(state)
    reason = f"the sum cannot be used: {event.reason}"
    if event.lost:
        state = with_barred(state, event.lost, f"its secret could not be rebuilt in round {state.round_number}")
        reason = f"the secrets that {', '.join(event.lost)} shared cannot be rebuilt: {event.reason}"
    else:
        state = altered(state, suspicion=raised(state.suspicion, _listed(secure, event.group)))
    groups = secure.standing.keys() - {event.group}
    return go_on_with(state, event.at, groups, [reason], _commit_if_opened)


def _not_opening(state: RunState, event: ev.Opened | ev.OpeningFailed) -> tuple[str, str] | None:
    """Why the result of an opening comes too early or too late: (kind, reason), or None where it is awaited."""
    secure, _ = under_way(state)
    if secure.opening and event.group in secure.standing and event.group not in secure.sums:
        return None
    return wrong_phase(state, ("unmasking",)) or ("stale", f"no opening of round {event.round} is under way")


def _listed(secure: SecureRound, group: int) -> set[str]:
    return secure.masked.keys() & set(secure.groups[group].order)


def _commit_if_opened(state: RunState, at: float) -> Step:
    secure, _ = under_way(state)
    if secure.standing.keys() - secure.sums.keys():
        return state, []
    lost = len(secure.masked.keys() - secure.revealed.keys() - set(present(state, secure.masked)))
    state = margin.ended(state, secure, lost)
    state = enter(with_secure(state, replace(secure, opening=False)), "committing", at, None)
    return state, [fx.Release(round=state.round_number, devices=None), record(state, "open"), commit_sum_action(state)]


def commit_sum_action(state: RunState) -> fx.CommitSum:
    secure, _ = under_way(state)
    return fx.CommitSum(
        round=state.round_number,
        parent=state.checkpoint,
        sums=secure.sums,
        contributions=kind_of(state.current).contributions(state.current),
        named_tensors=state.named_tensors,
        small=state.small,
        settings=state.plan.settings_at(state.version),
    )


def pending(state: RunState) -> list[fx.Action]:
    secure, _ = under_way(state)
    current = state.current
    waiting = awaited(state, secure.signed.keys(), secure.revealed.keys())
    opening = [fx.Open(round=current.number, attempt=current.attempt)] if secure.opening else []
    return [route(state, waiting), *opening]


def _may_reveal(state: RunState) -> bool:
    """Whether a survivor may still reveal its shares: also one that has not signed yet."""
    secure, _ = under_way(state)
    return count_awaited(state, secure.masked.keys(), secure.revealed.keys(), most=1) > 0


def _open(state: RunState, at: float) -> Step:
    opening = fx.Open(round=state.round_number, attempt=state.current.attempt)
    return with_secure(state, replace(under_way(state)[0], opening=True)), [opening]


def _open_where_enough(state: RunState, at: float) -> Step:
    """Open the sums of the groups in which every secret has enough shares."""
    secure, _ = under_way(state)
    short = lacking(secure, secure.revealed, secure.shared)
    groups = {number for number, group in secure.standing.items() if not set(short) & set(group.order)}
    reason = f"{len(secure.revealed)} of {len(secure.masked)} survivors revealed their shares"
    reasons = [f"{reason}: {len(short)} secrets lack shares"]
    return go_on_with(state, at, groups, reasons, _open, secure.masked.keys() - secure.revealed.keys())
