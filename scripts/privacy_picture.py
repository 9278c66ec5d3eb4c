"""Draws the picture of docs/privacy.md: accuracy against epsilon, for each mechanism and two numbers of clients.

``python -m scripts.privacy_picture`` runs what ``FIGURES`` does not hold yet, writes each figure down at once, and then
draws docs/images/privacy-epsilon.svg; Fashion-MNIST is fetched where it is not cached. Four hours of one core for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from client_sdk.protocol.devices import Work
from client_sdk.update import Update
from simulation import simulate
from simulation.datasets import load

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FIGURES = IMAGES / "privacy-epsilon.json"
CLIENTS, SEEDS, EPSILONS = (1_000, 10_000), (0, 1, 2), (0.25, 1.0, 4.0)
MECHANISMS = ("gaussian", "blt", "distributed")
ROUNDS, EACH, APART, DELTA, CLIP = 50, 7, 8, 1e-5, 0.5


class Point(NamedTuple):
    """One run. ``mechanism`` *none*: without noise."""

    clients: int
    mechanism: str
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.clients} {self.mechanism} {self.epsilon:g} {self.seed}"


class Softmax:
    """Softmax regression by plain gradient descent: one pass over a client's images in batches."""

    version = "1"

    def train(self, model: Any, data: Any, task: Any, **others: Any) -> Update:
        x, y = data
        weights, bias = (np.array(model[name], np.float32) for name in ("w", "b"))
        for start in range(0, len(y), task.batch_size):
            batch, labels = x[start : start + task.batch_size], y[start : start + task.batch_size]
            scores = batch @ weights + bias
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
            scores[np.arange(len(labels)), labels] -= 1
            scores *= task.learning_rate / len(labels)
            weights -= batch.T @ scores
            bias -= scores.sum(axis=0)
        delta = {"w": weights - model["w"], "b": bias - model["b"]}
        return Update(delta, examples=len(y), work=Work(steps=max(1, -(-len(y) // task.batch_size))))


def points() -> Iterator[Point]:
    for mechanism, clients in product(("none", *MECHANISMS), CLIENTS):
        for seed, epsilon in product(SEEDS, EPSILONS if mechanism in MECHANISMS else (0.0,)):
            yield Point(clients, mechanism, epsilon, seed)


def plan_of(point: Point) -> dict[str, Any]:
    """A tenth of the clients in each round; each in seven rounds at most, eight or more apart. Under masks a twentieth
    of a round's devices may vanish, and a tenth may collude with the coordinator."""
    goal = point.clients // 10
    plan: dict[str, Any] = {
        "name": "privacy",
        "task": {"epochs": 1, "batch_size": 10, "learning_rate": 0.1},
        "cohort": {"select": goal, "goal": goal, "quorum": 1.0, "most_rounds": EACH, "apart": APART},
        "aggregation": {"weighting": "equal", "partial": "refuse"},
        "finish": {"rounds": ROUNDS},
    }
    if point.mechanism == "none":
        plan["aggregation"]["clip_norm"] = CLIP
    else:
        plan["privacy"] = {"mechanism": point.mechanism, "clip": CLIP, "epsilon": point.epsilon, "delta": DELTA}
    if point.mechanism == "distributed":
        plan["secure"] = {"profile": "fast", "drop": goal // 20, "max_norm": CLIP, "max_abs": CLIP / 5}
    return plan


def accuracy(point: Point) -> float:
    """Of the mean of the last ten models on the test images."""
    data = load("fashion-mnist")
    order = np.random.default_rng(point.seed).permutation(len(data.train.y))
    x, y = (np.asarray(part)[order] for part in (data.train.x, data.train.y))
    x = x.reshape(len(x), -1).astype(np.float32)
    share = len(y) // point.clients
    held = {f"c{k:05}": (x[k * share : (k + 1) * share], y[k * share : (k + 1) * share]) for k in range(point.clients)}
    init = {"w": np.zeros((784, 10), np.float32), "b": np.zeros(10, np.float32)}
    options: dict[str, Any] = {"seed": point.seed, "keep_checkpoints": "all", "progress": False}
    if point.mechanism == "distributed":
        options["secure"] = "quantized"  # without masks: the same bits
    history = simulate(plan_of(point), Softmax(), held, init=init, **options)
    models = [history.checkpoint(version) for version in range(ROUNDS - 9, ROUNDS + 1)]
    weights, bias = (np.mean([model[name] for model in models], axis=0) for name in ("w", "b"))
    test = np.asarray(data.test.x).reshape(len(data.test.y), -1)
    return float(((test @ weights + bias).argmax(axis=1) == np.asarray(data.test.y)).mean())


def draw(found: dict[str, float]) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, clients in zip(figure.subplots(1, 2, sharey=True), CLIENTS, strict=True):
        for mechanism in MECHANISMS:
            rows = [[found[Point(clients, mechanism, epsilon, seed).name] for seed in SEEDS] for epsilon in EPSILONS]
            axes.plot(EPSILONS, [mean(row) for row in rows], marker="o", label=mechanism)
            axes.fill_between(EPSILONS, [min(row) for row in rows], [max(row) for row in rows], alpha=0.2)
        none = mean(found[Point(clients, "none", 0.0, seed).name] for seed in SEEDS)
        axes.axhline(none, color="gray", linestyle="--", label="without noise")
        axes.set_xscale("log", base=2)
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.set_xlabel(f"epsilon at delta {DELTA:g}")
        axes.set_title(f"{clients:,} clients, {clients // 10:,} a round")
        axes.set_ylim(0, 1)
    figure.axes[0].legend()
    figure.axes[0].set_ylabel("accuracy on Fashion-MNIST")
    return figure


def main() -> None:
    found: dict[str, float] = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    wanted = list(points())
    for number, point in enumerate(wanted, 1):
        if point.name not in found:
            found[point.name] = round(accuracy(point), 4)
            FIGURES.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
        print(f"{number} of {len(wanted)}: {point.name}: {found[point.name]:.4f}", flush=True)
    with rc_context({"svg.hashsalt": "quorate"}):
        draw(found).savefig(IMAGES / "privacy-epsilon.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
