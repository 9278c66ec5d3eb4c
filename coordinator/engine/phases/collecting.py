"""The collecting phase of plain rounds: the answer to each message of the cohort's devices, and when the round closes.

Updates that arrive when the round is committing, or over, are answered here too: they are late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.aggregation.section import is_capped, reason_against, weight_of
from coordinator.engine.kinds import kind_of
from coordinator.engine.phases.committing import close
from coordinator.engine.phases.lifecycle import abandon
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.reasons import printable
from coordinator.engine.state import Member, RunState, altered, membership

AWAITED = ("selected", "training")
"""The statuses of members that can still report."""


RETURN_S = 60.0
"""The longest pause of a device between two tries to reach a coordinator."""


def started(state: RunState, event: ev.TrainingStarted) -> Step:
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against)
    member = state.current.members[event.device]
    if member.status != "selected" or state.phase != "collecting":
        return state, []
    return state.with_member(event.device, altered(member, status="training")), []


def reported(state: RunState, event: ev.Reported) -> Step:
    """The first update of a member counts, the same bytes again get the same answer, others are refused."""
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against, event if against[0] == "late" else None)
    current = state.current
    member = current.members[event.device]
    if member.digest == event.digest:
        return state, [fx.Accepted(device=event.device, digest=event.digest, weight=member.weight)]
    against, work = _against_update(state, member, event), work_of(event)
    if against is None and (weightless := reason_against(state.plan.aggregation, **work)) is not None:
        against = "invalid-update", weightless
    if against is not None:
        return refuse(state, *against, None if member.status == "refused" else event)
    weight = weight_of(state.plan.aggregation, state.weight_unit, times=state.times(event.device), **work)
    seconds = max(0.0, event.at - (current.collecting_at or event.at))
    state = state.with_member(event.device, as_reported(state, member, event, weight, seconds))
    effects: list[fx.Effect] = [
        fx.Accepted(device=event.device, digest=event.digest, weight=weight),
        fx.Release(round=current.number, devices=(event.device,)),
        fx.Fold(
            round=current.number, contribution=fx.Contribution(device=event.device, digest=event.digest, weight=weight)
        ),
    ]
    following, more = _close_if_complete(state, event.at)
    return following, effects + more


def as_reported(state: RunState, member: Member, event: ev.Reported, weight: int, seconds: float) -> Member:
    """The member with its update, which weighs so much and took it so long from the draw."""
    aggregation = state.plan.aggregation
    return altered(
        member,
        status="reported",
        digest=event.digest,
        weight=weight,
        bytes=event.bytes,
        steps=event.steps,
        seconds=seconds,
        partial=not event.complete,
        treated=replace(event.treated, capped=is_capped(aggregation, event.examples, event.treated.capped)),
        metrics=event.metrics,
        held_out=event.held_out,
        held_out_examples=event.held_out_examples,
        held_out_weights=event.held_out_weights,
        held_out_states=event.held_out_states,
    )


def update_refused(state: RunState, event: ev.UpdateRefused) -> Step:
    """The device leaves the round: what it would send instead is not taken any more. Again, it gets the same reason."""
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against, event if against[0] == "late" else None)
    member = state.current.members[event.device]
    against = _against_update(state, member, event)
    if against is not None:
        return refuse(state, *against, None if member.status == "refused" else event)
    reason = printable(event.reason)
    state = state.with_member(event.device, altered(member, status="refused", reason=reason))
    following, more = _after_departure(state, event.at)
    refusal = fx.RecordRefusal(
        round=event.round, device=event.device, digest=event.digest, kind="invalid-update", reason=reason
    )
    return following, [refusal, fx.Release(round=event.round, devices=(event.device,)), *more]


def update_lost(state: RunState, event: ev.UpdateLost) -> Step:
    """Until the round's first deadline the device may train again, once. The round waits for it: it is abandoned where
    no other update comes. What the device had was a receipt, so its bytes are gone there too."""
    current, device = state.round, event.device
    member = None if current is None or current.number != event.round else current.members.get(device)
    if current is None or member is None or member.digest != event.digest:
        return refuse(state, "stale", f"no such update of {device} counts in round {event.round}")
    until = current.deadline or (current.collecting_at or event.at) + state.plan.cohort.collect_s
    if member.lost or event.at >= until:
        return refuse(state, "late", f"{device} cannot be asked again")
    asked = Member(examples=member.examples, lost=event.digest)
    current = replace(current, phase="collecting", deadline=until, members=current.members.changed(device, asked))
    state = state.with_round(current)
    claim = fx.Claim(round=current.number, attempt=current.attempt, devices=(device,), until=until)
    return state, [claim, record(state, "open"), fx.Wake(devices=(device,))]


def withdrew(state: RunState, event: ev.Withdrew) -> Step:
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against)
    member = state.current.members[event.device]
    if member.status in ("withdrawn", "refused") or state.phase == "committing":
        return state, []
    if member.status == "reported":
        return refuse(state, "conflict", "the device's update has been received and counts")
    state = state.with_member(event.device, altered(member, status="withdrawn", reason=printable(event.reason)))
    following, more = _after_departure(state, event.at)
    return following, [fx.Release(round=event.round, devices=(event.device,)), *more]


def time_is_up(state: RunState, at: float) -> Step:
    if lost := _lost(state):
        return abandon(state, at, f"{lost}, and its device was asked again and sent none in time")
    have, quorum = state.current.count("reported"), state.plan.cohort.quorum_count
    if have >= quorum:
        return close(state, at)
    selected = len(state.current.members)
    return abandon(state, at, f"{have} of {selected} devices reported by the deadline; the quorum is {quorum}")


def pending(state: RunState) -> list[fx.Action]:
    current = state.current
    awaited = tuple(device for device, member in current.members.items() if member.status in AWAITED)
    folds = [fx.Fold(round=current.number, contribution=item) for item in kind_of(current).contributions(current)]
    return [fx.Wake(devices=awaited), *folds]


def _against_update(state: RunState, member: Member, event: ev.Reported | ev.UpdateRefused) -> tuple[str, str] | None:
    """Why a member's update does not count, whatever is in it: (kind, reason), or None."""
    if member.status == "refused":
        return "invalid-update", member.reason
    if member.digest is not None:
        return "duplicate", "another update of this device was received in this round; the first one counts"
    if member.status == "withdrawn":
        return "withdrawn", "the device has withdrawn from this round"
    if state.phase == "committing":
        return "late", f"round {event.round} has closed"
    return None


