"""The collecting phase: what a device of the cohort may say, when a round closes, and what latecomers are told.

Knows nothing of how a round opened, or of what becomes of the counted set.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.aggregation.weights import weight_of
from coordinator.engine.phases.lifecycle import Step, abandon, commit_action, record
from coordinator.engine.state import Member, RunState, altered


def started(state: RunState, event: ev.Started) -> Step:
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
    against = _against_update(state, member, event)
    if against is not None:
        return refuse(state, *against, event)
    rule = state.plan.aggregation
    weight = weight_of(
        rule, examples=event.examples, steps=event.steps, steps_planned=event.steps_planned, complete=event.complete
    )
    member = altered(
        member,
        status="reported",
        digest=event.digest,
        weight=weight,
        bytes=event.bytes,
        partial=not event.complete,
        metrics=event.metrics,
        held_out=event.held_out,
        held_out_examples=event.held_out_examples,
    )
    state = state.with_member(event.device, member)
    effects: list[fx.Effect] = [
        fx.Accepted(device=event.device, digest=event.digest, weight=weight),
        fx.Release(round=current.number, devices=(event.device,)),
        fx.Fold(
            round=current.number, contribution=fx.Contribution(device=event.device, digest=event.digest, weight=weight)
        ),
    ]
    following, more = _close_if_complete(state, event.at)
    return following, effects + more


def withdrew(state: RunState, event: ev.Withdrew) -> Step:
    against = membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return refuse(state, *against)
    member = state.current.members[event.device]
    if member.status == "withdrawn" or state.phase == "committing":
        return state, []
    if member.status == "reported":
        return refuse(state, "conflict", "the device's update has been received and counts")
    state = state.with_member(event.device, altered(member, status="withdrawn"))
    following, more = _close_if_complete(state, event.at)
    return following, [fx.Release(round=event.round, devices=(event.device,)), *more]


def close(state: RunState, at: float) -> Step:
    closed = state.with_round(replace(state.current, phase="committing", deadline=None))
    return closed, [
        fx.Release(round=state.round_number, devices=None),
        record(closed, "open", closed_at=at),
        commit_action(closed),
    ]


def _against_update(state: RunState, member: Member, event: ev.Reported) -> tuple[str, str] | None:
    """Why a member's update does not count: (kind, reason), or None."""
    if member.digest is not None:
        return "duplicate", "another update of this device was received in this round; the first one counts"
    if member.status == "withdrawn":
        return "withdrawn", "the device has withdrawn from this round"
    if state.phase == "committing":
        return "late", f"round {event.round} has closed"
    if event.examples < 1:
        return "invalid-update", "an update needs at least one training example behind it"
    if not event.complete and state.plan.aggregation.partial == "refuse":
        return "invalid-update", f"{event.steps} of {event.steps_planned} steps: this plan refuses partial work"
    return None


def refuse(state: RunState, kind: str, reason: str, report: ev.Reported | None = None) -> Step:
    """The state unchanged, the reason, and, for an update, a record of it."""
    effects: list[fx.Effect] = [fx.Refused(kind=kind, reason=reason)]
    if report is not None:
        effects.append(
            fx.RecordRefusal(round=report.round, device=report.device, digest=report.digest, kind=kind, reason=reason)
        )
    return state, effects


def membership(state: RunState, round: int, attempt: int, device: str) -> tuple[str, str] | None:
    """Why this device has no open place in this round: (kind, reason), or None."""
    current = state.round
    if round > state.round_number:
        return "stale", f"round {round} has not been opened: the run is at round {state.round_number}"
    if current is None or round < current.number:
        return "late", f"round {round} is over"
    if attempt > current.attempt:
        return "stale", f"attempt {attempt} of round {round} has not been opened: it is at attempt {current.attempt}"
    if device not in current.members:
        return "not-selected", f"device {device} was not selected for round {round}"
    if attempt < current.attempt:
        return "stale", f"attempt {attempt} of round {round} is over: it is at attempt {current.attempt}"
    return None


def _close_if_complete(state: RunState, at: float) -> Step:
    """Closes at goal, or when nobody is left to hear of; abandons when the quorum is out of reach."""
    cohort = state.plan.cohort
    statuses = [member.status for member in state.current.members.values()]
    have, withdrawn, selected = statuses.count("reported"), statuses.count("withdrawn"), len(statuses)
    if have >= cohort.goal or (have + withdrawn == selected and have >= cohort.quorum_count):
        return close(state, at)
    if selected - withdrawn < cohort.quorum_count:
        left = f"{selected - withdrawn} are left and the quorum is {cohort.quorum_count}"
        return abandon(state, at, f"{withdrawn} of {selected} devices withdrew; {left}")
    return state, []
