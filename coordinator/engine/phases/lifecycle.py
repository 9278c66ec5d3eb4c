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
from coordinator.engine.state import Lease, RunState

Step = tuple[RunState, list[fx.Effect]]
_EXCHANGES = ("sharing", "masking", "agreeing", "unmasking")


def open_next(state: RunState, at: float) -> Step:
    turn = wanted(state, at)
    opened = replace(
        state,
        phase="leasing" if turn.kind == "datacenter" else "selecting",
        round=state.round + 1,
        attempt=0,
        opened_at=at,
        collecting_at=None,
        waiting=0,
        pool=None,
        members={},
        kind="secure" if turn.kind == "federated" and state.plan.secure is not None else turn.kind,
        because=turn.because,
        planned=turn.planned,
        away_since=state.round + 1 if turn.falls_back and state.away_since is None else state.away_since,
        back_with=None,
        lease=None,
        give_up_at=None,
        secure=None,
        excluded={},
        advancing="",
    )
    opened = replace(opened, deadline=at + phase_s(opened))
    first = fx.Offer(round=opened.round) if turn.kind == "datacenter" else fx.Draw(round=opened.round)
    return opened, [record(opened, "open"), first]


def phase_s(state: RunState) -> float:
    """How long the phase lasts from its beginning to its deadline, at most. 0 for those without one."""
    cohort, section = state.plan.cohort, state.plan.datacenter
    if state.phase == "training" and section is not None:
        return section.lease_s
    if state.phase == "leasing" and section is not None:
        return section.wait_s if state.planned else cohort.select_s
    secure = state.plan.secure
    if secure is not None and state.phase == "sharing" and state.secure is not None and not state.secure.roster:
        return secure.expires_s
    if secure is not None and ((state.phase == "collecting" and state.attempt) or state.phase in _EXCHANGES):
        return secure.exchange_s
    return {"selecting": cohort.select_s, "collecting": cohort.collect_s}.get(state.phase, 0.0)


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
    state = retired(state)
    if state.kind != "datacenter":
        state = replace(state, abandoned_in_a_row=state.abandoned_in_a_row + 1, fleet_first=False)
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
        round=state.round, parent=state.checkpoint, contributions=contributions(state), optimizer=state.optimizer
    )


def contributions(state: RunState) -> tuple[fx.Contribution, ...]:
    """The updates acknowledged in the round under way, by device id; of a secure one the masked vectors, whose weights
    nobody knows."""
    if state.secure is not None:
        masked = sorted(state.secure.masked.items())
        return tuple(fx.Contribution(device=device, digest=digest, weight=0) for device, digest in masked)
    return tuple(
        fx.Contribution(device=device, digest=member.digest, weight=member.weight)
        for device, member in sorted(state.members.items())
        if member.digest is not None
    )


def public_body(state: RunState) -> dict[str, object]:
    """What the public may read of the round under way: counts, never who sent what."""
    if state.kind == "datacenter":
        return {**_fleet_body(state), **_lease_body(state, state.lease)}
    return {**_fleet_body(state), "because": state.because} if state.because else _fleet_body(state)


def _lease_body(state: RunState, lease: Lease | None) -> dict[str, object]:
    body: dict[str, object] = {"because": state.because}
    if lease is None:
        return body
    told = {
        "worker": lease.worker,
        "attempt": state.attempt,
        "fence": lease.fence,
        "since_at": lease.granted_at,
        "seen_at": lease.renewed_at,
        "step": lease.step,
        "metrics": lease.metrics,
    }
    return {**body, "lease": told, "bytes_in": lease.bytes, "metrics": lease.metrics}


def _fleet_body(state: RunState) -> dict[str, object]:
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
        **(_secure_body(state) if state.kind == "secure" else {}),
    }


def _secure_body(state: RunState) -> dict[str, object]:
    """How far the exchanges are. What the devices put in, and who of them is at fault, is not told."""
    body: dict[str, object] = {"exhausted": state.exhausted}
    secure = state.secure
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
        "left_out": len(state.excluded),
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
            **({"left_out": dict(state.excluded)} if state.excluded else {}),
            **({"set_aside": state.secure.set_aside} if state.secure is not None else {}),
        },
        kind=state.kind,
    )


def forget(state: RunState) -> list[fx.Effect]:
    """What of the round that ends need not be kept: of a secure one nothing is."""
    if state.secure is not None:
        return [fx.Discard(round=state.round, blobs=state.secure.blobs)]
    ended = state.round - state.plan.retention.rounds
    return [fx.Discard(round=ended)] if ended >= 1 else []


def retired(state: RunState) -> RunState:
    """The state in which the blobs of a secure round are leftovers: to be deleted, and remembered until they are."""
    blobs = () if state.secure is None else state.secure.blobs
    return replace(state, leftovers={**state.leftovers, state.round: blobs}) if blobs else state


def _rest(state: RunState) -> RunState:
    return replace(
        state,
        phase="idle",
        deadline=None,
        waiting=0,
        pool=None,
        members={},
        lease=None,
        give_up_at=None,
        secure=None,
        excluded={},
        advancing="",
    )


def mean_metrics(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Each metric averaged over the parts that have it, by weight. Exact, then rounded: finite where the parts are."""
    return Tally.total((metrics, weight) for weight, metrics in parts).means()
