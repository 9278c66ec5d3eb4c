"""Clusters: half of the clients hold their digits upside down, and nobody knows which. Two models find out.

This is IFCA (Ghosh et al. 2020, arXiv:2006.04088, algorithm 1): the coordinator holds k models, a client trains the one
with the least loss on its own data, and each model moves by the mean of those that chose it.

python examples/simulate_clusters.py               half a minute of one core
ROUNDS=6 python examples/simulate_clusters.py      a quick look
"""

import os

import numpy as np
from torch import nn

from client_sdk.data import Data, Examples
from client_sdk.learning import accuracy
from coordinator.engine.aggregation.combining import Computed, Sources
from coordinator.engine.aggregation.strategy import Strategy
from quorate import Learner, Update, simulate
from simulation.datasets import load

one = Learner(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)),
    loss=nn.functional.cross_entropy,
    metrics={"accuracy": accuracy},
)


class Clustered:
    """A learner of k models in one checkpoint, named ``0.1.weight``, ``1.1.weight``, ... To the update of the one that
    it trains it adds a 1 at ``chosen``: the mean of these is the share of the examples behind each model. In round 1 it
    draws the model, or all clients might choose the same one for good."""

    def __init__(self, k: int) -> None:
        self.k = k

    def initial(self, seed: int) -> dict:
        models = {f"{c}.{name}": array for c in range(self.k) for name, array in one.initial(seed + c).items()}
        return {**models, "chosen": np.zeros(self.k, np.float32)}

    def part(self, model: dict, c: int) -> dict:
        return {name.removeprefix(f"{c}."): array for name, array in model.items() if name.startswith(f"{c}.")}

    def best(self, model: dict, data: object) -> int:
        return min(range(self.k), key=lambda c: one.evaluate(self.part(model, c), data).metrics["loss"])

    def train(self, model: dict, data: object, task: object, *, round: int, rng: np.random.Generator, **more) -> Update:
        c = rng.integers(self.k) if round == 1 else self.best(model, data)
        update = one.train(self.part(model, c), data, task, round=round, **more)
        delta = {name: np.zeros_like(array) for name, array in model.items()}
        delta |= {f"{c}.{name}": array for name, array in update.delta.items()}
        delta["chosen"][c] = 1
        return Update(delta, update.examples, work=update.work, metrics=update.metrics)

    def evaluate(self, model: dict, data: object) -> object:
        """The score of the model with the least loss, as in the paper."""
        return one.evaluate(self.part(model, self.best(model, data)), data)


class OverThoseThatChose(Strategy):
    """Each model's mean over the clients that chose it. It reads the sum alone, so it works under masks, where nobody
    sees what a client chose."""

    def combine(self, parent, sources, tensors, small, settings, seed, usual):
        mean, places = sources.sum(), sources.tensors.slices()
        chosen = mean.read(places["chosen"].start, sources.tensors["chosen"].elements)

        def read(start: int, count: int) -> np.ndarray:
            name = next(name for name, place in places.items() if place.start <= start < place.stop)
            values, share = mean.read(start, count), 0 if name == "chosen" else chosen[int(name.partition(".")[0])]
            return values / share if share > 1e-3 else 0 * values

        divided = Sources(lambda: Computed(read), sources.tensors, sources.parameters)
        return usual.combine(parent, divided, tensors, small, settings, seed)


# Each of forty clients has 150 images, of which it holds out 30 to be scored on. Every second one holds them turned.
data = load("mnist").train
clients = {}
for number in range(40):
    x, y = (part[150 * number : 150 * number + 150] for part in (data.x, data.y))
    name, x = (f"turned-{number}", x[:, ::-1, ::-1].copy()) if number % 2 else (f"upright-{number}", x)
    clients[name] = Data(Examples(x[30:], y[30:]), Examples(x[:30], y[:30]))

plan = {
    "task": {"epochs": 2, "batch_size": 10, "learning_rate": 0.05},
    "cohort": {"select": 20, "goal": 20},
    "finish": {"rounds": int(os.environ.get("ROUNDS", "30"))},
}
alone = simulate(plan, one, clients, score_clients="all", score_every=10, seed=0)
learner, strategy = Clustered(2), OverThoseThatChose()
history = simulate(plan, learner, clients, strategy=strategy, score_clients="all", score_every=10, seed=0)

for name, found in (("one model for all", alone), ("two models", history)):
    print(f"{name}: {found.final('accuracy', 'clients'):.1%} of clients' own images are right")
model = history.checkpoint()
for group in ("upright", "turned"):
    chosen = [learner.best(model, clients[name].train) for name in clients if name.startswith(group)]
    print(f"of 20 clients {group}, {chosen.count(0)} choose model 0 and {chosen.count(1)} choose model 1")
