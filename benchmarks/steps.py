"""Measures local training alone, in each way to make steps, beside the bare loop: autograd and ``torch.optim.SGD``.

``python -m benchmarks.steps [--quick] [--json]``. Clients have 51 to 60 examples of random data, one epoch, batches of
10, SGD 0.1, one thread. A pair is a few clients of ours (``Learner.train``: the model filled, trained, the update made)
and the same of a loop that loads the model into a new module. ``MODEL_WAY`` is the ratio of their CPU seconds.

    mlp          perceptron 784-200-200-10, 199,210 parameters
    cnn          the CNN of McMahan et al. 2017, 1,663,370
    logistic     108-2, 218
    perceptron   784-64-10, 50,890
    lstm         two layers of 256 over 80 characters, 819,920
    transformer  two encoder layers of width 128 over 40 tokens
    resnet       three blocks of 32 channels with group norm on 3 x 32 x 32

``met`` is null with ``--quick``. Before a ratio is printed, updates are compared: SystemExit where half of them differ
by more than 1e-5 of their norm (one may: a rounding can take an input across the kink of a ReLU).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.harness import Row, interleaved, main
from client_sdk.learning import Learner
from client_sdk.protocol.devices import Task
from simulation.engines.steps import Stepper
from simulation.history.local_steps import EXACT, Steps
from simulation.learners import adult_logistic, classifier, mnist_cnn, mnist_mlp, mnist_mlp_200, shakespeare_lstm

TASK = Task(learner="benchmark:steps", epochs=1, batch_size=10, learning_rate=0.1, seed=0)
CLOSE = 1e-5
Client = tuple[str, tuple[Any, Any]]


class Transformer(nn.Module):
    """Takes tokens [n, 40] below 80, gives logits [n, 80]."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.embedding, self.layers = nn.Embedding(80, 128), nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(128, 80)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(self.layers(self.embedding(tokens)).mean(1))
        return logits


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.first, self.second = (nn.GroupNorm(8, width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(self.two(torch.relu(self.first(self.one(x))))))


class ResNet(nn.Module):
    """Takes images [n, 3, 32, 32], gives logits [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1, stride=2)
        self.blocks = nn.Sequential(*(Block(32) for _ in range(3)))
        self.output = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))
        return logits


def floats(*shape: int) -> Callable[[np.random.Generator, int], Any]:
    """Makes inputs of this shape."""
    return lambda rng, count: rng.random((count, *shape), np.float32)


def tokens(length: int) -> Callable[[np.random.Generator, int], Any]:
    """Makes sequences of this length."""
    return lambda rng, count: rng.integers(0, 80, (count, length))


MODELS: dict[str, tuple[Callable[[], Learner], Any, int, int, dict[str, float | None]]] = {
    # name: learner, inputs, classes, clients of a pair, way -> aim
    "mlp": (mnist_mlp_200, floats(784), 10, 32, {"exact": None, "traced": 0.53, "stacked-4": None}),
    "cnn": (mnist_cnn, floats(784), 10, 3, {"exact": None, "traced": None, "channels_last": 0.88}),
    "logistic": (adult_logistic, floats(108), 2, 64, {"exact": None, "traced": None, "stacked-64": 0.15}),
    "perceptron": (mnist_mlp, floats(784), 10, 64, {"exact": None, "traced": None, "stacked-16": 0.6}),
    "lstm": (shakespeare_lstm, tokens(80), 80, 3, {"exact": 1.0}),
    "transformer": (lambda: classifier(Transformer), tokens(40), 80, 3, {"exact": None, "traced": 1.0}),
    "resnet": (
        lambda: classifier(ResNet), floats(3, 32, 32), 10, 3, {"exact": None, "traced": 1.0, "channels_last": None},
    ),
}  # fmt: skip


def bare(module: Callable[[], nn.Module], model: dict[str, torch.Tensor], clients: list[Client]) -> None:
    """The loop that a researcher writes: a new module for each client, and the difference of its weights."""
    for _, (x, y) in clients:
        mine = module()
        mine.load_state_dict(model)
        optimizer = torch.optim.SGD(mine.parameters(), lr=TASK.learning_rate)
        inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
        for batch in torch.randperm(len(targets)).split(TASK.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(mine(inputs[batch]), targets[batch]).backward()
            optimizer.step()
        {name: tensor - model[name] for name, tensor in mine.state_dict().items()}


def distance(one: Any, other: Any) -> float:
    """The relative L2 difference of two updates."""
    ours, theirs = (
        np.concatenate([array.ravel() for array in update.delta.values()]).astype(np.float64) for update in (one, other)
    )
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def measure(quick: bool) -> Iterator[Row]:
    """The rows, one after the other."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    for name, (make, inputs, classes, count, ways) in MODELS.items():
        learner = make()
        model = learner.initial(0)
        sizes = sorted(rng.integers(51, 61, count).tolist())
        clients: list[Client] = [
            (f"{place}", (inputs(rng, size), rng.integers(0, classes, size))) for place, size in enumerate(sizes)
        ]
        plain = Stepper(learner, EXACT)
        for way, aim in ways.items():
            stepper = Stepper(learner, Steps.of(f"; its local steps are {way}"))
            trained = zip(stepper.all(model, clients, TASK, 1), plain.all(model, clients, TASK, 1), strict=True)
            if not statistics.median(distance(*one) for one in trained) <= CLOSE:
                raise SystemExit(f"{name}: {way} trains something else: wrong results are not reported")
            weights = {key: torch.from_numpy(array) for key, array in model.items()}
            ours, other = partial(stepper.all, model, clients, TASK, 1), partial(bare, learner.model, weights, clients)
            found = interleaved(ours, other, 3 if quick else 7)
            ratio = found.ratio
            met = None if quick or aim is None else ratio.met(aim)
            cost = 1000 * found.ours_median / count
            yield Row(name=f"{name}_{way}", value=ratio.median, unit="ratio", ratio=ratio.median, aim=aim, met=met)
            yield Row(
                name=f"{name}_{way}_ms_a_client",
                value=cost,
                unit="CPU ms",
                limit=1000 * found.other_median / count,
                ratio=ratio.median,
            )


if __name__ == "__main__":
    main("steps", measure)
