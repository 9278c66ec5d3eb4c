"""Ends rounds, moves times back with the clock, and lets operators pause, resume and stop a run. What follows a
round that has ended, and what opens the first one, is ``opening``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.aggregation.registry import choose_selection
from coordinator.engine.kinds import kind_of
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.phases.round_kind import lasts, wanted
from coordinator.engine.reasons import printable
from coordinator.engine.selection import SELECTIONS, Known, Pace
from coordinator.engine.state import Member, Members, Round, RunState

NOT_NEEDED = "not needed: "
"""How the reason of a round begins that was open when a score finished the run, and in which nobody had begun: a round
opens with the commit of the last one, and the score of that model comes later."""


def created(state: RunState, event: ev.Created) -> Step:
    """The run begins: what its first checkpoint says of tensors and units holds from now on. Nothing where it has
    begun."""
    if state.begun:
        return state, []
    state = replace(
        state,
        begun=True,
        weight_unit=event.weight_unit,
        tensors=event.tensors,
        roles=event.roles,
        roles_digest=event.roles_digest,
    )
    return state, []


def abandon(state: RunState, at: float, reason: str, *, failed: bool = True) -> Step:
    """The round ends without a model, and the next one begins from the same parent. Every acknowledged update gets its
    refusal recorded. ``failed``: the round counts towards ``finish.abandoned``."""
    ended = state.current
    effects: list[fx.Effect] = []
    effects += refusals(
        state, (*ended.lost, *kind_of(ended).contributions(ended)), f"the round was abandoned: {reason}"
    )
    effects += [
        *kind_of(ended).releases(ended),
        record(state, "abandoned", reason=reason, closed_at=at),
        *kind_of(ended).forget(state),
    ]
    return after_round(_after_failure(retired(state), at, reason, failed=failed)), effects


def refusals(state: RunState, items: tuple[fx.Contribution, ...], reason: str) -> list[fx.RecordRefusal]:
    """Why these acknowledged updates of the round do not count, recorded."""
    return [
        fx.RecordRefusal(
            round=state.round_number, device=item.device, digest=item.digest, kind="abandoned", reason=reason
        )
        for item in items
    ]


def missed(state: RunState, at: float, reason: str, *, waits: bool = False) -> Step:
    """Too few devices waited when the time of the selection was over: that counts as an abandoned round, and the round
    looks for devices again. It is abandoned where something else follows: the datacenter's turn, a pause, the end of
    the run; or where a device is barred, since that ends after so many rounds. ``waits``: only other devices help, so
    the round looks again when they are there, and nothing is counted meanwhile, unless failures or time alone bring
    the datacenter's turn."""
    current = replace(state.current, missed=state.current.missed + 1, missed_at=at)
    state = state.with_round(current)
    following = _after_failure(state, at, reason, failed=True)
    turn = wanted(following, at)
    if following.status != "running" or state.ending is not None or turn.kind != current.kind or state.barred:
        return abandon(state, at, reason)
    deadline = None if waits and lasts(following, at) else at + kind_of(current).lasts_s(state.plan, current)
    current = replace(current, because=turn.because, deadline=deadline)
    following = following.with_round(current)
    return following, [record(following, "open", reason=reason), fx.Draw(round=current.number)]


def _after_failure(state: RunState, at: float, reason: str, *, failed: bool) -> RunState:
    """The state with this round counted as abandoned."""
    ended = state.current
    if kind_of(ended).of_devices:
        in_a_row = state.fallback.abandoned_in_a_row + 1
        state = replace(state, fallback=replace(state.fallback, abandoned_in_a_row=in_a_row, fleet_first=False))
    return _paused_after(replace(state, abandoned=state.abandoned + 1), at, ended, reason) if failed else state


def _paused_after(state: RunState, at: float, ended: Round, reason: str) -> RunState:
    """The state after one more abandoned round: paused, where the plan wants no further one. A run that is about to
    fall back for the first time does so before."""
    most, count = state.plan.finish.abandoned, state.abandoned
    if most is None or count < most or state.status != "running" or state.ending is not None:
        return state
    if wanted(state, at).falls_back and not state.fallback.tried:
        return state
    why = ". ".join(part for part in (reason, ended.departures) if part)
    failed = "the round was abandoned" if count == 1 else failures_in_a_row(count, ended.missed)
    last = "" if count == 1 else "the last one "
    return replace(state, status="paused", reason=f"{failed}, {last}because {why}")


def failures_in_a_row(count: int, missed: int) -> str:
    """How often in a row no model was made, for people. ``missed``: of the last round."""
    if missed > 1:
        return f"{count} attempts at a round in a row failed"
    return f"{count} rounds in a row were abandoned"


