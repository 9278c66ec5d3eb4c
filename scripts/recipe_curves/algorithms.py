"""Measures each algorithm beside its baseline, for the table of docs/recipes.md: three seeds, and what remains unsure.

The plans are those of the recipes, with other parts. Each run takes one core some seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from torch import nn

from client_sdk.learning import Learner, accuracy
from client_sdk.update import Update
from coordinator.engine.plan import Plan
from simulation import partition, recipes, simulate
from simulation.clients import Clients
from simulation.datasets import Dataset, load
from simulation.history import History

SEEDS = (0, 1, 2)
ROUNDS, LAST = 20, 5
TASK = {"epochs": 5, "batch_size": 10, "learning_rate": 0.03}


@cache
def mnist() -> Dataset:
    return load("mnist")


def logistic() -> Learner:
    """Multinomial logistic regression on 784 pixels, as in arXiv:1812.06127."""
    return Learner(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
        loss=nn.functional.cross_entropy,
        metrics={"accuracy": accuracy},
    )


def perceptron() -> Learner:
    return Learner(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)),
        loss=nn.functional.cross_entropy,
        metrics={"accuracy": accuracy},
    )


class Liars:
    """Trains; every fifth client sends four times the reverse of its update."""

    version = "1"

    def __init__(self) -> None:
        self._honest = logistic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def train(self, model: Any, data: Any, task: Any, *, device: str, **others: Any) -> Update:
        update = self._honest.train(model, data, task, device=device, **others)
        if int(device.rpartition("-")[2]) % 5:
            return update
        reverse = {name: -4 * array for name, array in update.delta.items()}
        return Update(reverse, examples=update.examples, metrics=update.metrics)


@dataclass(frozen=True)
class Scene:
    """A baseline and the algorithms that are held against it."""

    what: str
    clients: Callable[[int], Clients]
    """By the seed."""
    baseline: Mapping[str, Mapping[str, Any]]
    """Sections of its plan; those of an algorithm change them."""
    methods: Mapping[str, Mapping[str, Mapping[str, Any]]]
    learner: Callable[[], Any] = logistic
    score_clients: int = 0
    names: str = "FedAvg"
    """Of the baseline."""
    own: bool = False
    """Whether the accuracy is that of clients' own models, on their own examples."""


def _rule(name: str, **parameters: float) -> dict[str, Any]:
    return {"aggregation": {"rule": name, "rule_parameters": parameters}}


def _server(name: str, rate: float) -> dict[str, Any]:
    return {"aggregation": {"server_optimizer": name, "server_learning_rate": rate}}


def _chosen(name: str) -> dict[str, Any]:
    return {"cohort": {"choose": name}}


def _strategy(name: str, **parameters: float) -> dict[str, Any]:
    return {"strategy": {"name": name, "parameters": parameters}}


def _codec(name: str) -> dict[str, Any]:
    return {"task": {"codec": name}}


_LAST_LAYER = {"task": {"averaged": ["!3.*"]}}


def _split(number: int, by: Any, **more: Any) -> Callable[[int], Clients]:
    return lambda seed: partition(mnist(), number, by=by, seed=seed, **more)


