"""The state machine of a run: every decision about a round is here.

::

    idle ----------> selecting ------------> collecting -----------------> committing ----> selecting (next round)
      ^  Created,        |  Drawn, at least      |  goal reports, or all        |  Committed
      |  Resumed         |  quorum devices       |  heard of, or deadline,      |
      |                  |                       |  with at least quorum        |
      +------------------+-----------------------+------------------------------+
         run paused or over; a round that cannot be made is abandoned: same model, next round

==========  ======================================================================================================
idle        No round. Publishes nothing; only the operator (or nothing, when the run is over) moves it on.
selecting   Devices wait in the pool. Ends when the pool is full or ``select_s`` has passed; then the cohort is drawn.
collecting  The cohort holds claims and trains. Reports count up to ``goal``; what comes later is late.
committing  The counted set is fixed. Ends when the next checkpoint is durable, or could not be made.
==========  ======================================================================================================

This file knows nothing of HTTP, SQL, clocks or chance. A refused event leaves the state equal (the very object) and
says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.aggregation.weights import weight_of
from coordinator.engine.finishing import enough_rounds, observe
from coordinator.engine.plan import Plan
from coordinator.engine.state import Member, RunState

Step = tuple[RunState, list[fx.Effect]]


def begin(run: str, plan: Plan, checkpoint: str) -> RunState:
    """The state before the first event."""
    return RunState(run=run, plan=plan, checkpoint=checkpoint)


def step(state: RunState, event: ev.Event) -> Step:
    """The next state and what is to be done. Total: an event that does not fit is refused with its reason."""
    match event:
        case ev.Created():
            return _open_next(state, event.at) if state.round == 0 and state.phase == "idle" else (state, [])
        case ev.Tick():
            return _tick(state, event)
        case ev.ClockFell():
            if state.deadline is None:
                return state, []
            return replace(state, deadline=state.deadline - event.by_s), []
        case ev.Drawn():
            return _drawn(state, event)
        case ev.Started():
            return _started(state, event)
        case ev.Reported():
            return _reported(state, event)
        case ev.Withdrew():
            return _withdrew(state, event)
        case ev.Committed():
            return _committed(state, event)
        case ev.CommitFailed():
            if state.phase != "committing" or event.round != state.round:
                return _refuse(state, "stale", f"round {event.round} is not committing")
            return _abandon(state, event.at, event.reason)
        case ev.Scored():
            return _scored(state, event)
        case ev.Paused():
            if state.status != "running":
                return _refuse(state, "conflict", f"the run is {state.status} and cannot be paused")
            return replace(state, status="paused", reason="paused by the operator"), []
        case ev.Resumed():
            return _resumed(state, event)
        case ev.Stopped():
            if state.over or state.ending is not None:
                return _refuse(
                    state, "conflict", f"the run has ended already: {state.reason or 'it ends with this round'}"
                )
            return _end(state, event.at, "stopped", "stopped by the operator")


def pending(state: RunState) -> list[fx.Action]:
    """What must be in flight in this state: what a coordinator performs after a crash.

    Performing any of it twice does no harm.
    """
    actions: list[fx.Action] = []
    forgotten = state.round - (1 if state.phase != "idle" else 0) - state.plan.retention.rounds
    if forgotten >= 1:
        actions.append(fx.Discard(round=forgotten))
    if state.phase == "selecting":
        actions.append(fx.Draw(round=state.round))
    elif state.phase == "collecting":
        waiting_ones = tuple(
            device for device, member in state.members.items() if member.status in ("selected", "training")
        )
        actions.append(fx.Wake(devices=waiting_ones))
        actions += [fx.Fold(round=state.round, contribution=item) for item in contributions(state)]
    elif state.phase == "committing":
        actions += [fx.Fold(round=state.round, contribution=item) for item in contributions(state)]
        actions.append(_commit(state))
    return actions


def contributions(state: RunState) -> tuple[fx.Contribution, ...]:
    """The updates acknowledged in the round under way, by device id."""
    return tuple(
        fx.Contribution(device=device, digest=member.digest, weight=member.weight)
        for device, member in sorted(state.members.items())
        if member.digest is not None
    )


def public_body(state: RunState) -> dict[str, object]:
    """What the public may read of the round under way: counts, never who sent what."""
    reported = [member for _, member in sorted(state.members.items()) if member.status == "reported"]
    training = state.count("training") + len(reported)
    return {
        "funnel": {
            "waiting": state.waiting,
            "selected": len(state.members),
            "training": training,
            "reported": len(reported),
            "withdrawn": state.count("withdrawn"),
        },
        "bytes_in": sum(member.bytes for member in reported),
        "weight": sum(member.weight for member in reported),
        "partial": sum(member.partial for member in reported),
        "metrics": _mean_metrics([(member.weight, member.metrics) for member in reported]),
    }


# ---------------------------------------------------------------- opening and ending


def _open_next(state: RunState, at: float) -> Step:
    opened = replace(
        state,
        phase="selecting",
        round=state.round + 1,
        attempt=0,
        opened_at=at,
        collecting_at=None,
        deadline=at + state.plan.cohort.select_s,
        waiting=0,
        members={},
    )
    return opened, [_record(opened, "open"), fx.Draw(round=opened.round)]


def _rest(state: RunState) -> RunState:
    return replace(state, phase="idle", deadline=None, waiting=0, members={})


def _after_round(state: RunState, at: float) -> Step:
    """Where a run goes when its round has ended."""
    if state.ending is not None:
        status, reason = state.ending
        return _rest(replace(state, status=status, reason=reason, ending=None)), []
    if state.status != "running":
        return _rest(state), []
    return _open_next(state, at)


def _abandon(state: RunState, at: float, reason: str) -> Step:
    """Same model, next round. Every acknowledged update gets its refusal recorded."""
    effects: list[fx.Effect] = [
        fx.RecordRefusal(
            round=state.round,
            device=item.device,
            digest=item.digest,
            kind="abandoned",
            reason=f"the round was abandoned: {reason}",
        )
        for item in contributions(state)
    ]
    effects += [
        fx.Release(round=state.round, devices=None),
        _record(state, "abandoned", reason=reason, closed_at=at),
        *_forget(state),
    ]
    following, more = _after_round(replace(state, abandoned_in_a_row=state.abandoned_in_a_row + 1), at)
    return following, effects + more


def _end(state: RunState, at: float, status: Literal["finished", "stopped"], reason: str) -> Step:
    """Ends the run: at once, or when the commit under way is over."""
    state = replace(state, ending=(status, reason))
    if state.phase == "committing":
        return state, []
    if state.phase == "idle":
        return _after_round(state, at)
    return _abandon(state, at, f"the run ended: {reason}")


def _resumed(state: RunState, event: ev.Resumed) -> Step:
    if state.status != "paused":
        return _refuse(state, "conflict", f"the run is {state.status}, not paused")
    state = replace(state, status="running", reason="")
    return _open_next(state, event.at) if state.phase == "idle" else (state, [])


# ---------------------------------------------------------------- selecting


def _drawn(state: RunState, event: ev.Drawn) -> Step:
    if state.phase != "selecting" or event.round != state.round:
        return _refuse(state, "stale", f"round {event.round} is not selecting")
    cohort, quorum = state.plan.cohort, state.plan.cohort.quorum_count
    state = replace(state, waiting=event.waiting)
    if len(event.cohort) < quorum:
        return _abandon(state, event.at, f"{event.waiting} eligible devices waited; a round needs at least {quorum}")
    devices = tuple(device for device, _ in event.cohort)
    deadline = event.at + cohort.collect_s
    state = replace(
        state,
        phase="collecting",
        collecting_at=event.at,
        deadline=deadline,
        members={device: Member(examples=examples) for device, examples in event.cohort},
    )
    return state, [
        fx.Claim(round=state.round, attempt=state.attempt, devices=devices, until=deadline),
        _record(state, "open"),
        fx.Wake(devices=devices),
    ]


def _tick(state: RunState, event: ev.Tick) -> Step:
    if state.deadline is None or event.at < state.deadline:
        return state, []
    if state.phase == "selecting":
        return state, [fx.Draw(round=state.round)]
    reported, quorum = state.count("reported"), state.plan.cohort.quorum_count
    if reported >= quorum:
        return _close(state, event.at)
    return _abandon(
        state, event.at, f"{reported} of {len(state.members)} devices reported by the deadline; the quorum is {quorum}"
    )


# ---------------------------------------------------------------- collecting


def _membership(state: RunState, round: int, attempt: int, device: str) -> tuple[str, str] | None:
    """Why this device has no open place in this round: (kind, reason), or None."""
    if round > state.round or (round == state.round and attempt > state.attempt):
        return "stale", f"round {round} has not been opened: the run is at round {state.round}"
    if round < state.round or state.phase not in ("collecting", "committing"):
        return "late", f"round {round} is over"
    if device not in state.members:
        return "not-selected", f"device {device} was not selected for round {round}"
    if attempt < state.attempt:
        return "stale", f"attempt {attempt} of round {round} is over: it is at attempt {state.attempt}"
    return None


def _started(state: RunState, event: ev.Started) -> Step:
    against = _membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return _refuse(state, *against)
    member = state.members[event.device]
    if member.status != "selected" or state.phase != "collecting":
        return state, []
    return _with(state, event.device, replace(member, status="training")), []


def _reported(state: RunState, event: ev.Reported) -> Step:
    against = _membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return _refuse(state, *against, event)
    member = state.members[event.device]
    if member.digest is not None:
        if member.digest == event.digest:
            return state, [fx.Accepted(device=event.device, digest=event.digest, weight=member.weight)]
        return _refuse(
            state,
            "duplicate",
            "another update of this device has been received in this round; the first one counts",
            event,
        )
    if member.status == "withdrawn":
        return _refuse(state, "withdrawn", "the device has withdrawn from this round", event)
    if state.phase == "committing":
        return _refuse(state, "late", f"round {event.round} has closed", event)
    if event.examples < 1:
        return _refuse(state, "invalid-update", "an update needs at least one training example behind it", event)
    rule = state.plan.aggregation
    if not event.complete and rule.partial == "refuse":
        return _refuse(
            state,
            "invalid-update",
            f"partial work ({event.steps} of {event.steps_planned} steps) is refused by this plan",
            event,
        )
    weight = weight_of(
        rule, examples=event.examples, steps=event.steps, steps_planned=event.steps_planned, complete=event.complete
    )
    member = replace(
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
    state = _with(state, event.device, member)
    effects: list[fx.Effect] = [
        fx.Accepted(device=event.device, digest=event.digest, weight=weight),
        fx.Release(round=state.round, devices=(event.device,)),
        fx.Fold(
            round=state.round, contribution=fx.Contribution(device=event.device, digest=event.digest, weight=weight)
        ),
    ]
    following, more = _close_if_complete(state, event.at)
    return following, effects + more


def _withdrew(state: RunState, event: ev.Withdrew) -> Step:
    against = _membership(state, event.round, event.attempt, event.device)
    if against is not None:
        return _refuse(state, *against)
    member = state.members[event.device]
    if member.status == "withdrawn" or state.phase == "committing":
        return state, []
    if member.status == "reported":
        return _refuse(state, "conflict", "the device's update has been received and counts")
    state = _with(state, event.device, replace(member, status="withdrawn"))
    following, more = _close_if_complete(state, event.at)
    return following, [fx.Release(round=event.round, devices=(event.device,)), *more]


def _close_if_complete(state: RunState, at: float) -> Step:
    """Closes at goal, or when nobody is left to hear of; abandons when the quorum is out of reach."""
    cohort = state.plan.cohort
    reported, withdrawn, selected = state.count("reported"), state.count("withdrawn"), len(state.members)
    if reported >= cohort.goal or (reported + withdrawn == selected and reported >= cohort.quorum_count):
        return _close(state, at)
    if selected - withdrawn < cohort.quorum_count:
        left = f"{selected - withdrawn} are left and the quorum is {cohort.quorum_count}"
        return _abandon(state, at, f"{withdrawn} of {selected} devices withdrew; {left}")
    return state, []


def _close(state: RunState, at: float) -> Step:
    closed = replace(state, phase="committing", deadline=None)
    return closed, [fx.Release(round=state.round, devices=None), _record(closed, "open", closed_at=at), _commit(closed)]


# ---------------------------------------------------------------- committing


def _commit(state: RunState) -> fx.Commit:
    return fx.Commit(round=state.round, parent=state.checkpoint, contributions=contributions(state))


def _committed(state: RunState, event: ev.Committed) -> Step:
    if state.phase != "committing" or event.round != state.round:
        return _refuse(state, "stale", f"round {event.round} is not committing")
    version = state.version + 1
    effects: list[fx.Effect] = [
        fx.RecordCheckpoint(
            version=version,
            digest=event.digest,
            parent=state.version,
            round=state.round,
            bytes=event.bytes,
            optimizer=event.optimizer,
            contributions=contributions(state),
        ),
        _record(state, "committed", closed_at=event.at, version=version, digest=event.digest),
        *_forget(state),
    ]
    scored = [(m.held_out_examples, m.held_out) for _, m in sorted(state.members.items()) if m.held_out_examples]
    examples = sum(count for count, _ in scored)
    held_out = _mean_metrics(scored)
    if held_out:
        effects.append(fx.RecordMetrics(version=state.version, source="devices", examples=examples, metrics=held_out))
    scored_version = state.version
    state = replace(state, version=version, checkpoint=event.digest, abandoned_in_a_row=0)
    state, reason = observe(state, scored_version, "devices", held_out)
    reason = enough_rounds(state) or reason
    if reason is not None and state.ending is None:
        state = replace(state, ending=("finished", reason))
    following, more = _after_round(state, event.at)
    return following, effects + more


def _scored(state: RunState, event: ev.Scored) -> Step:
    if not 0 <= event.version <= state.version:
        return _refuse(
            state, "unknown-checkpoint", f"the run has no version {event.version}: it is at version {state.version}"
        )
    effects: list[fx.Effect] = [
        fx.RecordMetrics(version=event.version, source=event.source, examples=event.examples, metrics=event.metrics)
    ]
    seen, reason = observe(state, event.version, event.source, event.metrics)
    if reason is None or state.over or state.ending is not None:
        return seen, effects
    following, more = _end(seen, event.at, "finished", reason)
    return following, effects + more


# ---------------------------------------------------------------- small helpers


def _with(state: RunState, device: str, member: Member) -> RunState:
    return replace(state, members={**state.members, device: member})


def _refuse(state: RunState, kind: str, reason: str, report: ev.Reported | None = None) -> Step:
    """The state unchanged, the reason, and, for an update, a record of it."""
    effects: list[fx.Effect] = [fx.Refused(kind=kind, reason=reason)]
    if report is not None:
        effects.append(
            fx.RecordRefusal(round=report.round, device=report.device, digest=report.digest, kind=kind, reason=reason)
        )
    return state, effects


def _forget(state: RunState) -> list[fx.Effect]:
    ended = state.round - state.plan.retention.rounds
    return [fx.Discard(round=ended)] if ended >= 1 else []


def _record(
    state: RunState,
    status: str,
    *,
    reason: str = "",
    closed_at: float | None = None,
    version: int | None = None,
    digest: str | None = None,
) -> fx.RecordRound:
    return fx.RecordRound(
        round=state.round,
        status=status,
        reason=reason,
        attempt=state.attempt,
        opened_at=state.opened_at,
        collecting_at=state.collecting_at,
        closed_at=closed_at,
        body={**public_body(state), "version": version, "digest": digest},
    )


def _mean_metrics(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Each metric averaged over the parts that have it, by weight; in the order given, which is by device id."""
    names = sorted({name for _, metrics in parts for name in metrics})
    means: dict[str, float] = {}
    for name in names:
        having = [(weight, metrics[name]) for weight, metrics in parts if name in metrics]
        total = sum(weight for weight, _ in having)
        means[name] = sum(weight * value for weight, value in having) / total
    return means
