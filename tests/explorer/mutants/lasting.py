"""Bugs in when a phase or a run ends, in who may be drawn for it, and in what stays behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from coordinator.engine import eligibility
from coordinator.engine.kinds.datacenter import Datacenter
from coordinator.engine.phases import finishing, leasing
from coordinator.engine.state import RunState
from coordinator.runtime import actions, commits, fleet, timekeeping, workers
from coordinator.runtime.devices import Outcomes
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.uncertain_updates import UncertainUpdates
from coordinator.store import chain, memory, sql
from coordinator.store.port import Reader
from tests.explorer.mutants.datacenter import CENTER
from tests.explorer.mutants.registry import mutant
from tests.explorer.shape import FEW_EXAMPLES

Patches = list[tuple[Any, str, Any]]
_eligible = Fleet.eligible
_CALM: dict[str, Any] = {"rates": {}, "replicas": 1}
_TARGET: dict[str, Any] = {
    "finish": {"rounds": 6, "metric": "accuracy", "source": "evaluator", "target": 0.5, "min_delta": 0.0}
}


@mutant(
    "lease-outlasts-its-worker",
    "liveness",
    "deadline",
    plan=CENTER,
    workers=1,
    lost_workers=1,
    focus=("worker-crash", "training"),
)
def _lease_outlasts_its_worker() -> Patches:
    """A lease whose heartbeats stop ends when the whole round is given up, and not before."""
    leased = leasing.leased

    def long(state: RunState, event: Any) -> Any:
        following, effects = leased(state, event)
        if following is state:
            return following, effects
        return following.with_round(replace(following.current, deadline=following.current.give_up_at)), effects

    return [(leasing, "leased", long)]


@mutant("quorum-does-not-return", "liveness", plan={"datacenter": {**CENTER["datacenter"], "every": None}}, workers=0)
def _quorum_does_not_return() -> Patches:
    """A round that no worker takes waits for a whole cohort of devices, though a quorum should be enough in the end."""

    def back(state: RunState, at: float, waiting: int, unspendable: int = 0) -> bool:
        section, current = state.plan.datacenter, state.round
        if section is None or current is None or current.phase != "leasing":
            return False
        return waiting > len(state.plan.name) * 1000

    return [(owner, "fleet_is_back", back) for owner in (leasing, timekeeping)]


@mutant("planned-round-returns", "log", plan=CENTER, workers=1, **_CALM)
def _planned_round_returns() -> Patches:
    """A round that the plan gives to the datacenter goes to the devices as soon as enough wait."""
    back = leasing.fleet_is_back

    def at_once(state: RunState, at: float, waiting: int, unspendable: int = 0) -> bool:
        if state.round is None or state.round.phase != "leasing":
            return False
        return back(state.with_round(replace(state.round, planned=False)), at, waiting)

    return [(owner, "fleet_is_back", at_once) for owner in (leasing, timekeeping, workers, actions)]


@mutant("planned-round-does-not-wait", "log", plan=CENTER, workers=1, **_CALM)
def _planned_round_does_not_wait() -> Patches:
    """A round that the plan gives to the datacenter does not wait for a worker."""
    lasts_s = Datacenter.lasts_s

    def impatient(kind: Datacenter, plan: Any, round: Any) -> float:
        return 0.0 if round.phase == "leasing" else lasts_s(kind, plan, round)

    return [(Datacenter, "lasts_s", impatient)]


@mutant("clocks-must-agree", "deadline", replicas=3, focus=("clock-ahead", "idle"), rates={"delay": 0.05})
def _clocks_must_agree() -> Patches:
    """Clocks of replicas that differ by less than the product allows move deadlines."""
    return [(timekeeping, "_SKEW_S", 0.0)]


@mutant("few-examples-drawn", "draw", "claims")
def _few_examples_drawn() -> Patches:
    """A device with fewer examples than the plan asks for is drawn."""

    def eligible(self: Fleet, state: RunState, rows: Any, without: Any = ()) -> Any:
        more = [replace(row, examples=max(row.examples, FEW_EXAMPLES)) for row in rows]
        return _eligible(self, state, more, without)

    return [(Fleet, "eligible", eligible), (fleet, "_against", lambda state, offer, examples: None)]


@mutant("stranger-drawn", "draw", "claims")
def _stranger_drawn() -> Patches:
    """A device that does not have the plan's learner is drawn."""
    reason_against = eligibility.reason_against

    def fits(task: Any, offer: str, *more: Any) -> str | None:
        found = reason_against(task, offer, *more)
        return None if found is not None and "learner" in found else found

    return [(fleet, "reason_against", fits)]


@mutant("target-missed", "log", "one-end", plan=_TARGET, focus=("op-score", "collecting"), storm_s=60.0)
def _target_missed() -> Patches:
    """A score that is exactly the target does not finish the run."""
    better_by = finishing._better_by
    return [
        (finishing, "_at_least_as_good", lambda finish, value, target: better_by(finish, value, target) > 0),
    ]


@mutant(
    "any-source-finishes",
    "log",
    "one-end",
    "retention",
    "claims",
    plan=_TARGET,
    focus=("op-score", "collecting"),
    storm_s=60.0,
)
def _any_source_finishes() -> Patches:
    """The scores of any evaluator finish the run, also of one that the plan does not name."""
    observe = finishing.observe

    def observed(state: RunState, version: int, source: str, metrics: Any) -> Any:
        return observe(state, version, state.plan.finish.source, metrics)

    return [(finishing, "observe", observed)]


@mutant(
    "failed-update-stays", "retention", focus=("store-torn", "collecting"), replicas=1, blobs="memory", storm_s=60.0
)
def _failed_update_stays() -> Patches:
    """The bytes of an update whose transaction failed stay on the disk as long as the process stays up."""
    return [(UncertainUpdates, "settle", lambda self: None)]


@mutant(
    "optimizer-state-stays",
    "retention",
    plan={
        "aggregation": {
            "weighting": "equal",
            "weight_cap": 50,
            "partial": "full",
            "rule": "mean",
            "rule_parameters": {},
            "clip_norm": None,
            "server_optimizer": "fedadam",
            "server_optimizer_parameters": {"beta1": 0.5, "tau": 0.25},
            "server_learning_rate": 1.0,
        }
    },
    replicas=1,
)
def _optimizer_state_stays() -> Patches:
    """Each state of the server optimizer stays on the disk for ever."""
    return [(commits, "replaced_by", lambda store, run, row: set())]


@mutant("refusal-recorded-again", "named", focus=("lie", "committing"), liars=3, replicas=1)
def _refusal_recorded_again() -> Patches:
    """A late update is recorded each time that it is sent."""
    record_late = Outcomes.record_late

    def always(self: Outcomes, device: str, run: str, round: int, reason: str) -> None:
        with patch.object(Reader, "refusals_of", lambda reader, *which: []):
            record_late(self, device, run, round, reason)

    return [(Outcomes, "record_late", always)]


@mutant("link-without-time", "chain")
def _link_without_time() -> Patches:
    """The links of a log do not depend on the times of its events."""
    event_link = chain.event_link

    def timeless(before: str, seq: int, at: float, kind: str, body: str) -> str:
        return event_link(before, seq, 0.0, kind, body)

    owners = [owner for owner in (chain, memory, sql) if hasattr(owner, "event_link")]
    return [(owner, "event_link", timeless) for owner in owners]
