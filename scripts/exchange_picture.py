"""Draws the picture of docs/datacenter.md: accuracy against bytes, for each compressor and for local steps.

``python -m scripts.exchange_picture`` trains on Fashion-MNIST (fetched where it is not cached) with two processes over
Gloo, once for each way that ``FIGURES`` does not hold yet, writes the figures down, and draws docs/images/exchange.svg.
Three minutes of two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

from client_sdk.data import Examples
from client_sdk.learning import Learner, accuracy
from client_sdk.learning.group import joined
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train
from simulation.datasets import load

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FIGURES = IMAGES / "exchange.json"
STEPS, BATCH = 600, 128
SGD: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.05}
DILOCO: dict[str, Any] = {"learning_rate": 1e-3, "outer_learning_rate": 0.7, "outer_momentum": 0.9}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "gradients at every step": {
        "none": SGD,
        "fp16": {**SGD, "compress": "fp16"},
        "bf16": {**SGD, "compress": "bf16"},
        "2bit": {**SGD, "compress": "2bit"},
        "1bit": {**SGD, "compress": "1bit"},
        "powersgd, rank 4": {**SGD, "compress": "powersgd"},
        "powersgd, rank 1": {**SGD, "compress": "powersgd", "compress_rank": 1},
        "topk, 10 %": {**SGD, "compress": "topk", "compress_density": 0.1},
        "topk, 1 %": {**SGD, "compress": "topk"},
    },
    "models averaged": {f"every {steps}": {**SGD, "sync_every": steps} for steps in (1, 4, 16, 64)},
    "DiLoCo": {f"every {steps}": {**DILOCO, "sync_every": steps} for steps in (4, 16, 64)},
}
"""Family -> label -> fields of the recipe."""


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def figures() -> None:
    """One process of two: rank 0 prints (bytes that a process sent, accuracy on the test images) of each way."""
    data = load("fashion-mnist")
    first, test = (Examples(np.asarray(part.x), np.asarray(part.y)) for part in (data.train, data.test))
    usual = partial(Learner, model=model, loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy})
    known = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    found: dict[str, dict[str, Any]] = {family: {} for family in WAYS}
    torch.set_num_threads(1)
    with joined("cpu") as group:
        for family, ways in WAYS.items():
            learner = usual(optimizer=torch.optim.AdamW) if family == "DiLoCo" else usual()
            for label, fields in ways.items():
                if (figure := known.get(family, {}).get(label)) is not None:
                    found[family][label] = figure
                    continue
                recipe = Recipe(steps=STEPS, batch_size=BATCH, seed=1, **fields)
                trained, report = train(learner, learner.initial(1), first, recipe, group=group)
                if group.rank == 0:
                    score = learner.evaluate(trained, test).metrics["accuracy"]
                    found[family][label] = {"bytes": report.gradient_bytes, "accuracy": round(score, 4)}
                    print(family, label, found[family][label], file=sys.stderr, flush=True)
        if group.rank == 0:
            print(json.dumps(found), flush=True)


def draw(found: dict[str, dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for family, ways in found.items():
        sent, scores = zip(*((one["bytes"] / 1e6, one["accuracy"]) for one in ways.values()), strict=True)
        axes.plot(sent, scores, "o" if family.startswith("gradients") else "o-", label=family)
        for label, x, y in zip(ways, sent, scores, strict=True):
            axes.annotate(label, (x, y), textcoords="offset points", xytext=(5, 4), fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("MB that a process sends")
    axes.set_ylabel("accuracy on Fashion-MNIST")
    axes.legend(loc="lower right")
    return figure


def main() -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    command = [*launcher, "--nproc-per-node", "2", "-m", "scripts.exchange_picture"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    FIGURES.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    with rc_context({"svg.hashsalt": "quorate"}):
        draw(found).savefig(IMAGES / "exchange.svg", metadata={"Date": None})


if __name__ == "__main__":
    figures() if "RANK" in os.environ else main()