def after_round(state: RunState) -> RunState:
    """The state of a run when its round has ended."""
    if state.ending is None:
        return replace(state, round=None)
    status, reason = state.ending
    return replace(state, round=None, status=status, reason=reason, ending=None)


def end_run(state: RunState, at: float, status: Literal["finished", "stopped"], reason: str) -> Step:
    """Ends the run: at once, or when the commit under way is over."""
    state = replace(state, ending=(status, reason))
    if state.phase == "committing":
        return state, []
    if state.round is None:
        return after_round(state), []
    unused = status == "finished" and state.phase in ("selecting", "leasing") and not state.current.members
    return abandon(state, at, f"{NOT_NEEDED}{reason}" if unused else f"the run ended: {reason}")


def retired(state: RunState) -> RunState:
    """The state in which the blobs of a secure round are leftovers: to be deleted, and remembered until they are. What
    the round says of its devices is known from now on."""
    current = state.current
    if state.plan.cohort.remembers:
        state = replace(state, known={**state.known, **dict(_known(state))}, pace=_pace(state))
    blobs = kind_of(current).blobs(current)
    return replace(state, leftovers={**state.leftovers, current.number: blobs}) if blobs else state


def _pace(state: RunState) -> Pace:
    """With the round under way, where it has a cohort."""
    members = state.current.members.values()
    window = choose_selection(state.plan.cohort).window if state.plan.cohort.choose in SELECTIONS and members else 0
    heard = ((one.examples, one.metrics.get("loss")) for one in members if one.seconds is not None)
    return state.pace.after(heard, window) if window else state.pace


def _known(state: RunState) -> Iterator[tuple[str, Known]]:
    """(device, what is known of it) of those that were drawn for the round under way."""
    number = state.current.number
    for device, member in state.current.members.items():
        before = state.known.get(device, Known())
        loss, seconds = before.loss, before.seconds
        if member.seconds is not None:
            loss, seconds = member.metrics.get("loss", loss), member.seconds
        yield device, Known(loss=loss, seconds=seconds, selected=before.selected + 1, last_round=number)


def clock_fell(state: RunState, event: ev.ClockFell) -> Step:
    """Moves the state's times back with the clock, where a deadline is open."""
    current, rests_until = state.round, state.fallback.rests_until
    if current is None or current.deadline is None:
        return state, []
    lease, give_up_at = current.lease, current.give_up_at
    current = replace(
        current,
        deadline=current.deadline - event.by_s,
        members=Members({device: _moved(member, event.by_s) for device, member in current.members.items()}),
        lease=None if lease is None else replace(lease, renewed_at=lease.renewed_at - event.by_s),
        give_up_at=None if give_up_at is None else give_up_at - event.by_s,
    )
    if current.secure is not None and current.secure.settle_by:
        current = replace(current, secure=replace(current.secure, settle_by=current.secure.settle_by - event.by_s))
    rests_until = None if rests_until is None else rests_until - event.by_s
    return replace(state, round=current, fallback=replace(state.fallback, rests_until=rests_until)), []


def recovered(state: RunState, event: ev.Recovered) -> Step:
    """What an outage has taken of the time of a phase in which devices answer is given back."""
    if state.deadline is None:
        return state, []
    following = kind_of(state.current).recovered(state, event.at)
    return (state if (following.deadline or 0.0) <= state.deadline else following), []


def _moved(member: Member, by_s: float) -> Member:
    return member if member.until is None else replace(member, until=member.until - by_s)


def paused(state: RunState, event: ev.Paused) -> Step:
    """The round under way goes on; one that waits for a worker has not begun, and does not keep the run open."""
    if state.status != "running":
        return refuse(state, "conflict", f"the run is {state.status} and cannot be paused")
    state = replace(state, status="paused", reason="paused by the operator")
    if state.phase == "leasing":
        return abandon(state, event.at, "the run was paused while no worker had the round")
    if state.waits:
        return abandon(state, event.at, "the run was paused while it waited for devices")
    return state, []


def resumed(state: RunState, event: ev.Resumed) -> Step:
    """Counts abandoned rounds anew, and ends the rest of a datacenter: the operator who resumes has repaired it."""
    if state.status != "paused":
        return refuse(state, "conflict", f"the run is {state.status}, not paused")
    fallback = replace(state.fallback, failures=0, rests_until=None, tried=False)
    state = replace(state, status="running", reason="", fallback=fallback, abandoned=0)
    return state, []


def renamed(state: RunState, event: ev.Renamed) -> Step:
    """Whatever the run does, and also when it is over."""
    name = printable(event.name)
    return (state if name == state.name else replace(state, renamed=name)), []


def stopped(state: RunState, event: ev.Stopped) -> Step:
    if state.over or state.ending is not None:
        return refuse(state, "conflict", f"the run has ended already: {state.reason or 'it ends with this round'}")
    return end_run(state, event.at, "stopped", "stopped by the operator")