TWO_DIGITS = _split(1000, "labels", labels_per_client=2)
SCENES: dict[str, Scene] = {
    "digits": Scene(
        "1,000 clients of two digits each",
        TWO_DIGITS,
        {},
        {
            "`adaptive-mu`": _strategy("adaptive-mu"),
            "`lars`, rate 20": _server("lars", 20.0),
            "`lamb`, rate 0.2": _server("lamb", 0.2),
            "`radam`, rate 0.1": _server("radam", 0.1),
            "`entropy1@1`": {"task": {"codec": "entropy1@1"}},
            "`entropy2@1`": {"task": {"codec": "entropy2@1"}},
            "`entropy4@1`": {"task": {"codec": "entropy4@1"}},
        },
    ),
    "chosen": Scene(
        "the same, 100 of them wait for each round",
        TWO_DIGITS,
        {"cohort": {"pool": 100}, "aggregation": {"weighting": "equal"}},
        {"`power-of-choice`": _chosen("power-of-choice"), "`oort`": _chosen("oort")},
        names="FedAvg, `uniform`",
    ),
    "uneven": Scene(
        "300 clients of some digits, sizes log-normal (sigma 1.5)",
        _split(300, "dirichlet", alpha=0.1, size_sigma=1.5, min_examples=10),
        {},
        {"`fednova`": _strategy("fednova")},
    ),
    "fair": Scene(
        "100 clients with labels of their own mixture, a fifth held out, E = 1",
        _split(100, "dirichlet", alpha=0.3, held_out=0.2),
        {"aggregation": {"weighting": "equal"}, "task": {"epochs": 1}},
        {
            "`q-ffl`, q = 0.1, rate 3": _strategy("q-ffl", q=0.1) | _server("average", 3.0),
            "`q-ffl`, q = 1, rate 10": _strategy("q-ffl", q=1) | _server("average", 10.0),
        },
        score_clients=100,
        names="FedAvg, equal weights",
    ),
    "drift": Scene(
        "30 clients of some digits, each in every third round or so",
        _split(30, "dirichlet", alpha=0.1),
        {"aggregation": {"weighting": "equal"}},
        {
            "`scaffold`": _strategy("scaffold", population=30),
            "`feddyn`, mu = 0.1": _strategy("feddyn", population=30) | {"task": {"mu": 0.1}},
            "`top-hundredth@1`": _codec("top-hundredth@1"),
            "`top-hundredth@1`, `error-feedback`": _codec("top-hundredth@1") | _strategy("error-feedback"),
            "`sign@1`": _codec("sign@1"),
            "`sign@1`, `error-feedback`": _codec("sign@1") | _strategy("error-feedback"),
        },
        names="FedAvg, equal weights",
    ),
    "personal": Scene(
        "20 clients of two digits each, a perceptron of 64 units, scored on what each holds out",
        _split(20, "labels", labels_per_client=2, held_out=0.2),
        {"task": {"epochs": 1}},
        {
            "`ditto`, lambda = 0.5": _strategy("ditto", **{"lambda": 0.5}),
            "`fedper`, the last layer": _strategy("fedper") | _LAST_LAYER,
            "`fedrep`, the last layer": _strategy("fedrep") | _LAST_LAYER,
        },
        learner=perceptron,
        score_clients=20,
        own=True,
    ),
    "liars": Scene(
        "1,000 clients with labels alike, every fifth sends -4 times its update; 20 in a round",
        _split(1000, "iid"),
        {"cohort": {"select": 20, "goal": 20, "quorum": 1.0}, "aggregation": {"weighting": "equal"}},
        {
            "`median`": _rule("median"),
            "`krum`, wrong = 8": _rule("krum", wrong=8),
            "`krum`, wrong = 8, keep = 10": _rule("krum", wrong=8, keep=10),
            "`geometric-median`": _rule("geometric-median"),
            "`centered-clipping`, radius 0.3": _rule("centered-clipping", radius=0.3),
        },
        learner=Liars,
    ),
}


def play(scene: Scene, changes: Mapping[str, Mapping[str, Any]], seed: int) -> History:
    """One run."""
    plan: dict[str, Any] = recipes.plan("algorithm", rounds=ROUNDS, per_round=10, task=TASK).written_out
    for sections in (scene.baseline, changes):
        for name, section in sections.items():
            plan[name] = plan.get(name, {}) | section
    options: dict[str, Any] = {"test": mnist().test, "score_clients": scene.score_clients, "progress": False}
    history: History = simulate(Plan.parse(plan), scene.learner(), scene.clients(seed), seed=seed, **options)
    return history


def measured(key: str) -> dict[str, Any]:
    """A scene's figures: for each method those of the seeds, the baseline first."""
    scene, found = SCENES[key], {}
    for name, changes in {scene.names: {}, **scene.methods}.items():
        began, runs = time.process_time(), [play(scene, changes, seed) for seed in SEEDS]
        sent = sum(row.bytes for run in runs for row in run.rounds)
        found[name] = {
            "accuracy": [_end(run, "clients" if scene.own else "evaluator") for run in runs],
            "kilobytes": round(sent / sum(row.counted for run in runs for row in run.rounds) / 1e3, 1),
            "cpu_s": round(time.process_time() - began, 1),
        }
        if scene.score_clients:
            found[name]["worst"] = [_end(run, "clients.p10") for run in runs]
    return {"what": scene.what, "methods": found}


def _end(run: History, source: str) -> float:
    """The mean over the last scored rounds."""
    return round(float(np.mean(run.metric("accuracy", source).values[-LAST:])), 5)
