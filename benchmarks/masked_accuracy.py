"""Measures what few bits under masks cost in accuracy: Fashion-MNIST, a perceptron, FedAvg, over several seeds.

``python -m benchmarks.masked_accuracy [--quick] [--json]``. 300 clients (NIID-Bench's Dirichlet 0.5, 40 to 560
examples), 100 a round, one epoch, batches of 10, SGD 0.1, 40 rounds; weights by examples, capped at 600. Secure rounds
are those of ``simulate(secure="quantized")``, which commit the checkpoints that masked ones do, to the bit; plain ones
are of the same plan without its section [secure], with the same clients in each cohort.

    float32               mean accuracy on the 10,000 test images in the last 5 rounds, over three seeds, in points
    q4_rotated            points below float32, mean over the seeds: 4 bits, ``rotated@1``. Aim: at most 0.5
    q4_rotated_worst      the same of the seed that loses most
    q4_half_rotated       with half of the coordinates, ``sampled-half-rotated@1``: its model moves half as fast
    q4_half_rotated_worst the same of the seed that loses most
    ..._error             L2 norm of what rounding and cutting change in the first checkpoint, over the norm of what the
                          first plain round changes; also for 16 bits without a rotation, where the range cuts nothing

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

from benchmarks._progress import counted
from benchmarks.harness import Row, main
from client_sdk import codecs
from client_sdk.tensors import Manifest, Tensors, flatten
from simulation import Clients, History, partition, simulate
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
    def section(self) -> dict[str, Any]:
        """The plan's section [secure]."""
        values = codecs.linear(self.codec).count(VALUES)
        return {
            "q": self.q,
            "max_norm": MAX_NORM,
            "max_abs": self.times * MAX_NORM / values**0.5,
            "minimum_cohort": COHORT,
            "reserve": 0,
        }


WAYS = {
    "q4_rotated": Way("rotated@1", 4, 4.0),
    "q4_half_rotated": Way("sampled-half-rotated@1", 4, 4.0),
}
MANY_BITS = {"q16_plain": Way("float32@1", 16, 100.0)}


def played(learner: Any, clients: Clients, test: Any, seed: int, rounds: int, way: Way | None = None) -> History:
    """A run with secure rounds in this way; None: with plain ones. SystemExit if a round was abandoned."""
    plan: dict[str, Any] = {
        "name": "masked",
        "task": {"epochs": 1, "batch_size": 10, "learning_rate": 0.1, "seed": seed},
        "cohort": {"select": COHORT, "goal": COHORT, "quorum": 1.0, "collect_s": 600.0},
        "aggregation": {"weighting": "examples", "weight_cap": CAP, "partial": "refuse"},
        "finish": {"rounds": rounds},
    }
    if way is not None:
        plan["task"]["codec"] = way.codec
        plan["secure"] = way.section
    history = simulate(plan, learner, clients, test=test, seed=seed, secure="quantized", progress=False)
    if len(history.rounds) != rounds or any(row.counted != COHORT for row in history.rounds):
        raise SystemExit("not every round counted its whole cohort: two such runs cannot be compared")
    return history


def changed(history: History) -> npt.NDArray[np.float64]:
    """What the first round changed in the model."""
    first, then = (_flat(history.checkpoint(version)) for version in (0, 1))
    return then - first


def _flat(model: Tensors) -> npt.NDArray[np.float64]:
    return flatten(model, Manifest.of(model)).astype(np.float64)


def errors(learner: Any, clients: Clients) -> Iterator[Row]:
    """What rounding and cutting change in the first checkpoint."""
    plain = played(learner, clients, None, 0, 1)
    wanted = changed(plain)
    for name, way in (("q4_rotated", WAYS["q4_rotated"]), *MANY_BITS.items()):
        masked = played(learner, clients, None, 0, 1, way)
        if masked.participation != plain.participation:
            raise SystemExit("the cohorts differ: two such rounds cannot be compared")
        yield Row(name=f"{name}_error", value=float(norm(changed(masked) - wanted) / norm(wanted)), unit="ratio")


def accuracy(history: History) -> float:
    """Points: the mean of the last rounds."""
    return 100 * fmean(history.metric("accuracy").values[-LAST:])


def measure(quick: bool) -> Iterator[Row]:
    """The rows, one after the other."""
    seeds, rounds = (range(1), 6) if quick else (range(3), 40)
    data, learner = load("fashion-mnist"), mnist_mlp()
    plain: list[float] = []
    lost: dict[str, list[float]] = {name: [] for name in WAYS}
    for seed in counted("seeds", seeds):
        clients = partition(data.train, 300, by="niid-dirichlet", alpha=0.5, seed=seed, min_examples=10)
        if seed == 0:
            yield from errors(learner, clients)
        plain.append(accuracy(played(learner, clients, data.test, seed, rounds)))
        for name, way in WAYS.items():
            found = accuracy(played(learner, clients, data.test, seed, rounds, way))
            lost[name].append(plain[-1] - found)
    yield Row(name="float32", value=fmean(plain), unit="points")
    for name, points in lost.items():
        aim = AIM_POINTS if name == "q4_rotated" and not quick else None
        met = None if aim is None else fmean(points) <= aim
        yield Row(name=name, value=fmean(points), unit="points", aim=aim, met=met)
        yield Row(name=f"{name}_worst", value=max(points), unit="points")


if __name__ == "__main__":
    main("masked_accuracy", measure)
