"""How rounds open, end and are told of: the part of the state machine that every phase shares.

Knows nothing of single devices' requests (``collecting``) or of which event is which (``rounds``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from client_sdk.metrics import Tally
from coordinator.engine import effects as fx
from coordinator.engine.phases.round_kind import wanted
from coordinator.engine.plan import Plan
from coordinator.engine.state import Round, RunState

Step = tuple[RunState, list[fx.Effect]]
_EXCHANGES = ("sharing", "masking", "agreeing", "unmasking")


def open_next(state: RunState, at: float) -> Step:
    turn = wanted(state, at)
    number, fallback = state.round_number + 1, state.fallback
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


def phase_s(plan: Plan, round: Round) -> float:
    """How long the phase lasts from its beginning to its deadline, at most. 0 for those without one."""
    cohort, section, secure = plan.cohort, plan.datacenter, plan.secure
    if round.phase == "training" and section is not None:
        return section.lease_s
    if round.phase == "leasing" and section is not None:
        return section.wait_s if round.planned else cohort.select_s
    if secure is not None and round.phase == "sharing" and round.secure is not None and not round.secure.roster:
        return secure.expires_s
    if secure is not None and ((round.phase == "collecting" and round.attempt) or round.phase in _EXCHANGES):
        return secure.exchange_s
    return {"selecting": cohort.select_s, "collecting": cohort.collect_s}.get(round.phase, 0.0)


def after_round(state: RunState, at: float) -> Step:
    """Where a run goes when its round has ended."""
    if state.ending is not None:
        status, reason = state.ending
        return replace(state, round=None, status=status, reason=reason, ending=None), []
    if state.status != "running":
        return replace(state, round=None), []
    return open_next(state, at)


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
        for item in contributions(ended)
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


def end_run(state: RunState, at: float, status: Literal["finished", "stopped"], reason: str) -> Step:
    """Ends the run: at once, or when the commit under way is over."""
    state = replace(state, ending=(status, reason))
    if state.phase == "committing":
        return state, []
    if state.phase == "idle":
        return after_round(state, at)
    return abandon(state, at, f"the run ended: {reason}")


def commit_action(state: RunState) -> fx.Commit:
    return fx.Commit(
        round=state.round_number,
        parent=state.checkpoint,
        contributions=contributions(state.current),
        optimizer=state.optimizer,
    )


def contributions(round: Round) -> tuple[fx.Contribution, ...]:
    """The updates acknowledged in the round, by device id; of a secure one the masked vectors, whose weights nobody
    knows."""
    if round.secure is not None:
        masked = sorted(round.secure.masked.items())
        return tuple(fx.Contribution(device=device, digest=digest, weight=0) for device, digest in masked)
    return tuple(
        fx.Contribution(device=device, digest=member.digest, weight=member.weight)
        for device, member in sorted(round.members.items())
        if member.digest is not None
    )


def public_body(state: RunState) -> dict[str, object]:
    """What the public may read of the round under way: counts, never who sent what."""
    current = state.current
    body = _fleet_body(current)
    if current.kind == "secure":
        body |= _secure_body(current, state.exhausted)
    if current.kind == "datacenter":
        return body | _lease_body(current)
    return body | {"because": current.because} if current.because else body


def _lease_body(round: Round) -> dict[str, object]:
    body: dict[str, object] = {"because": round.because}
    lease = round.lease
    if lease is None:
        return body
    holder = {
        "worker": lease.worker,
        "attempt": round.attempt,
        "fence": lease.fence,
        "since_at": lease.granted_at,
        "seen_at": lease.renewed_at,
        "step": lease.step,
        "metrics": lease.metrics,
    }
    return {**body, "lease": holder, "bytes_in": lease.bytes, "metrics": lease.metrics}


def _fleet_body(round: Round) -> dict[str, object]:
    reported = [member for _, member in sorted(round.members.items()) if member.status == "reported"]
    training = round.count("training") + len(reported)
    return {
        "funnel": {
            "waiting": round.waiting,
            "selected": len(round.members),
            "training": training,
            "reported": len(reported),
            "withdrawn": round.count("withdrawn"),
        },
        "bytes_in": sum(member.bytes for member in reported),
        "weight": sum(member.weight for member in reported),
        "partial": sum(member.partial for member in reported),
        "metrics": mean_metrics([(member.weight, member.metrics) for member in reported]),
    }


def _secure_body(round: Round, exhausted: str) -> dict[str, object]:
    """How far the exchanges are. What the devices put in, and who of them is at fault, stays out."""
    body: dict[str, object] = {"exhausted": exhausted}
    secure = round.secure
    if secure is None:
        return body
    counts: dict[str, object] = {
        "advertised": len(secure.advertised),
        "roster": len(secure.order),
        "threshold": secure.threshold,
        "shared": len(secure.shared),
        "masked": len(secure.masked),
        "signed": len(secure.signed),
        "revealed": len(secure.revealed),
        "left_out": len(round.excluded),
        "wrong_shares": sum(len(holders) for _, holders in secure.set_aside),
    }
    return {**body, "weight": secure.weight, "secure": counts}


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
    current = state.current
    return fx.RecordRound(
        round=current.number,
        status=status,
        reason=reason,
        attempt=current.attempt,
        opened_at=current.opened_at,
        collecting_at=current.collecting_at,
        closed_at=closed_at,
        body={
            **public_body(state),
            "version": version,
            "digest": digest,
            "pool": current.pool,
            "cohort": sorted(current.members),
            **({"left_out": dict(current.excluded)} if current.excluded else {}),
            **({"set_aside": current.secure.set_aside} if current.secure is not None else {}),
        },
        kind=current.kind,
    )


def forget(state: RunState) -> list[fx.Effect]:
    """What of the round that ends need not be kept: of a secure one nothing is."""
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


def mean_metrics(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Each metric averaged over the parts that have it, by weight. Exact, then rounded: finite where the parts are."""
    return Tally.total((metrics, weight) for weight, metrics in parts).means()
