"""Scores of the versions of a simulated run: on a central test set, on clients' own held-out examples, and by class of
device.

The coordinator receives them like an evaluator's scores, so a plan's ``finish`` may use them. Each has a source:

=============== ====================================================================================================
evaluator       the central test set
clients         over the held-out examples of all scored clients: the mean, or the value of the added states
clients.p10     the 10th percentile over those clients, each counting once: a tenth of them is below. For a metric that
                should be high, such as accuracy, it describes the clients with the worst results
clients.p90     the 90th percentile: the same for a metric that should be low, such as the loss
class.<name>    the same over the held-out examples of the clients of one class
=============== ====================================================================================================

A metric may be undefined (NaN) on a client's examples, such as an AUC where all have one label. That client is left out
of this metric, and the metric ``<name>.undefined`` of the source ``clients`` has the number of such clients; of the
source ``evaluator`` it is 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client_sdk.learners import LearnerError, evaluate, pooled_by, values_of
from client_sdk.learning.errors import LearningError
from client_sdk.metrics import UNDEFINED, undefined
from client_sdk.protocol.devices import Score
from client_sdk.tensors import Tensors
from coordinator.engine.plan import Plan
from simulation.clients import Clients
from simulation.errors import SimulationError, not_scored
from simulation.virtual.behaviour import Habits
from simulation.virtual.simulation import Simulation

CENTRAL = "evaluator"
CLIENTS = "clients"
LOW, HIGH = "clients.p10", "clients.p90"
BY_CLASS = "class."
DEVICES = "devices"
"""The source of scores that devices report themselves, where the plan's task requires it."""


def metrics_of(learner: Any) -> frozenset[str]:
    """The names of the metrics that a learner says it has; none for a learner that does not say."""
    metrics = getattr(learner, "metrics", None)
    return frozenset(metrics) if isinstance(metrics, Mapping) else frozenset()


def counted(score: Score, parts: Sequence[Score], names: Collection[str]) -> Score:
    """``score`` with the number of ``parts`` that lack a metric, for each of ``names`` and of all parts' metrics that
    some part lacks."""
    known = {*names, *(name for part in parts for name in part.metrics if not name.endswith(UNDEFINED))}
    lacking = {name: sum(name not in part.metrics for part in parts) for name in sorted(known)}
    more = {undefined(name): float(count) for name, count in lacking.items() if count}
    return Score(examples=score.examples, metrics={**score.metrics, **more})


def by_source(
    devices: Sequence[str],
    scores: Sequence[Score | None],
    class_of: Callable[[str], str],
    learner: Any = None,
) -> dict[str, Score]:
    """The scores of clients, by source. Clients without held-out examples do not count; empty without any. ``learner``:
    its metrics, which no client may have, are counted; those with a state are computed by it. LearnerError where a
    state does not add up."""
    scored = [(device, score) for device, score in zip(devices, scores, strict=True) if score is not None]
    if not scored:
        return {}
    known = [score for _, score in scored]
    found = {
        CLIENTS: counted(pooled_by(learner, known), known, metrics_of(learner)),
        LOW: _percentile(known, 10.0),
        HIGH: _percentile(known, 90.0),
    }
    classes: dict[str, list[Score]] = {}
    for device, score in scored:
        classes.setdefault(class_of(device), []).append(score)
    if set(classes) != {""}:
        found |= {class_source(name): pooled_by(learner, members) for name, members in sorted(classes.items())}
    return found


def class_source(name: str) -> str:
    """The source of a class's scores: its name, with the characters replaced that a source may not have."""
    return BY_CLASS + (re.sub(r"[^a-z0-9._-]+", "-", name.lower()) or "none")[:58]


def _percentile(scores: Sequence[Score], percent: float) -> Score:
    """The percentile of each metric over the clients that have it, interpolated linearly."""
    metrics = {name: float(np.percentile(having, percent)) for name, having in _by_metric(scores).items()}
    return Score(examples=sum(score.examples for score in scores), metrics=metrics)


def _by_metric(scores: Sequence[Score]) -> dict[str, list[float]]:
    """For each metric the values of the scores that have it, in the order of the names; but for those that say where
    another one has no value."""
    names = sorted({name for score in scores for name in score.metrics if not name.endswith(UNDEFINED)})
    return {name: [score.metrics[name] for score in scores if name in score.metrics] for name in names}


# ------------------------------------------------------------ the versions of a simulated run


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of ``simulate``, checked."""

    plan: Plan
    clients: Clients
    test: Any
    scored: Sequence[str]
    score_every: int
    class_of: Callable[[str], str]
    habits: Habits


def score_version(simulation: Simulation, learner: Any, inputs: Inputs) -> dict[str, Score]:
    """Scores the newest checkpoint, and stores the scores as an evaluator's. Returns the scores by source."""
    model = simulation.model()
    found: dict[str, Score] = {}
    if inputs.test is not None:
        central = _central(learner, inputs, model)
        found[CENTRAL] = counted(central, [central], metrics_of(learner))
    if inputs.scored:
        simulation.mark_states(inputs.scored)
        scores = simulation.engine.score(model, inputs.scored)
        try:
            held_out = by_source(inputs.scored, scores, inputs.class_of, learner)
        except (LearnerError, LearningError) as error:
            raise SimulationError(str(error)) from error
        if not held_out:
            raise ValueError(
                f"score_clients asks for the scores of {len(inputs.scored)} clients, and none of them has held-out "
                "examples: partition(..., held_out=0.2), or --held-out 0.2, makes some"
            )
        found |= held_out
    for source, score in found.items():
        simulation.score(source, score)
    return found


def score_devices(simulation: Simulation, learner: Any, round: int) -> None:
    """Computes the metrics of which the devices of this round sent states, about the version that they received."""
    view = simulation.ended(round)
    if view.states and view.version is not None:
        version = view.version - 1
        rows = simulation.store.metrics(simulation.run)
        examples = next(row.examples for row in rows if (row.source, row.version) == (DEVICES, version))
        score = Score(examples=examples, metrics=values_of(learner, view.states))
        simulation.score(DEVICES, score, version)


def shown_scores(scores: Mapping[str, Score]) -> dict[str, float]:
    """The scores that a progress line shows."""
    shown = next((scores[source] for source in (CENTRAL, CLIENTS) if source in scores), None)
    return {} if shown is None else dict(shown.metrics)


def _central(learner: Any, inputs: Inputs, model: Tensors) -> Score:
    try:
        return evaluate(learner, inputs.plan.task.learner, model, inputs.test)
    except Exception as error:
        raise SimulationError(not_scored("the model", error, on=" on the test data")) from error