def _lost(state: RunState, *statuses: str) -> str:
    """Which update was lost and has no other one in its place: the first whose device has one of these statuses, or
    any."""
    members = state.current.members
    for device, member in sorted(members.items()):
        if member.lost and member.status != "reported" and (not statuses or member.status in statuses):
            return f"the update of {device} is damaged or gone: blob {member.lost}"
    return ""


class Work(TypedDict):
    examples: int
    steps: int
    steps_planned: int
    complete: bool


def work_of(event: ev.Reported) -> Work:
    return {
        "examples": event.examples,
        "steps": event.steps,
        "steps_planned": event.steps_planned,
        "complete": event.complete,
    }


def recovered(state: RunState, at: float, expires_at: float = 0.0) -> RunState:
    """The state in which devices have time to come back after an outage: ``RETURN_S``, and with all outages at most
    twice the plan's time for reports. ``expires_at``: of a secure attempt."""
    current, collect_s = state.current, state.plan.cohort.collect_s
    if current.phase != "collecting":
        return state
    until = min(at + min(collect_s, RETURN_S), (current.collecting_at or at) + 2 * collect_s)
    return state.with_round(altered(current, deadline=min(until, expires_at or until)))


def _close_if_complete(state: RunState, at: float) -> Step:
    """Closes at goal, or with a quorum when no other device can report; with no lost update that may come again."""
    have, cohort = state.current.count("reported"), state.plan.cohort
    complete = have >= cohort.goal or (have >= cohort.quorum_count and not state.current.count(*AWAITED))
    return close(state, at) if complete and not _lost(state) else (state, [])


def _after_departure(state: RunState, at: float) -> Step:
    """Closes the round where it is complete; abandons it when the quorum is out of reach, or who was asked again has
    left."""
    if lost := _lost(state, "withdrawn", "refused"):
        return abandon(state, at, f"{lost}, and its device was asked again and left the round")
    following, effects = _close_if_complete(state, at)
    current, quorum = state.current, state.plan.cohort.quorum_count
    left = current.count("reported", *AWAITED)
    if following is not state or left >= quorum:
        return following, effects
    selected, withdrawn, refused = len(current.members), current.count("withdrawn"), current.count("refused")
    gone = [f"{withdrawn} of {selected} devices withdrew"] if withdrawn or not refused else []
    gone += [f"the updates of {refused} of {selected} devices were refused"] if refused else []
    return abandon(state, at, f"{' and '.join(gone)}; {left} are left and the quorum is {quorum}")
