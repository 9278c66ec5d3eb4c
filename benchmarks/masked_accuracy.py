"""Measures what few bits under masks cost in accuracy: Fashion-MNIST, a perceptron, FedAvg, over several seeds.

``python -m benchmarks.masked_accuracy [--quick] [--json]``. 300 clients (NIID-Bench's Dirichlet 0.5, 40 to 560
examples), 100 a round, one epoch, batches of 10, SGD 0.1, 40 rounds; weights by examples, capped at 600. Updates are
encoded by a linear codec, clipped, weighted and rounded by ``Quantizer``, with the numbers of a plan's section
[secure]. Masks are left out, since they cancel to the bit: each update is replaced by the mean of its own lanes, and
the weighted mean of those is the mean of the summed lanes.

    float32               mean accuracy on the 10,000 test images in the last 5 rounds, over three seeds, in points
    q4_rotated            points below float32, mean over the seeds: 4 bits, ``rotated@1``. Aim: at most 0.5
    q4_rotated_worst      the same of the seed that loses most
    q4_half_rotated       with half of the coordinates, ``sampled-half-rotated@1``: its model moves half as fast
    q4_half_rotated_worst the same of the seed that loses most
    ..._error             L2 norm of what rounding and cutting change in the mean of 100 updates of the first round,
                          over the norm of that mean; also for 4 and 16 bits without a rotation, where the range cuts
                          nothing

``--quick``: one seed and few rounds; no aim is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.linalg import norm

from benchmarks.harness import Row, main
from client_sdk import codecs
from client_sdk.chance import labelled, sha256_bytes
from client_sdk.protocol.devices import Task
from client_sdk.secagg.lanes import lane_bits
from client_sdk.secagg.quantize import Quantizer
from client_sdk.tensors import Manifest, Tensors, flatten, split
from client_sdk.update import Update
from simulation import partition, simulate
from simulation.datasets import load
from simulation.learners import mnist_mlp

COHORT = 100
CAP = 600
MAX_NORM = 2.0
AIM_POINTS = 0.5
LAST = 5
VALUES = 50_890


@dataclass(frozen=True)
class Way:
    """How updates travel: a linear codec, bits, and a range as a multiple of max_norm / sqrt(values)."""

    codec: str
    q: int
    times: float

    @property
    def quantizer(self) -> Quantizer:
        values = codecs.linear(self.codec).count(VALUES)
        return Quantizer(q=self.q, max_norm=MAX_NORM, max_abs=self.times * MAX_NORM / values**0.5, weight_cap=CAP)


WAYS = {
    "q4_rotated": Way("rotated@1", 4, 4.0),
    "q4_half_rotated": Way("sampled-half-rotated@1", 4, 4.0),
}
PLAIN = {"q4_plain": Way("float32@1", 4, 100.0), "q16_plain": Way("float32@1", 16, 100.0)}


class AsIfMasked:
    """A learner whose updates went through a quantizer as devices' do before they mask."""

    def __init__(self, learner: Any, way: Way, seed: int) -> None:
        self._learner, self._way, self._seed = learner, way, seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def train(self, model: Any, data: Any, task: Any, *, device: str, round: int, **options: Any) -> Update:
        """The update that the sum gets of this device."""
        update = self._learner.train(model, data, task, device=device, round=round, **options)
        return Update(self.through(update.delta, update.examples, device, round), update.examples, work=update.work)

    def through(self, delta: Tensors, examples: int, device: str, round: int) -> Tensors:
        """What the sum gets of this delta, as one device's own mean."""
        codec, quantizer = codecs.linear(self._way.codec), self._way.quantizer
        manifest = Manifest.of(delta)
        shared = codecs.shared_seed(f"{self._seed}", round)
        values = codec.forward(flatten(delta, manifest), shared)
        rounding = sha256_bytes(labelled("rounding", self._seed, round, device), 32)
        bits = lane_bits(COHORT, quantizer.q)
        lanes = quantizer.lanes(values, min(examples, CAP), bits, rounding, "aes-256-ctr")
        mean = quantizer.mean(lanes, 1)[0].astype(np.float32)
        read = codec.back(lambda start, count: mean[start : start + count], manifest.elements, shared)
        return split(np.array(read(0, manifest.elements)), manifest)


def errors(learner: Any, clients: Any) -> Iterator[Row]:
    """What rounding and cutting change in the mean of updates of the first round."""
    task = Task(learner="quorate:mnist-mlp", batch_size=10, learning_rate=0.1)
    model, cohort = learner.initial(0), list(clients)[:COHORT]
    updates = [learner.train(model, clients[name].train, task, device=name, round=1) for name in cohort]
    weights = [update.examples for update in updates]

    def mean(deltas: list[Tensors]) -> npt.NDArray[np.float64]:
        flat = [flatten(delta, Manifest.of(delta)).astype(np.float64) for delta in deltas]
        return np.average(flat, axis=0, weights=weights)

    wanted = mean([update.delta for update in updates])
    for name, way in (("q4_rotated", WAYS["q4_rotated"]), *PLAIN.items()):
        masked = AsIfMasked(learner, way, 0)
        found = mean(
            [
                masked.through(update.delta, update.examples, device, 1)
                for update, device in zip(updates, cohort, strict=True)
            ]
        )
        yield Row(name=f"{name}_error", value=float(norm(found - wanted) / norm(wanted)), unit="ratio")


def accuracy(learner: Any, clients: Any, test: Any, seed: int, rounds: int) -> float:
    """Points: the mean of the last rounds."""
    plan = {
        "name": "masked",
        "task": {"epochs": 1, "batch_size": 10, "learning_rate": 0.1, "seed": seed},
        "cohort": {"select": COHORT, "goal": COHORT, "collect_s": 86_400.0},
        "aggregation": {"weight_cap": CAP},
        "finish": {"rounds": rounds},
    }
    history = simulate(plan, learner, clients, test=test, seed=seed)
    curve = history.metric("accuracy").values
    return 100 * fmean(curve[-LAST:])


def measure(quick: bool) -> Iterator[Row]:
    """The rows, one after the other."""
    seeds, rounds = ((0,), 6) if quick else ((0, 1, 2), 40)
    data, learner = load("fashion-mnist"), mnist_mlp()
    plain: list[float] = []
    lost: dict[str, list[float]] = {name: [] for name in WAYS}
    for seed in seeds:
        clients = partition(data.train, 300, by="niid-dirichlet", alpha=0.5, seed=seed, min_examples=10)
        if seed == 0:
            yield from errors(learner, clients)
        plain.append(accuracy(learner, clients, data.test, seed, rounds))
        for name, way in WAYS.items():
            found = accuracy(AsIfMasked(learner, way, seed), clients, data.test, seed, rounds)
            lost[name].append(plain[-1] - found)
    yield Row(name="float32", value=fmean(plain), unit="points")
    for name, points in lost.items():
        aim = AIM_POINTS if name == "q4_rotated" and not quick else None
        met = None if aim is None else fmean(points) <= aim
        yield Row(name=name, value=fmean(points), unit="points", aim=aim, met=met)
        yield Row(name=f"{name}_worst", value=max(points), unit="points")


if __name__ == "__main__":
    main("masked_accuracy", measure)
