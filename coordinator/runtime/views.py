"""Messages for operators, made from rows of the store and states of runs. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from client_sdk.privacy.accounting import epsilon_of
from client_sdk.protocol.devices import rounded_size
from client_sdk.protocol.names import copied
from client_sdk.protocol.operators import (
    AuthorityPlace,
    CheckpointView,
    EventView,
    Funnel,
    MetricView,
    PrivacyView,
    RoundView,
    RunView,
    Treatment,
)
from coordinator.engine.named_tensors import WITHIN
from coordinator.engine.rounds import KINDS, public_body
from coordinator.engine.secure.disputes import degrees
from coordinator.engine.state import RunState
from coordinator.runtime.privacy_ledgers import ROUNDING, budget
from coordinator.store.port import (
    AuthorityRow,
    CheckpointRow,
    EventRow,
    MetricRow,
    Reader,
    RefusalRow,
    RoundRow,
    RunRow,
)

_REASONS = 8
_SHOWN = (
    "because", "missed", "missed_at", "bytes_in", "weight", "version", "digest", "metrics", "clip_after", "within",
    "lease", "secure", "departures",
)  # fmt: skip
"""What a round's row has in its body, and its view as fields."""
_OF_DATA = ("clipped", "capped", "partial", "statistics_cut", "rounding", "refused")
"""The fields of ``Treatment`` that depend on the data of devices."""
_NO_STAGE = ("abandoned", "duplicate", "withdrawn")
"""Kinds of refusals of devices that are counted in another stage of the funnel: as reported, or as withdrawn."""


def run_view(
    row: RunRow, state: RunState, seq: int, latest: RoundView | None, *, stalled: str = "", trouble: str = ""
) -> RunView:
    return copied(
        RunView,
        row,
        name=state.name,
        status=state.status,
        reason=state.reason,
        phase=state.phase,
        round=state.round_number,
        version=state.version,
        checkpoint=state.checkpoint,
        rounds_committed=state.version,
        rounds_wanted=state.plan.finish.rounds,
        seq=seq,
        funnel=latest.funnel if latest else Funnel(),
        kind=latest.kind if latest else "federated",
        authority=latest.authority if latest else None,
        exhausted=state.exhausted,
        stalled=stalled,
        trouble=trouble,
    )


def with_ledger(reader: Reader, view: RunView, state: RunState, spent_by: Callable[[str], float]) -> RunView:
    """The view of a private run: what its rounds have cost, and what its ledger has left. ``spent_by``: what the device
    that has lost most by a ledger has lost, over runs."""
    privacy, plan = state.plan.privacy, state.plan
    if privacy is None:
        return view
    often = max((counted for _, counted in state.participation.values()), default=0)
    rho = reader.privacy_lost(state.run)
    ledger, most = privacy.ledger_of(state.run), budget(reader, plan, privacy, state.run)
    spent = rho if privacy.ledger is None else spent_by(ledger)
    told = PrivacyView(
        rounds=often,
        rounds_planned=privacy.participations(plan),
        rho=rho,
        epsilon=epsilon_of(rho, privacy.delta),
        epsilon_planned=privacy.spent(plan),
        delta=privacy.delta,
        noise=privacy.multiplier(plan),
        clip=privacy.clip_after(state.small),
        within=state.small.get(WITHIN),
        ledger=ledger,
        ledger_spent=epsilon_of(spent, privacy.delta),
        ledger_budget=epsilon_of(most, privacy.delta),
        rounds_left=max(0, int((most * ROUNDING - spent) / privacy.cost(plan))),
    )
    return view.model_copy(update={"privacy": told})


def with_marks(reader: Reader, view: RunView, state: RunState) -> RunView:
    """The view of a run with secure rounds: how many devices can contribute to its model no more, and who is barred,
    in dispute or suspected."""
    return view.model_copy(
        update={
            "devices_spent": reader.marked_devices(state.marked_on),
            "devices_registered": reader.registered_devices(),
            "barred": {device: found.until_round for device, found in sorted(state.barred.items())},
            "disputes": dict(sorted(degrees(state.disputes).items())),
            "suspicion": dict(sorted(state.suspicion.items())),
        }
    )


def unreadable_run_view(reader: Reader, row: RunRow, trouble: str) -> RunView:
    """The view of a run whose log this version cannot read."""
    newest = reader.newest_checkpoint(row.run)
    version, checkpoint = (0, row.init) if newest is None else (newest.version, newest.digest)
    finish = cast("dict[str, Any]", row.plan.get("finish") or {})
    return copied(
        RunView,
        row,
        status="running",
        reason="",
        phase="idle",
        round=max(reader.rows_by_round(row.run)["rounds"], default=0),
        version=version,
        checkpoint=checkpoint,
        rounds_committed=version,
        rounds_wanted=int(finish.get("rounds", 0)),
        funnel=Funnel(),
        trouble=trouble,
    )


