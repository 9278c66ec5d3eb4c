"""The fleet, the data and the plan that all questions share: a function of the seed, and small enough that a question
takes minutes on one core.

The data is synthetic: each of ten labels is a Gaussian in 32 dimensions with a mean of its own, and the model is a
softmax regression. Phones are new, middle or old ones. They differ in speed, and a little in their labels, so that a
model that hears no old phones is worse on theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from client_sdk.data import Data, Examples
from client_sdk.protocol.devices import Score, Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation.clients import Clients
from simulation.clients.holdings import ClientData, Holdings, Indices
from simulation.clients.naming import Numbered
from simulation.partitioning import sampled
from simulation.virtual.behaviour import PHONES, Behaviour

LABELS, FEATURES = 10, 32
CLASSES = ("new", "middle", "old")
OWN = {"new": range(7), "middle": range(LABELS), "old": range(3, LABELS)}
"""The labels that the phones of a class have."""
SPEEDS = {"new": 0.5, "middle": 1.0, "old": 2.0}
"""Seconds of a step, as a factor."""
BEHAVIOUR = replace(PHONES, step_s=7.0, network_s=6.0)
"""A median phone takes a minute and a half for the task."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The size of what is played. Tests play less."""

    devices: int = 20_000
    goal: int = 256
    rounds: int = 60
    """The most rounds of a run."""
    target: float | None = 0.8
    """The accuracy on the test set at which a run ends; None: it plays all of its rounds."""
    seeds: int = 2
    """How many fleets each arm is played on: seeds 0, 1, ...."""

    def scaled(self, count: float) -> int:
        """A number of devices for a goal of 256, for this one."""
        return max(1, round(count * self.goal / 256))


def data_of(seed: int) -> Data:
    """20,000 examples to train on and 2,000 to test: x float32 [n, FEATURES], y int64 [n]."""
    rng = np.random.Generator(np.random.PCG64([seed, 7]))
    means = 0.7 * rng.standard_normal((LABELS, FEATURES))
    scale = np.logspace(0.0, -1.5, FEATURES)  # the small features are learned last

    def part(count: int) -> Examples:
        y = rng.integers(0, LABELS, count)
        return Examples((scale * (means[y] + rng.standard_normal((count, FEATURES)))).astype(np.float32), y)

    return Data(part(20_000), part(2_000))


class _ByClass:
    """``Holdings`` of phones whose class follows from their number."""

    at_hand = False

    def __init__(self, parts: Sequence[Holdings]) -> None:
        self._parts = parts
        self.sizes: Indices = np.zeros(0, np.int64)

    def _of(self, number: int) -> Holdings:
        return self._parts[number % len(self._parts)]

    def examples(self, number: int) -> int:
        return self._of(number).examples(number)

    def held_out(self, number: int) -> int:
        return self._of(number).held_out(number)

    def data(self, number: int) -> ClientData:
        return self._of(number).data(number)

    def labels(self, number: int) -> Indices | None:
        return self._of(number).labels(number)

    def level(self, number: int) -> float | None:
        return None


def fleet(setting: Setting, train: Examples, seed: int) -> Clients:
    """Phones with about 60 examples each, a fifth of them held out, made when they are selected."""
    parts = []
    for name in CLASSES:
        of = np.isin(train.y, OWN[name])
        part = Examples(train.x[of], train.y[of])
        made = sampled(part, setting.devices, examples=60, alpha=1.0, size_sigma=0.6, held_out=0.2, seed=seed)
        parts.append(made.holdings)
    return Clients(Numbered(setting.devices), _ByClass(parts))


def class_of(client: str) -> str:
    """new, middle or old."""
    return CLASSES[int(client.rsplit("-", 1)[1]) % len(CLASSES)]


def behaviour(**changes: Any) -> Mapping[str, Behaviour]:
    """That of each class: phones by the literature, of three speeds."""
    return {name: replace(BEHAVIOUR, step_s=BEHAVIOUR.step_s * factor, **changes) for name, factor in SPEEDS.items()}


def plan(setting: Setting, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The plan of all questions, with these changes by section."""
    made: dict[str, dict[str, Any]] = {
        "task": {"batch_size": 20, "epochs": 5, "learning_rate": 0.15},
        "cohort": {
            "select": setting.scaled(300), "goal": setting.goal, "quorum": 0.8, "select_s": 60.0, "collect_s": 600.0,
        },
        "finish": {"rounds": setting.rounds},
    }  # fmt: skip
    if setting.target is not None:
        made["finish"] |= {"metric": "accuracy", "target": setting.target}
    for section, fields in changes.items():
        made[section] = {**made.get(section, {}), **fields}
    return {"name": "question", **made}


class Softmax:
    """A learner: softmax regression by SGD, in numpy."""

    version = "1"

    def initial(self, seed: int) -> Tensors:
        return {"w": np.zeros((FEATURES, LABELS), np.float32), "b": np.zeros(LABELS, np.float32)}

    def train(
        self,
        model: Tensors,
        data: Examples,
        task: Task,
        *,
        rng: np.random.Generator,
        deadline: Callable[[], float],
        **_: Any,
    ) -> Update:
        w, b = model["w"].copy(), model["b"].copy()
        count = len(data)
        planned, steps, seen = task.planned_steps(count), 0, 0
        order = rng.permutation(count)
        start = 0
        while steps < planned and deadline() > 0:
            chosen = order[start : start + task.batch_size]
            x, y = data.x[chosen], data.y[chosen]
            gradient = _softmax(x @ w + b)
            gradient[np.arange(len(y)), y] -= 1.0
            gradient *= task.learning_rate / len(y)
            w -= x.T @ gradient
            b -= gradient.sum(0)
            steps, seen, start = steps + 1, seen + len(y), start + task.batch_size
            if start >= count:
                order, start = rng.permutation(count), 0
        work = Work(steps=steps, steps_planned=planned, examples_seen=seen, complete=steps == planned)
        return Update({"w": w - model["w"], "b": b - model["b"]}, count, work=work)

    def evaluate(self, model: Tensors, data: Examples) -> Score:
        hit = (data.x @ model["w"] + model["b"]).argmax(1) == data.y
        return Score(examples=len(data), metrics={"accuracy": float(hit.mean())})


def _softmax(logits: Any) -> Any:
    found = np.exp(logits - logits.max(1, keepdims=True))
    found /= found.sum(1, keepdims=True)
    return found
