"""How a round ended, by its log: which updates count, with which weights, and what was committed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from coordinator.store.port import EventRow
from tests.explorer.secure.account import SecureAccount


@dataclass(slots=True)
class RoundEnding:
    """``reported`` and ``version`` are those at the end of the round."""

    round: int
    committed: bool
    reported: dict[str, tuple[str, int]]
    """Device -> (digest, weight) of every update in the log."""
    version: int
    digest: str = ""
    size: int = 0
    short: bool = False
    """Whether it was abandoned because its deadline passed without a quorum."""
    kind: str = "federated"
    lease: tuple[str, int, int] = ("", 0, 0)
    """(worker, attempt, fence) of a datacenter round's last lease."""
    invalid: frozenset[str] = frozenset()
    """Devices whose update was refused as invalid."""
    withdrawn: frozenset[str] = frozenset()
    cohort: frozenset[str] = frozenset()
    began: frozenset[str] = frozenset()
    """Devices that began to train."""
    waiting: int = 0
    """Eligible devices at the draw."""
    drawn_at: float = 0.0
    """Unix time of the draw of its cohort."""
    reports: dict[str, EventRow] = field(default_factory=dict)
    """The events of the updates in ``reported``, by device."""
    parents: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Of a buffered round: device -> (round of its draw, digest of the checkpoint that it was given)."""
    staleness: list[int] = field(default_factory=list)
    """Of a buffered round: how many updates are so many versions behind."""
    secure: SecureAccount | None = None
    """The last attempt of a secure round that had a cohort."""
    advancing: str = ""
    """Who let it commit the model moved by one unit."""


def weight_of(plan: dict[str, Any], report: dict[str, Any], *, in_parts: bool) -> int:
    """The integer weight of an update under the plan, from the event of its report. ``in_parts``: of an example."""
    aggregation, goal = plan["aggregation"], plan["cohort"]["goal"]
    fraction = aggregation["partial"] == "examples_seen"
    by_examples = aggregation["weighting"] == "examples"
    parts = 1024 if fraction and (in_parts or not by_examples) else 1
    while by_examples and parts > 1 and aggregation["weight_cap"] * goal * parts > 2**28:
        parts //= 2
    whole = parts * (min(report["examples"], aggregation["weight_cap"]) if by_examples else 1)
    if not fraction or report["complete"]:
        return max(1, int(whole))
    return max(1, int(whole) * int(report["steps"]) // int(report["steps_planned"]))


def scores_of(ending: RoundEnding) -> list[tuple[Any, Any]]:
    """(examples, metrics) of each score of the parent by a device of the round."""
    return [(event.body["held_out_examples"], event.body["held_out"]) for event in ending.reports.values()]


def devices_scores(ending: RoundEnding) -> dict[str, float]:
    """The mean of these scores."""
    return means(scores_of(ending)) if ending.kind == "federated" else {}


def means(parts: Iterable[tuple[int, Any]]) -> dict[str, float]:
    """Each metric averaged over the parts (weight, metrics) that have it, by weight."""
    by_name: dict[str, list[tuple[int, float]]] = {}
    for weight, metrics in parts:
        for name, value in metrics.items():
            by_name.setdefault(name, []).append((weight, value))
    return {name: math.fsum(w * v for w, v in found) / sum(w for w, _ in found) for name, found in by_name.items()}
