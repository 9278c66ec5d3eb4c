"""The state machine of a run: every decision about a round is here.

::

    idle ----------> selecting ------------> collecting -----------------> committing ----> selecting (next round)
      ^  Created,        |  Drawn, at least      |  goal reports, or none to    |  Committed
      |  Resumed         |  quorum devices       |  wait for, or the deadline,  |
      |                  |                       |  with at least quorum        |
      +------------------+-----------------------+------------------------------+
         run paused or over; a round that cannot be made is abandoned: same model, next round
    idle ----------> leasing -> training ----> selecting or leasing (next round): see ``phases.leasing``
    idle ----------> collecting -> committing ----> collecting (next round): buffered rounds, see ``kinds.buffered``
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

Each phase has a file, in ``phases`` or, where only secure rounds have it, in ``secure``. What happens to a run is
decided here; what happens in a round is decided by its kind, in ``kinds``. A refused event leaves the state equal (the
same object) and gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.kinds import KINDS, kind_of
from coordinator.engine.kinds.buffered import KIND as BUFFERED
from coordinator.engine.kinds.datacenter import Datacenter
from coordinator.engine.kinds.federated import Federated
from coordinator.engine.kinds.secure import Secure
from coordinator.engine.phases import committing, finishing, lifecycle, opening
from coordinator.engine.phases.public_record import public_body
from coordinator.engine.phases.refusing import Step
from coordinator.engine.plan import Plan
from coordinator.engine.state import Member, RunState

__all__ = ["KINDS", "Step", "begin", "kind_of", "pending", "public_body", "step"]


def begin(run: str, plan: Plan, checkpoint: str) -> RunState:
    """The state before the first event."""
    return RunState(run=run, plan=plan, checkpoint=checkpoint)


KINDS |= {"federated": Federated(), "secure": Secure(), "datacenter": Datacenter(), "buffered": BUFFERED}
_OWNERS = {event: kind for kind in KINDS.values() for event in kind.events}
"""Event -> the only kind that has it."""


def step(state: RunState, event: ev.Event) -> Step:
    """The next state and what is to be done. Total: an event that does not fit is refused with its reason."""
    following, effects = _happened(state, event)
    if following.round is not None or (following is state and not isinstance(event, ev.Tick)):
        return following, effects
    kept: Mapping[str, Member] = {}
    goes_on = opening.reason_against(following, event.at) is None
    if state.round is not None:
        kept, ends = kind_of(state.round).kept(following, state.round, goes_on=goes_on)
        effects = effects + ends
    if not goes_on:
        return following, effects
    following, more = opening.open_next(following, event.at, kept)
    return following, effects + more


def _happened(state: RunState, event: ev.Event) -> Step:
    if not isinstance(event, ev.RunEvent):
        kind = _OWNERS.get(type(event)) or KINDS[state.plan.kind if state.round is None else state.round.kind]
        return kind.happened(state, event)
    match event:
        case ev.Created():
            return lifecycle.created(state, event)
        case ev.Tick():
            return _tick(state, event)
        case ev.ClockFell():
            return lifecycle.clock_fell(state, event)
        case ev.Recovered():
            return lifecycle.recovered(state, event)
        case ev.Seeded():
            return committing.seeded(state, event)
        case ev.Committed():
            return committing.committed(state, event)
        case ev.CommitFailed():
            return committing.commit_failed(state, event)
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
        case _:
            assert_never(event)


def _tick(state: RunState, event: ev.Tick) -> Step:
    current = state.round
    if current is None or not current.is_due(event.at):
        return state, []
    return kind_of(current).time_is_up(state, event.at)


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
    return actions if current is None else [*actions, *kind_of(current).pending(state)]
