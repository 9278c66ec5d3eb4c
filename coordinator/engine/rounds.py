"""The state machine of a run: every decision about a round is here.

::

    idle ----------> selecting ------------> collecting -----------------> committing ----> selecting (next round)
      ^  Created,        |  Drawn, at least      |  goal reports, or none to    |  Committed
      |  Resumed         |  quorum devices       |  wait for, or the deadline,  |
      |                  |                       |  with at least quorum        |
      +------------------+-----------------------+------------------------------+
         run paused or over; a round that cannot be made is abandoned: same model, next round
    idle ----------> leasing -> training ----> selecting or leasing (next round): see ``phases.leasing``
    collecting ----> sharing -> masking -> agreeing -> unmasking -> committing (secure rounds): see ``secure``

==========  ======================================================================================================
idle        No round. Publishes nothing; only the operator (or nothing, when the run is over) moves it on.
selecting   Devices wait in the pool. Ends when the pool is full or ``select_s`` has passed; then the cohort is drawn.
collecting  The cohort holds claims and trains. Reports count up to ``goal``; what comes later is late.
committing  The counted set is fixed. Ends when the next checkpoint is durable, or could not be made.
leasing     A datacenter round waits for a worker. Ends when one takes it, or when enough devices wait.
training    One worker has the round, under a fence, while its heartbeats come. Its result is the next checkpoint.
sharing     A secure round has its roster made; then its devices share their secrets among each other.
masking     They send their updates masked.
agreeing    The list of these devices is fixed; they sign it, and are spent on this checkpoint.
unmasking   They reveal shares, one of each device, until the sum of all can be opened, which is all that is seen.
==========  ======================================================================================================

Each phase has a file, in ``phases`` or, where only secure rounds have it, in ``secure``; here is which event is decided
where. A refused event leaves the state equal (the same object) and gives the reason.
"""

from __future__ import annotations

from typing import assert_never

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases import (
    collecting,
    committing,
    deadlines,
    finishing,
    leasing,
    lifecycle,
    selecting,
    training,
)
from coordinator.engine.phases.public_record import public_body
from coordinator.engine.phases.refusing import Step
from coordinator.engine.plan import Plan
from coordinator.engine.secure import collecting as secure_collecting
from coordinator.engine.secure import departures, dispatch
from coordinator.engine.state import Round, RunState

__all__ = ["Step", "begin", "pending", "public_body", "step"]


def begin(run: str, plan: Plan, checkpoint: str) -> RunState:
    """The state before the first event."""
    return RunState(run=run, plan=plan, checkpoint=checkpoint)


def step(state: RunState, event: ev.Event) -> Step:
    """The next state and what is to be done. Total: an event that does not fit is refused with its reason."""
    match event:
        case ev.Created():
            return lifecycle.created(state, event)
        case ev.Tick():
            return _tick(state, event)
        case ev.ClockFell():
            return deadlines.clock_fell(state, event)
        case ev.Drawn():
            secure = state.plan.secure
            return selecting.drawn(state, event) if secure is None else secure_collecting.drawn(state, event, secure)
        case ev.TrainingStarted():
            return collecting.started(state, event)
        case ev.Reported():
            return secure_collecting.reported(state, event) if _is_secure(state) else collecting.reported(state, event)
        case ev.UpdateRefused():
            secure_round = _is_secure(state)
            return secure_collecting.reported(state, event) if secure_round else collecting.update_refused(state, event)
        case ev.UpdateLost():
            return collecting.update_lost(state, event)
        case ev.Withdrew():
            return departures.withdrew(state, event) if _is_secure(state) else collecting.withdrew(state, event)
        case ev.Committed():
            return committing.committed(state, event)
        case ev.CommitFailed():
            return committing.commit_failed(state, event)
        case ev.Leased():
            return leasing.leased(state, event)
        case ev.WorkerHeartbeat():
            return training.heartbeat(state, event)
        case ev.LeaseEnded():
            return training.lease_ended(state, event)
        case ev.Delivered():
            return training.delivered(state, event)
        case ev.FleetReturned():
            return leasing.fleet_returned(state, event)
        case ev.Scored():
            return finishing.scored(state, event)
        case ev.Paused():
            return lifecycle.paused(state, event)
        case ev.Resumed():
            return lifecycle.resumed(state, event)
        case ev.Renamed():
            return lifecycle.renamed(state, event)
        case ev.Stopped():
            return lifecycle.stopped(state, event)
        case (
            ev.Announced()
            | ev.Advertised()
            | ev.Rostered()
            | ev.Shared()
            | ev.Masked()
            | ev.Complained()
            | ev.Faulted()
            | ev.Signed()
            | ev.Spent()
            | ev.Declined()
            | ev.Revealed()
            | ev.Opened()
            | ev.OpeningFailed()
            | ev.Discarded()
            | ev.Advanced()
            | ev.Unbarred()
        ):
            return dispatch.happened(state, event)
        case _:
            assert_never(event)


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
    return actions if current is None else [*actions, *_pending_in(state, current)]


def _pending_in(state: RunState, current: Round) -> list[fx.Action]:
    if current.secure is not None or current.advancing:
        return dispatch.pending(state)
    match current.phase:
        case "selecting":
            return selecting.pending(state)
        case "collecting":
            return collecting.pending(state)
        case "committing":
            return committing.pending(state)
        case "leasing":
            return leasing.pending(state)
        case "training" | "sharing" | "masking" | "agreeing" | "unmasking":
            return []
        case _:
            assert_never(current.phase)


def _tick(state: RunState, event: ev.Tick) -> Step:
    current = state.round
    if current is None:
        return state, []
    if current.phase == "leasing":
        return leasing.time_passes(state, event.at)
    if current.phase == "training":
        return training.time_passes(state, event.at)
    if current.deadline is None or event.at < current.deadline:
        return state, []
    if current.secure is not None:
        return dispatch.time_is_up(state, event.at)
    match current.phase:
        case "selecting":
            return state, [*selecting.pending(state)]
        case "collecting":
            return collecting.time_is_up(state, event.at)
        case "committing" | "sharing" | "masking" | "agreeing" | "unmasking":
            return state, []
        case _:
            assert_never(current.phase)


def _is_secure(state: RunState) -> bool:
    """Whether what devices send is of a secure round; between two rounds, of the last one."""
    return state.plan.secure is not None if state.round is None else state.round.kind == "secure"
