"""How rounds open, end and are told of: the part of the state machine that every phase shares.

Knows nothing of single devices' requests (``collecting``) or of which event is which (``rounds``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from client_sdk.tally import Tally
from coordinator.engine import effects as fx
from coordinator.engine.state import RunState

Step = tuple[RunState, list[fx.Effect]]


def open_next(state: RunState, at: float) -> Step:
    opened = replace(
        state,
        phase="selecting",
        round=state.round + 1,
        attempt=0,
        opened_at=at,
        collecting_at=None,
        deadline=at + state.plan.cohort.select_s,
        waiting=0,
        pool=None,
        members={},
    )
    return opened, [record(opened, "open"), fx.Draw(round=opened.round)]


def after_round(state: RunState, at: float) -> Step:
    """Where a run goes when its round has ended."""
    if state.ending is not None:
        status, reason = state.ending
        return _rest(replace(state, status=status, reason=reason, ending=None)), []
    if state.status != "running":
        return _rest(state), []
    return open_next(state, at)


def abandon(state: RunState, at: float, reason: str) -> Step:
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
        record(state, "abandoned", reason=reason, closed_at=at),
        *forget(state),
    ]
    following, more = after_round(replace(state, abandoned_in_a_row=state.abandoned_in_a_row + 1), at)
    return following, effects + more


def end_run(state: RunState, at: float, status: Literal["finished", "stopped"], reason: str) -> Step:
    """Ends the run: at once, or when the commit under way is over."""
    state = replace(state, ending=(status, reason))
    if state.phase == "committing":
        return state, []
    if state.phase == "idle":
        return after_round(state, at)
    return abandon(state, at, f"the run ended: {reason}")


def commit_action(state: RunState) -> fx.Commit:
    return fx.Commit(round=state.round, parent=state.checkpoint, contributions=contributions(state))


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
        "metrics": mean_metrics([(member.weight, member.metrics) for member in reported]),
    }


def record(
    state: RunState,
    status: str,
    *,
    reason: str = "",
    closed_at: float | None = None,
    version: int | None = None,
    digest: str | None = None,
) -> fx.RecordRound:
    """The round's row: what the public may read, and who was selected from which pool, which it may not."""
    return fx.RecordRound(
        round=state.round,
        status=status,
        reason=reason,
        attempt=state.attempt,
        opened_at=state.opened_at,
        collecting_at=state.collecting_at,
        closed_at=closed_at,
        body={
            **public_body(state),
            "version": version,
            "digest": digest,
            "pool": state.pool,
            "cohort": sorted(state.members),
        },
    )


def forget(state: RunState) -> list[fx.Effect]:
    ended = state.round - state.plan.retention.rounds
    return [fx.Discard(round=ended)] if ended >= 1 else []


def _rest(state: RunState) -> RunState:
    return replace(state, phase="idle", deadline=None, waiting=0, pool=None, members={})


def mean_metrics(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Each metric averaged over the parts that have it, by weight. Exact, then rounded: finite where the parts are."""
    return sum((Tally.of(metrics, weight) for weight, metrics in parts), Tally()).means()
