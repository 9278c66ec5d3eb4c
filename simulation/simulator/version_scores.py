"""Scores the versions of a simulated run, and stores the scores as an evaluator's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_sdk.learners import LearnerError, evaluate, values_of
from client_sdk.learning.errors import LearningError
from client_sdk.protocol.devices import Score
from client_sdk.tensors import Tensors
from coordinator.engine.plan import Plan
from simulation.clients import Clients
from simulation.errors import SimulationError, not_scored
from simulation.simulator.scoring import CENTRAL, CLIENTS, DEVICES, by_source, counted, metrics_of
from simulation.virtual.behaviour import Habits
from simulation.virtual.simulation import Simulation


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
    """Scores the newest checkpoint. Returns the scores by source."""
    model = simulation.model()
    found: dict[str, Score] = {}
    if inputs.test is not None:
        central = _central(learner, inputs, model)
        found[CENTRAL] = counted(central, [central], metrics_of(learner))
    if inputs.scored:
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
