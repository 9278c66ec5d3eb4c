"""Draws the picture of docs/datacenter.md: loss against the number of workers of an asynchronous parameter server.

``python -m scripts.asynchronous_picture`` runs what ``FIGURES`` does not hold yet, writes each figure down at once, and
then draws docs/images/asynchronous.svg; Fashion-MNIST is fetched where it is not cached. Three minutes of one core.

The server is the product's; its workers are played in virtual time, so that figures do not depend on the machine: a
worker's step takes exp(0.3 z) seconds, with z drawn anew for each.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

from client_sdk.learning.parameter_servers import PUSH, Answer, Head, ParameterServer, Portion
from coordinator.datacenter.training import GlobalOrder
from simulation.datasets import load

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FIGURES = IMAGES / "asynchronous.json"
WORKERS, SEEDS, STALENESS = (1, 2, 4, 8, 16, 32), (0, 1, 2), 4
EXAMPLES = 20_000
WAYS = {
    "asynchronous, 32 examples a worker": "each",
    "synchronous, 32 examples a worker": "synchronous",
    "asynchronous, 256 examples over all workers": "shared",
}
"""Label -> how. Where each worker has 32 examples a step, the batch and the learning rate grow with the workers."""
RATE, MOMENTUM, EACH, SHARED = 0.01, 0.9, 32, 256


class Point(NamedTuple):
    way: str
    workers: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.way} {self.workers} {self.seed}"


def points() -> Iterator[Point]:
    yield from (Point(*found) for found in product(WAYS.values(), WORKERS, SEEDS))


def halved(x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of half the size, as rows, and their labels."""
    small = nn.functional.avg_pool2d(torch.from_numpy(np.array(x)).reshape(-1, 1, 28, 28).float(), 2)
    return small.reshape(len(small), -1), torch.from_numpy(np.array(y)).long()


def loss(point: Point) -> float:
    """On the test images, after one pass over 20,000 others; that of guessing where it is above, or not a number."""
    data = load("fashion-mnist")
    (x, y), test = (halved(part.x, part.y) for part in (data.train, data.test))
    x, y = x[:EXAMPLES], y[:EXAMPLES]
    torch.manual_seed(point.seed)
    served, own = (nn.Sequential(nn.Linear(196, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(2))
    weights, portion = list(served.parameters()), Portion(list(own.parameters()), [])
    batch = SHARED if point.way == "shared" else EACH * point.workers
    rate = RATE * batch / (SHARED if point.way == "shared" else EACH)
    optimizer = torch.optim.SGD(weights, lr=rate, momentum=MOMENTUM)

    def move(step: int, part: float) -> None:
        optimizer.param_groups[0]["lr"] = rate * part
        optimizer.step()

    ranks = list(range(point.workers))
    alone = point.way != "synchronous"
    server = ParameterServer(
        Portion(weights, []), [[rank] for rank in ranks] if alone else [ranks], step=0, move=move,
        rate=lambda step: rate, staleness=STALENESS if alone else 0,
    )  # fmt: skip
    order, steps = GlobalOrder(len(x), batch, point.seed), -(-len(x) // batch)
    chance = np.random.default_rng(point.seed)
    begin = Portion(weights, []).weights()
    events = [(float(np.exp(0.3 * chance.standard_normal())), rank, 0, begin) for rank in ranks]
    heapq.heapify(events)
    waiting: dict[int, object] = {}
    batches: dict[int, torch.Tensor] = {}
    while events:
        now, rank, step, read = heapq.heappop(events)
        portion.spread(read, lambda weight, value: weight.data.copy_(value))
        indices = batches.setdefault(step, order.at(step)).tensor_split(point.workers)[rank]
        own.zero_grad()
        nn.functional.cross_entropy(own(x[indices]), y[indices]).backward()
        head = Head(PUSH, step, 0.0, float(len(indices)), len(indices), len(batches[step]))
        waiting[rank] = server.push(rank, head, portion.gradients())
        for other, ready in sorted(waiting.items()):
            found: Answer | None = server.answer(other, ready, 0.0)  # type: ignore[arg-type]
            if found is not None:
                del waiting[other]
                if found.next < steps:
                    later = now + float(np.exp(0.3 * chance.standard_normal()))
                    heapq.heappush(events, (later, other, found.next, found.weights))
    with torch.no_grad():
        value = float(nn.functional.cross_entropy(served(test[0]), test[1]))
    return min(value, float(np.log(10))) if value == value else float(np.log(10))


def draw(found: dict[str, float]) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for label, way in WAYS.items():
        rows = [[found[Point(way, workers, seed).name] for seed in SEEDS] for workers in WORKERS]
        axes.plot(WORKERS, [mean(row) for row in rows], marker="o", label=label)
        axes.fill_between(WORKERS, [min(row) for row in rows], [max(row) for row in rows], alpha=0.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(WORKERS, [str(workers) for workers in WORKERS])
    axes.set_xlabel("workers")
    axes.set_ylabel("loss on Fashion-MNIST after one pass")
    axes.axvline(8, color="gray", linestyle=":")
    axes.legend()
    return figure


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, float] = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    wanted = list(points())
    for number, point in enumerate(wanted, 1):
        if point.name not in found:
            found[point.name] = round(loss(point), 4)
            FIGURES.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
        print(f"{number} of {len(wanted)}: {point.name}: {found[point.name]:.4f}", flush=True)
    with rc_context({"svg.hashsalt": "quorate"}):
        draw(found).savefig(IMAGES / "asynchronous.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
