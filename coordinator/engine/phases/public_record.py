"""The public view of a round, and the round's row in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from client_sdk.metrics import UNDEFINED, Tally, added, means_in, undefined
from coordinator.engine import effects as fx
from coordinator.engine.event_fields import UNTREATED, Treated
from coordinator.engine.kinds import kind_of
from coordinator.engine.named_tensors import CLIP, WITHIN
from coordinator.engine.state import Member, Round, RunState


def public_body(state: RunState) -> dict[str, object]:
    """The public view of the current round: counts, never which device sent what."""
    current = state.current
    body = kind_of(current).public(state)
    return body | {"because": current.because} if current.because else body


def fleet_body(round: Round, masked: Set[str] = frozenset()) -> dict[str, object]:
    """What a round shows of its devices. ``masked``: those that have sent their update, though it cannot be seen."""
    members = sorted(round.members.items())
    reported = [member for device, member in members if member.status == "reported" or device in masked]
    withdrawn = sum(member.status == "withdrawn" and device not in masked for device, member in members)
    training = round.count("training", "refused") + len(reported)
    departures = round.departures
    return {
        "funnel": {
            "waiting": round.waiting,
            "selected": len(round.members),
            "training": training,
            "reported": len(reported),
            "withdrawn": withdrawn,
        },
        "bytes_in": sum(member.bytes for member in reported),
        "weight": sum(member.weight for member in reported),
        "partial": sum(member.partial for member in reported),
        "metrics": mean_metrics([(member.weight, member.metrics) for member in reported]),
        **_treated([member.treated for member in reported if member.treated != UNTREATED]),
        **({"departures": departures} if departures else {}),
        **({"missed": round.missed, "missed_at": round.missed_at} if round.missed else {}),
    }


def _treated(treated: Sequence[Treated]) -> dict[str, object]:
    if not treated:
        return {}
    counts: dict[str, object] = {
        name: sum(getattr(one, name) for one in treated) for name in ("clipped", "capped", "statistics_cut")
    }
    return {"treatment": counts | {"rounding": max(one.rounding for one in treated)}}


def record(
    state: RunState,
    status: str,
    *,
    reason: str = "",
    closed_at: float | None = None,
    version: int | None = None,
    digest: str | None = None,
    zero_sum: bool = False,
    raised: int = 0,
    rounding: float = 0.0,
) -> fx.RecordRound:
    """The round's row: the public view, and the cohort and its pool, which are not public."""
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
            **({"pools": list(current.pools)} if current.pools else {}),
            **({"since": since} if (since := _drawn_before(current)) else {}),
            **({"zero_sum": True} if zero_sum else {}),
            **({"states": states} if status == "committed" and (states := added_states(current)) else {}),
            **({"raised": raised} if raised else {}),
            **({"rounding": rounding} if rounding else {}),
            **(_clip_after(state) if status == "committed" and not current.advancing else {}),
            **({"excluded": dict(current.excluded)} if current.excluded else {}),
        },
        kind=current.kind,
    )


def _clip_after(state: RunState) -> dict[str, object]:
    """What a committed round has found out for the next one, where the clip adapts."""
    return {"clip_after": state.small[CLIP], "within": state.small[WITHIN]} if CLIP in state.small else {}


def _drawn_before(round: Round) -> dict[str, int]:
    """The devices of a buffered round that were drawn in an earlier one, and in which."""
    return {device: one.since for device, one in sorted(round.members.items()) if 0 < one.since < round.number}


def mean_metrics(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Each metric averaged over the parts that have it, by weight. Exact, then rounded: finite where the parts are."""
    return Tally.total((metrics, weight, {}) for weight, metrics in parts).means()


def mean_scores(round: Round) -> dict[str, float]:
    """What the round's devices scored on examples of their own: each metric averaged over those that have it, by its
    weight, but for those that say where another one has no value: ``auc.undefined`` is the number of devices that have
    no ``auc``. Metrics with a state have no value here: ``added_states``."""
    parts, stateful = scored_by(round), added_states(round)
    silent = {undefined(name) for name in stateful}
    lacking = Counter(n for one in parts for n in one.held_out if n.endswith(UNDEFINED) and n not in silent)
    means = Tally.total(
        (means_in(one.held_out, stateful), one.held_out_examples, one.held_out_weights) for one in parts
    )
    return means.means() | {name: float(count) for name, count in lacking.items()}


def added_states(round: Round) -> dict[str, list[float]]:
    """The states of metrics that the round's devices sent, added."""
    parts = scored_by(round)
    names = {name for one in parts for name in one.held_out_states}
    return {n: added([one.held_out_states[n] for one in parts if n in one.held_out_states]) for n in sorted(names)}


def scored_by(round: Round) -> list[Member]:
    """The devices that sent a score, in the order of their ids."""
    return [member for _, member in sorted(round.members.items()) if member.held_out_examples]
