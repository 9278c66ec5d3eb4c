"""Checks what a round shows to people when it has ended: its public record and its scores, from the log alone."""

from __future__ import annotations

import math
from typing import Any

from coordinator.store.port import RoundRow
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import Followed
from tests.explorer.round_ending import RoundEnding, means, scores_of


def shown(durable: Durable, run: Followed, ending: RoundEnding, row: RoundRow) -> None:
    """The public record of a federated round, and the scores by its devices of the model that they received."""
    reports, body = [event.body for event in ending.reports.values()], row.body
    began = (ending.began | ending.invalid | ending.reported.keys()) - ending.withdrawn
    counts = (ending.waiting, len(ending.cohort), len(began), len(reports), len(ending.withdrawn))
    wanted: dict[str, Any] = {
        "funnel": dict(zip(("waiting", "selected", "training", "reported", "withdrawn"), counts, strict=True)),
        "bytes_in": sum(report["bytes"] for report in reports),
        "weight": sum(weight for _, weight in ending.reported.values()),
        "partial": sum(not report["complete"] for report in reports),
        "version": ending.version if ending.committed else None,
        "digest": ending.digest if ending.committed else None,
        "pool": run.pools.get(ending.round),
        "cohort": sorted(ending.cohort),
    }
    for name, value in wanted.items():
        if body.get(name) != value:
            raise Broken("public", f"round {ending.round} of {run.run}: {name} is {body.get(name)}, not {value}")
    weights = {device: weight for device, (_, weight) in ending.reported.items()}
    _same(run, ending, body["metrics"], means((weights[d], r.body["metrics"]) for d, r in ending.reports.items()))
    if ending.committed:
        _scored(durable, run, ending)


def _scored(durable: Durable, run: Followed, ending: RoundEnding) -> None:
    """The devices' scores are of the version that they received, the parent."""
    scored = scores_of(ending)
    found = [row for row in durable.store.metrics(run.run) if row.source == "devices" and row.version >= ending.version]
    if found:
        raise Broken("public", f"version {ending.version} of {run.run} has scores of devices that never had it")
    rows = [
        row for row in durable.store.metrics(run.run) if row.source == "devices" and row.version == ending.version - 1
    ]
    _same(run, ending, {row.name: row.value for row in rows}, means(scored))
    if any(row.examples != sum(examples for examples, _ in scored) for row in rows):
        raise Broken("public", f"the scores of version {ending.version - 1} of {run.run} have other examples")


def _same(run: Followed, ending: RoundEnding, found: Any, wanted: dict[str, float]) -> None:
    close = found.keys() == wanted.keys() and all(math.isclose(found[name], wanted[name]) for name in wanted)
    if not close:
        raise Broken("public", f"round {ending.round} of {run.run}: its metrics are {found}, not {wanted}")
