"""How a round ends: it is dropped, the next one opens, or the run rests or is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from coordinator.engine import effects as fx
from coordinator.engine.phases.opening import open_next
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step
from coordinator.engine.state import RunState


def abandon(state: RunState, at: float, reason: str) -> Step:
    """Same model, next round. Every acknowledged update gets its refusal recorded."""
    ended = state.current
    effects: list[fx.Effect] = [
        fx.RecordRefusal(
            round=ended.number,
            device=item.device,
            digest=item.digest,
            kind="abandoned",
            reason=f"the round was abandoned: {reason}",
        )
        for item in ended.contributions
    ]
    effects += [
        fx.Release(round=ended.number, devices=None),
        record(state, "abandoned", reason=reason, closed_at=at),
        *forget(state),
    ]
    state = retired(state)
    if ended.kind != "datacenter":
        in_a_row = state.fallback.abandoned_in_a_row + 1
        state = replace(state, fallback=replace(state.fallback, abandoned_in_a_row=in_a_row, fleet_first=False))
    following, more = after_round(state, at)
    return following, effects + more


def after_round(state: RunState, at: float) -> Step:
    """Where a run goes when its round has ended."""
    if state.ending is not None:
        status, reason = state.ending
        return replace(state, round=None, status=status, reason=reason, ending=None), []
    if state.status != "running":
        return replace(state, round=None), []
    return open_next(state, at)


def end_run(state: RunState, at: float, status: Literal["finished", "stopped"], reason: str) -> Step:
    """Ends the run: at once, or when the commit under way is over."""
    state = replace(state, ending=(status, reason))
    if state.phase == "committing":
        return state, []
    if state.round is None:
        return after_round(state, at)
    return abandon(state, at, f"the run ended: {reason}")


def forget(state: RunState) -> list[fx.Effect]:
    """What of the round that ends is no longer needed: of a secure one, everything."""
    current = state.current
    if current.secure is not None:
        return [fx.Discard(round=current.number, blobs=current.secure.blobs)]
    ended = current.number - state.plan.retention.rounds
    return [fx.Discard(round=ended)] if ended >= 1 else []


def retired(state: RunState) -> RunState:
    """The state in which the blobs of a secure round are leftovers: to be deleted, and remembered until they are."""
    current = state.current
    blobs = () if current.secure is None else current.secure.blobs
    return replace(state, leftovers={**state.leftovers, current.number: blobs}) if blobs else state
