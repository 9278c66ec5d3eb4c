"""How a round opens: of the kind whose turn it is, with nothing of the round before."""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.deadlines import phase_s
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step
from coordinator.engine.phases.round_kind import wanted
from coordinator.engine.state import Round, RunState


def created(state: RunState, event: ev.Created) -> Step:
    """The run begins; nothing where it has begun, or was paused or stopped before."""
    new = state.round_number == 0 and state.status == "running"
    return open_next(state, event.at) if new else (state, [])


def open_next(state: RunState, at: float) -> Step:
    turn, number, fallback = wanted(state, at), state.round_number + 1, state.fallback
    away_since = number if turn.falls_back and fallback.away_since is None else fallback.away_since
    opened = Round(
        number=number,
        kind="secure" if turn.kind == "federated" and state.plan.secure is not None else turn.kind,
        phase="leasing" if turn.kind == "datacenter" else "selecting",
        opened_at=at,
        because=turn.because,
        planned=turn.planned,
    )
    following = replace(
        state,
        round=replace(opened, deadline=at + phase_s(state.plan, opened)),
        round_number=number,
        fallback=replace(fallback, away_since=away_since, back_with=None),
    )
    first = fx.Offer(round=number) if turn.kind == "datacenter" else fx.Draw(round=number)
    return following, [record(following, "open"), first]
