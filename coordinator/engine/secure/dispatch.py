"""Dispatches the events of a secure round to the phases, and lists the actions that must be in flight in each phase.

::

    selecting --> collecting --> sharing --> masking --> agreeing --> unmasking --> committing
       Drawn      Advertised      Shared      Masked      Signed       Revealed      CommitSum
                      ^             |            |
                      +-------------+------------+   attempt + 1, before anybody could sign, under new keys

From *agreeing* on the survivor list is fixed and there is no new attempt: a device that signs is spent on this
checkpoint. An event holds digests and counts, never keys, shares or vectors: no single vector is ever unmasked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.secure import agreeing, barring, collecting, departures, exhausted, masking, sharing, unmasking
from coordinator.engine.state import RunState

Performed = ev.Announced | ev.Rostered | ev.Opened | ev.OpeningFailed
"""The results of the coordinator's own actions."""


def happened(state: RunState, event: ev.SecureEvent) -> Step:
    """The new state and the effects of one of these events. Total, like ``rounds.step``."""
    match event:
        case ev.Announced() | ev.Rostered() | ev.Opened() | ev.OpeningFailed():
            return _performed(state, event)
        case ev.Advertised():
            return collecting.advertised(state, event)
        case ev.Shared():
            return sharing.shared(state, event)
        case ev.Masked():
            return masking.masked(state, event)
        case ev.Complained():
            return masking.complained(state, event)
        case ev.Signed():
            return agreeing.signed(state, event)
        case ev.Revealed():
            return unmasking.revealed(state, event)
        case ev.Faulted():
            return departures.faulted(state, event)
        case ev.Spent():
            return departures.spent(state, event)
        case ev.Declined():
            return departures.declined(state, event)
        case ev.Unbarred():
            return barring.unbarred(state, event)
        case ev.Discarded():
            return _discarded(state, event)
        case ev.Advanced():
            return exhausted.advanced(state, event)
        case _:
            assert_never(event)


def _performed(state: RunState, event: Performed) -> Step:
    """Stale where the attempt is over."""
    current = state.round
    if current is None or current.secure is None or (event.round, event.attempt) != (current.number, current.attempt):
        reason = f"attempt {event.attempt} of round {event.round} is not under way as a secure round"
        return refuse(state, "stale", reason)
    match event:
        case ev.Announced():
            return collecting.announced(state, event)
        case ev.Rostered():
            return sharing.rostered(state, event)
        case ev.Opened():
            return unmasking.opened(state, event)
        case ev.OpeningFailed():
            return unmasking.opening_failed(state, event)
        case _:
            assert_never(event)


def _discarded(state: RunState, event: ev.Discarded) -> Step:
    """All blobs of that round are deleted."""
    if event.round not in state.leftovers:
        return state, []
    rest = {number: blobs for number, blobs in state.leftovers.items() if number != event.round}
    return replace(state, leftovers=rest), []


def time_is_up(state: RunState, at: float) -> Step:
    """The deadline of a phase of a secure round has passed."""
    phase = state.current.phase
    match phase:
        case "collecting":
            return collecting.time_is_up(state, at)
        case "sharing":
            return sharing.time_is_up(state, at)
        case "masking":
            return masking.go_on(state, at, time_is_up=True)
        case "agreeing":
            return agreeing.agreed(state, at)
        case "unmasking":
            return unmasking.time_is_up(state, at)
        case "selecting" | "leasing" | "training" | "committing":
            return state, []
        case _:
            assert_never(phase)


def pending(state: RunState) -> list[fx.Action]:
    """What must be in flight in a secure round from the cohort's selection on."""
    current = state.current
    match current.phase:
        case "collecting":
            return collecting.pending(state)
        case "sharing":
            return sharing.pending(state)
        case "masking":
            return masking.pending(state)
        case "agreeing":
            return agreeing.pending(state)
        case "unmasking":
            return unmasking.pending(state)
        case "committing":
            return [exhausted.advance_action(state) if current.advancing else unmasking.commit_sum_action(state)]
        case "selecting" | "leasing" | "training":
            return []
        case _:
            assert_never(current.phase)