def authority_at(authorities: Sequence[AuthorityRow], at: float) -> AuthorityPlace | None:
    """Where the authority's key was at this time, by the rows of the store."""
    before = [row for row in authorities if row.since <= at]
    return ("inside" if before[-1].inside else "apart") if before else None


def missed_of(row: RoundRow) -> int:
    """How often the round's selection found too few devices."""
    return cast("int", row.body.get("missed", 0))


def round_view(
    reader: Reader,
    row: RoundRow,
    state: RunState | None,
    authorities: Sequence[AuthorityRow] | None = None,
    *,
    exact: bool = False,
) -> RoundView:
    """Returns the view of a round; for the round under way, with its current state. ``state`` None: from the row
    alone. ``authorities``: where they were read before."""
    live = state is not None and row.status == "open" and row.round == state.round_number and state.phase != "idle"
    body = cast("dict[str, Any]", public_body(state) if state is not None and live else row.body)
    funnel = Funnel.model_validate(body.get("funnel", {}))
    of_devices = KINDS[row.kind].of_devices
    refusals = reader.refusals(row.run, row.round) if of_devices else []
    first = first_refusals(refusals)
    late = [item.kind for item in first.values()].count("late")
    refused = len(first) - late
    missing = max(0, funnel.selected - funnel.reported - funnel.withdrawn - late - refused)
    closed = row.closed_at is not None or row.status != "open"
    funnel = funnel.model_copy(
        update={"late": late, "refused": refused, "dropped": missing if closed and row.kind != "buffered" else 0}
    )
    view = copied(
        RoundView,
        row,
        **{name: body[name] for name in _SHOWN if name in body},
        funnel=funnel,
        authority=authority_at(reader.authorities() if authorities is None else authorities, row.opened_at),
        staleness=tuple(body.get("staleness", ())),
        treatment=_treatment(row.kind, body, first.values(), refusals) if of_devices else None,
    )
    if exact or view.secure is None:
        return view
    return view.model_copy(update={"weight": rounded_total(view.weight, view.secure.masked)})


def rounded_total(weight: int, devices: int) -> int:
    """The total weight of a secure round as the API shows it: in whole multiples of the least power of ten that is no
    less than what its devices weigh on average. Exact totals of several rounds, with who is in each, are linear
    equations whose solution is every device's number of examples. The total of equal weights, which is the number of
    devices, stays as it is.

    It is no secret: whoever may read checkpoints can find the exact total of weights by examples, since a round's step
    is whole multiples of a number that depends on it alone: from 400 values of a step, 10 of 10 totals of 20 devices
    were found. Equal weights are what protects sizes.
    """
    unit = 1
    while unit * max(1, devices) < weight:
        unit *= 10
    return (weight + unit // 2) // unit * unit


def _treatment(
    kind: str, body: Mapping[str, Any], refusals: Iterable[RefusalRow], every: Sequence[RefusalRow]
) -> Treatment:
    """``refusals``: the first of each device; ``every``: all of the round."""
    of_sum = {"zero_sum": body.get("zero_sum", False), "raised": body.get("raised", 0)}
    of_sum["duplicates"] = len({(item.device, item.digest) for item in every if item.kind == "duplicate"})
    if not KINDS[kind].single_updates:
        of_sum["rounding"] = body.get("rounding")
        return Treatment(**{**dict.fromkeys(_OF_DATA), **of_sum})
    reasons = Counter(item.reason for item in refusals if item.kind != "late")
    common = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:_REASONS]
    return Treatment(**body.get("treatment", {}), partial=body.get("partial", 0), **of_sum, refused=dict(common))


def first_refusals(refusals: Sequence[RefusalRow]) -> dict[str, RefusalRow]:
    """Device -> the first refusal of its update in a round, of those that are a stage of the funnel."""
    return {item.device: item for item in reversed(refusals) if item.kind not in _NO_STAGE}


def checkpoint_view(row: CheckpointRow, digests: dict[int, str]) -> CheckpointView:
    parent = None if row.parent_version is None else digests[row.parent_version]
    return copied(CheckpointView, row, parent=parent)


def metric_view(row: MetricRow) -> MetricView:
    return MetricView.model_validate(row, from_attributes=True)


def event_view(row: EventRow, *, secure: bool = False) -> EventView:
    """``secure``: the run has secure rounds. Their total weights stand in the views of rounds, see
    ``rounded_total``. Of other runs each device's number of examples is rounded (``rounded_size``)."""
    body = row.body
    if secure:
        body = {name: value for name, value in body.items() if name != "weight"}
    if "cohort" in body:
        cohort = cast("list[tuple[str, int]]", body["cohort"])
        shown = [device if secure else [device, rounded_size(examples)] for device, examples in cohort]
        body = {**body, "cohort": shown}
    if secure and "device" in body:
        hidden = ("bytes", "seconds", "examples", "treated")
        body = {name: value for name, value in body.items() if name not in hidden}
    elif "device" in body and "examples" in body:
        body = {**body, "examples": rounded_size(cast("int", body["examples"]))}
    return EventView(seq=row.seq, at=row.at, kind=row.kind, body=body)
