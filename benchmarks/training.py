"""Measures what the local training of a round's clients costs, without all that a simulation does besides it.

``python -m benchmarks.training [--quick] [--json]``. CPU seconds of the training of some clients, one thread, over
those of the bare loop that trains the same clients from the same model (``simulation.demo.compare``): 60 examples a
client, one epoch, batches of 10, SGD. Data are random, as only shapes matter. Medians of interleaved pairs, a warm one
before. Both models are compared before a ratio is reported.

    logistic_training_vs_bare     108-2, 218 parameters
    perceptron_training_vs_bare   784-64-10, 50,890 parameters
    mlp_training_vs_bare          784-200-200-10, 199,210 parameters
    lstm_training_vs_bare         two LSTMs of 256, over 80 characters
    transformer_training_vs_bare  two layers of width 64 with 4 heads, over 80 characters
    resnet_training_vs_bare       three residual blocks of 16 to 64 channels with BatchNorm, over 28 x 28
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks._rounds import BATCH, furthest
from benchmarks.harness import Pairs, Row, interleaved, main
from client_sdk.data import Examples
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation.demo.compare import LoopPart, LoopRecipe, fedavg
from simulation.learners import CHARACTERS, AdultLogistic, MnistMlp, MnistMlp200, ShakespeareLstm, classifier

EXAMPLES = 60
POSITIONS = 80


class SmallTransformer(nn.Module):
    """Codes [n, 80] to logits [n, 80 classes] for the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 64)
        self.places = nn.Parameter(torch.zeros(POSITIONS, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(64, CHARACTERS)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        states = self.layers(self.embedding(codes.long()) + self.places)
        logits: torch.Tensor = self.output(states[:, -1])
        return logits


class Block(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2015, arXiv:1512.03385); halves the image."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.short = nn.Conv2d(before, after, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(inner + self.short(x))


class SmallResNet(nn.Module):
    """Images [n, 28, 28] to logits [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(1, 16), Block(16, 32), Block(32, 64))
        self.output = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(self.blocks(images.unsqueeze(1)).mean((2, 3)))
        return logits


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    module: Callable[[], nn.Module]
    aim: float
    """Times the bare loop's CPU seconds at most."""
    draw: Callable[[np.random.Generator], Examples]
    """One client's data."""
    clients: int
    """Trained in one measurement."""
    learning_rate: float = 0.1


def features(rng: np.random.Generator) -> Examples:
    return Examples(rng.random((EXAMPLES, 108), np.float32), rng.integers(0, 2, EXAMPLES))


def images(rng: np.random.Generator) -> Examples:
    return Examples(rng.random((EXAMPLES, 28, 28), np.float32), rng.integers(0, 10, EXAMPLES))


def texts(rng: np.random.Generator) -> Examples:
    return Examples(rng.integers(0, CHARACTERS, (EXAMPLES, POSITIONS)), rng.integers(0, CHARACTERS, EXAMPLES))


CASES = (
    Case("logistic", AdultLogistic, 0.15, features, 100),
    Case("perceptron", MnistMlp, 0.6, images, 100),
    Case("mlp", MnistMlp200, 0.53, images, 50),
    Case("lstm", ShakespeareLstm, 1.0, texts, 2),
    Case("transformer", SmallTransformer, 1.0, texts, 5),
    Case("resnet", SmallResNet, 1.0, images, 10, 0.01),
)


def beside_bare(case: Case, clients: int, pairs: int) -> Pairs:
    """The training of ``clients`` by us and by the bare loop in turn. SystemExit if the models differ."""
    rng = np.random.default_rng(0)
    data = [case.draw(rng) for _ in range(clients)]
    learner = classifier(case.module)
    initial = learner.initial(0)
    task = Task(learner="benchmarks:training", epochs=1, batch_size=BATCH, learning_rate=case.learning_rate)
    statistics = frozenset(learner.roles())
    recipe = LoopRecipe(
        model=case.module,
        loss=nn.functional.cross_entropy,
        epochs=1,
        batch_size=BATCH,
        learning_rate=case.learning_rate,
        statistics=statistics,
    )
    parts = [LoopPart(round=1, device=f"d-{number:03}", shard=number) for number in range(clients)]
    updates: list[Update] = []
    world: Mapping[str, torch.Tensor] = {}

    def ours() -> None:
        updates[:] = [learner.train(initial, data[part.shard], task, device=part.device, round=1) for part in parts]

    def bare() -> None:
        nonlocal world
        world = next(fedavg(recipe, initial, data, [parts]))

    found = interleaved(ours, bare, pairs)
    ends = _mean(initial, updates)
    if not furthest(ends, {name: world[name] for name in ends}) < 1e-5:
        raise SystemExit(f"the bare loop's {case.name} is another: wrong results are not reported")
    return found


def _mean(initial: Tensors, updates: list[Update]) -> Tensors:
    """What moves of the model, after the round: all clients have as many examples."""
    deltas = {name: np.mean([update.delta[name] for update in updates], axis=0) for name in updates[0].delta}
    return {name: initial[name] + delta for name, delta in deltas.items()}


def measure(quick: bool) -> Iterator[Row]:
    """A row for each model."""
    torch.set_num_threads(1)
    for case in CASES:
        found = beside_bare(case, max(1, case.clients // 10) if quick else case.clients, 3 if quick else 15)
        ratio, name = found.ratio, f"{case.name}_training_vs_bare"
        met = None if quick else ratio.met(case.aim)
        yield Row(name=name, value=ratio.median, unit="ratio", ratio=ratio.median, aim=case.aim, met=met)
        yield Row(name=f"{name}_q1", value=ratio.low, unit="ratio")
        yield Row(name=f"{name}_q3", value=ratio.high, unit="ratio")
        cpu_s = found.ours_median
        yield Row(name=f"{case.name}_training_cpu_s", value=cpu_s, unit="CPU s", limit=found.other_median)


if __name__ == "__main__":
    main("training", measure)
