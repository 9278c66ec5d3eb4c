"""The state machine of a run: every decision about a round is here.

::

    idle ----------> selecting ------------> collecting -----------------> committing ----> selecting (next round)
      ^  Created,        |  Drawn, at least      |  goal reports, or all        |  Committed
      |  Resumed         |  quorum devices       |  heard of, or deadline,      |
      |                  |                       |  with at least quorum        |
      +------------------+-----------------------+------------------------------+
         run paused or over; a round that cannot be made is abandoned: same model, next round
    idle ----------> leasing -> training ----> selecting or leasing (next round): see ``datacenter``
    collecting ----> sharing -> masking -> agreeing -> unmasking -> committing (secure rounds): see ``secagg``

==========  ======================================================================================================
idle        No round. Publishes nothing; only the operator (or nothing, when the run is over) moves it on.
selecting   Devices wait in the pool. Ends when the pool is full or ``select_s`` has passed; then the cohort is drawn.
collecting  The cohort holds claims and trains. Reports count up to ``goal``; what comes later is late.
committing  The counted set is fixed. Ends when the next checkpoint is durable, or could not be made.
leasing     A datacenter round waits for a worker. Ends when one takes it, or when enough devices wait.
training    One worker has the round, under a fence, for as long as it is heard of. Its result is the next checkpoint.
sharing     A secure round has its roster made; then its devices share their secrets among each other.
masking     They send their updates masked.
agreeing    The list of who did is fixed; they sign it, and are spent on this checkpoint.
unmasking   They reveal shares, one of each device, until the sum of all can be opened, which is all that is seen.
==========  ======================================================================================================

This file knows nothing of HTTP, SQL, clocks or chance. A refused event leaves the state equal (the very object) and
says why.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases import leasing as datacenter
from coordinator.engine.phases.collecting import close, refuse, reported, started, withdrew
from coordinator.engine.phases.committing import advance
from coordinator.engine.phases.finishing import observe
from coordinator.engine.phases.lifecycle import (
    Step,
    abandon,
    commit_action,
    contributions,
    end_run,
    open_next,
    public_body,
    record,
)
from coordinator.engine.plan import Plan
from coordinator.engine.secure import dispatch as secagg
from coordinator.engine.secure import keying
from coordinator.engine.secure.exhausted import origin
from coordinator.engine.state import Member, RunState

__all__ = ["Step", "begin", "contributions", "pending", "public_body", "step"]


def begin(run: str, plan: Plan, checkpoint: str) -> RunState:
    """The state before the first event."""
    return RunState(run=run, plan=plan, checkpoint=checkpoint)


def step(state: RunState, event: ev.Event) -> Step:
    """The next state and what is to be done. Total: an event that does not fit is refused with its reason."""
    match event:
        case ev.Created():
            new = state.round_number == 0 and state.status == "running"
            return open_next(state, event.at) if new else (state, [])
        case ev.Tick():
            return _tick(state, event)
        case ev.ClockFell():
            return _clock_fell(state, event)
        case ev.Drawn():
            return _drawn(state, event)
        case ev.Started():
            return started(state, event)
        case ev.Reported():
            return secagg.reported(state, event) if _is_secure(state) else reported(state, event)
        case ev.Withdrew():
            return secagg.withdrew(state, event) if _is_secure(state) else withdrew(state, event)
        case ev.Committed():
            return _committed(state, event)
        case ev.CommitFailed():
            if state.phase != "committing" or event.round != state.round_number:
                return refuse(state, "stale", f"round {event.round} is not committing")
            return abandon(state, event.at, event.reason)
        case ev.Leased():
            return datacenter.leased(state, event)
        case ev.Heartbeat():
            return datacenter.heartbeat(state, event)
        case ev.LeaseEnded():
            return datacenter.lease_ended(state, event)
        case ev.Delivered():
            return datacenter.delivered(state, event)
        case ev.FleetReturned():
            return datacenter.fleet_returned(state, event)
        case ev.Scored():
            return _scored(state, event)
        case ev.Paused():
            return _paused(state, event)
        case ev.Resumed():
            return _resumed(state, event)
        case ev.Stopped():
            if state.over or state.ending is not None:
                return refuse(
                    state, "conflict", f"the run has ended already: {state.reason or 'it ends with this round'}"
                )
            return end_run(state, event.at, "stopped", "stopped by the operator")
        case _:
            return secagg.happened(state, event)


def pending(state: RunState) -> list[fx.Action]:
    """What must be in flight in this state: what a coordinator performs after a crash.

    Performing any of it twice does no harm.
    """
    actions: list[fx.Action] = []
    current = state.round
    forgotten = state.round_number - (0 if current is None else 1) - state.plan.retention.rounds
    if forgotten >= 1 and forgotten not in state.leftovers:
        actions.append(fx.Discard(round=forgotten))
    actions += [fx.Discard(round=number, blobs=blobs) for number, blobs in sorted(state.leftovers.items())]
    if current is None:
        return actions
    if current.phase == "selecting":
        actions.append(fx.Draw(round=current.number))
    elif current.secure is not None or current.advancing:
        actions += secagg.pending(state)
    elif current.phase == "leasing":
        actions.append(fx.Offer(round=current.number))
    elif current.phase == "collecting":
        waiting_ones = tuple(
            device for device, member in current.members.items() if member.status in ("selected", "training")
        )
        actions.append(fx.Wake(devices=waiting_ones))
        actions += [fx.Fold(round=current.number, contribution=item) for item in contributions(current)]
    elif current.phase == "committing":
        actions += [fx.Fold(round=current.number, contribution=item) for item in contributions(current)]
        actions.append(commit_action(state))
    return actions


def _clock_fell(state: RunState, event: ev.ClockFell) -> Step:
    current = state.round
    if current is None or current.deadline is None:
        return state, []
    moved = state.with_round(replace(current, deadline=current.deadline - event.by_s))
    return datacenter.clock_fell(moved, event.by_s), []


def _is_secure(state: RunState) -> bool:
    """Whether what devices say is of a secure round; between two rounds, of the last one."""
    return state.plan.secure is not None if state.round is None else state.round.kind == "secure"


def _paused(state: RunState, event: ev.Paused) -> Step:
    """The round under way goes on; one that waits for a worker has not begun, and does not hold the run open."""
    if state.status != "running":
        return refuse(state, "conflict", f"the run is {state.status} and cannot be paused")
    state = replace(state, status="paused", reason="paused by the operator")
    if state.phase == "leasing":
        return abandon(state, event.at, "the run was paused while no worker had the round")
    return state, []


def _resumed(state: RunState, event: ev.Resumed) -> Step:
    if state.status != "paused":
        return refuse(state, "conflict", f"the run is {state.status}, not paused")
    fallback = replace(state.fallback, failures=0, rests_until=None)
    state = replace(state, status="running", reason="", fallback=fallback)
    return open_next(state, event.at) if state.phase == "idle" else (state, [])


def _drawn(state: RunState, event: ev.Drawn) -> Step:
    current = state.round
    if current is None or current.phase != "selecting" or event.round != current.number:
        return refuse(state, "stale", f"round {event.round} is not selecting")
    if state.plan.secure is not None:
        return keying.drawn(state, event, state.plan.secure)
    cohort, quorum = state.plan.cohort, state.plan.cohort.quorum_count
    current = replace(current, waiting=event.waiting, pool=event.pool)
    if len(event.cohort) < quorum:
        found = f"{event.waiting} eligible devices waited; a round needs at least {quorum}"
        return abandon(state.with_round(current), event.at, f"{found}. {event.others}" if event.others else found)
    devices = tuple(device for device, _ in event.cohort)
    deadline = event.at + cohort.collect_s
    current = replace(
        current,
        phase="collecting",
        collecting_at=event.at,
        deadline=deadline,
        members={device: Member(examples=examples) for device, examples in event.cohort},
    )
    state = state.with_round(current)
    return state, [
        fx.Claim(round=current.number, attempt=current.attempt, devices=devices, until=deadline),
        record(state, "open"),
        fx.Wake(devices=devices),
    ]


def _tick(state: RunState, event: ev.Tick) -> Step:
    section, current = state.plan.datacenter, state.round
    if current is None:
        return state, []
    if section is not None and current.phase in ("leasing", "training"):
        return datacenter.tick(state, event.at, section)
    if current.deadline is None or event.at < current.deadline:
        return state, []
    if current.phase == "selecting":
        return state, [fx.Draw(round=current.number)]
    if current.secure is not None:
        return secagg.time_is_up(state, event.at)
    have, quorum = current.count("reported"), state.plan.cohort.quorum_count
    if have >= quorum:
        return close(state, event.at)
    return abandon(
        state, event.at, f"{have} of {len(current.members)} devices reported by the deadline; the quorum is {quorum}"
    )


def _committed(state: RunState, event: ev.Committed) -> Step:
    if state.phase != "committing" or event.round != state.round_number:
        return refuse(state, "stale", f"round {event.round} is not committing")
    source = origin(state.current) if state.current.advancing else ""
    return advance(state, event.at, digest=event.digest, size=event.bytes, optimizer=event.optimizer, origin=source)


def _scored(state: RunState, event: ev.Scored) -> Step:
    if not 0 <= event.version <= state.version:
        return refuse(
            state, "unknown-checkpoint", f"the run has no version {event.version}: it is at version {state.version}"
        )
    effects: list[fx.Effect] = [
        fx.RecordMetrics(version=event.version, source=event.source, examples=event.examples, metrics=event.metrics)
    ]
    seen, reason = observe(state, event.version, event.source, event.metrics)
    if reason is None or state.over or state.ending is not None:
        return seen, effects
    following, more = end_run(seen, event.at, "finished", reason)
    return following, effects + more
