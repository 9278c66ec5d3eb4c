"""The exhausted run: too many devices have signed on the current checkpoint or have declined it, and none of them
contributes to it again.

It waits, and continues with other devices as soon as enough are there, by a datacenter round, or when its owner
advances it: the model moved by one unit of the exact scale is another checkpoint, on which no device has signed or
declined.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.state import RunState


def why_exhausted(state: RunState, event: ev.Drawn, fewest: int) -> str:
    """Why the run is exhausted, where this draw shows it: as many devices as a round needs wait, and too many of them
    are spent, have declined or are barred. Empty otherwise, and where all of these are barred: that ends by itself, and
    no other model would help."""
    if event.spent + event.declined == 0 or event.waiting + event.unspendable < fewest:
        return ""
    return (
        f"the run is exhausted at version {state.version}: of the devices that wait "
        f"{why_unspendable(event.spent, event.declined, event.barred)}; "
        f"{event.waiting} can still contribute, and a secure round needs {fewest}: it waits for other devices"
    )


def why_unspendable(spent: int, declined: int, barred: int) -> str:
    """How many devices are unspendable, for each reason: ``6 have signed on this checkpoint, 1 is barred``; empty
    where none is."""
    counts = (
        (spent, "has signed on this checkpoint", "have signed on this checkpoint"),
        (declined, "has declined this checkpoint", "have declined this checkpoint"),
        (barred, "is barred", "are barred"),
    )
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count)


def advanced(state: RunState, event: ev.Advanced) -> Step:
    """The owner advances the run: the only case in which a model changes without training."""
    current = state.round
    if current is not None and current.advancing:
        return refuse(state, "conflict", f"run {state.run} is being advanced already, by {current.advancing}")
    if not state.exhausted:
        return refuse(state, "conflict", f"run {state.run} is not exhausted: it continues by itself")
    if state.status != "running":
        return refuse(state, "conflict", f"run {state.run} is {state.status}: resume it first")
    if current is None or current.phase not in ("selecting", "leasing"):
        return refuse(state, "conflict", f"run {state.run} cannot advance: round {state.round_number} is {state.phase}")
    if event.round != current.number:
        return refuse(state, "stale", f"the run is at round {current.number}, not {event.round}")
    audit = fx.RecordAudit(
        by=event.by,
        action="advance",
        detail=f"round {current.number} moves version {state.version} by one unit, without contributions: "
        + state.exhausted,
    )
    current = replace(
        current,
        phase="committing",
        kind="secure",
        because="",
        planned=False,
        lease=None,
        give_up_at=None,
        deadline=None,
        advancing=event.by,
    )
    state = replace(state, round=current, fallback=replace(state.fallback, away_since=None))
    return state, [audit, record(state, "open"), advance_action(state)]


def advance_action(state: RunState) -> fx.Advance:
    return fx.Advance(round=state.round_number, parent=state.checkpoint)
