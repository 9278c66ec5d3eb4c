"""Devices that contribute to the current checkpoint no more: spent, as they have signed there, or declined, for another
reason of their own. A run forgets both with its next checkpoint. The marks of who has signed stay, by the digest of the
model's tensors, and hold for every run that comes to the same tensors. What was declined holds for this run alone: most
reasons are of its plan or of where its model comes from, and another run may do better with the same model.

Barred devices take part in no secure round of the run, for ``secure.barred_rounds`` rounds or until an owner lifts it.
Only a dealer is barred, and only where it is proven to be at fault: see ``events.OpeningFailed``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.secure.state import Barred
from coordinator.engine.state import RunState, altered


def with_spent(state: RunState, device: str) -> tuple[RunState, fx.RecordMark]:
    """The state in which this device is spent, and its mark."""
    at = bisect_left(state.spent, device)
    known = state.spent[at : at + 1] == (device,)
    spent = state.spent if known else (*state.spent[:at], device, *state.spent[at:])
    mark = fx.RecordMark(tensors=state.marked_on, device=device, round=state.round_number)
    return altered(state, spent=spent), mark


def with_barred(state: RunState, devices: Iterable[str], why: str) -> RunState:
    """The state in which these devices are barred from the rounds after the one under way."""
    rounds = 0 if state.plan.secure is None else state.plan.secure.barred_rounds
    found = Barred(why=why, until_round=state.round_number + rounds + 1)
    return replace(state, barred={**state.barred, **dict.fromkeys(devices, found)})


def unbarred(state: RunState, event: ev.Unbarred) -> Step:
    """The owner lifts it. The device may be selected at once, where a round is selecting."""
    if state.over:
        return refuse(state, "conflict", f"run {state.run} is {state.status}: nobody is barred from it any more")
    if event.device not in state.barred:
        return refuse(state, "conflict", f"device {event.device} is not barred from run {state.run}")
    found = state.barred[event.device]
    audit = fx.RecordAudit(
        by=event.by,
        action="unbar",
        detail=f"device {event.device} was barred until round {found.until_round}: {found.why}",
    )
    rest = {device: held for device, held in state.barred.items() if device != event.device}
    draw: list[fx.Effect] = [fx.Draw(round=state.round_number)] if state.phase == "selecting" else []
    return replace(state, barred=rest), [audit, *draw]


def vouched(state: RunState, event: ev.Vouched) -> Step:
    """Devices are told of the signature from now on. Who has declined this model may do so no more."""
    if state.over:
        return refuse(state, "conflict", f"run {state.run} is {state.status}: it has no more rounds")
    if state.plan.secure is None:
        return refuse(state, "conflict", f"run {state.run} has plain rounds: no device asks for a signature")
    if event.version != state.version or not event.version:
        own = "; that of version 0 is secure.first_signature of the plan" if not event.version else ""
        return refuse(state, "conflict", f"run {state.run} is at version {state.version}: only that can be signed{own}")
    draw: list[fx.Effect] = [fx.Draw(round=state.round_number)] if state.phase == "selecting" else []
    return replace(state, vouched=(event.version, event.signature), declined={}), draw
