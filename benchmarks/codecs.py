"""Measures every built-in codec: error, bytes of the whole body, and CPU seconds of encoding and decoding.

``python -m benchmarks.codecs [--quick] [--json]``. Three vectors or updates of a kind; figures are their means:

    gaussian   1,000,000 standard normal values in one tensor (100,000 with ``--quick``)
    fashion    what clients of Fashion-MNIST send after their first epoch: a perceptron of 50,890 parameters in four
               tensors, NIID-Bench's Dirichlet 0.5

    nmse       ||x - decoded||^2 / ||x||^2 of a single update
    bytes      of the body, with header and report; the ratio is over float16's
    encode     CPU seconds from the delta to the body; the ratio is over float16's
    decode     CPU seconds from the body to its blocks; likewise

Each row says whether the codec is *unbiased*: whether the expectation of what is decoded is the update, so that the
error of a mean of n devices is the n-th part. EDEN's aims are its published errors, and 2 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

import numpy as np

from benchmarks.harness import Row, cost_s, main
from client_sdk import codecs
from client_sdk.tensors import Manifest, Tensors, flatten, read_header
from client_sdk.update import Update, encode_update
from simulation import partition, simulate
from simulation.datasets import load
from simulation.learners import mnist_mlp

UNBIASED = {"float32@1", "rotated@1", "stochastic8@1", "eden1@1", "eden2@1", "eden4@1"} | {
    codec.name for codec in codecs.SAMPLED if codec.unbiased
}
PUBLISHED = {"eden1@1": 0.571, "eden2@1": 0.134, "eden4@1": 0.0096}
"""NMSE on Gaussian vectors: Vargaftik et al. 2022."""
BESIDE = "float16@1"
REPEATS = 5


def gaussian(size: int) -> list[Tensors]:
    rng = np.random.default_rng(0)
    return [{"w": rng.standard_normal(size, np.float32)} for _ in range(3)]


def fashion() -> list[Tensors]:
    """The updates of three clients."""
    clients = partition(load("fashion-mnist").train, 300, by="niid-dirichlet", alpha=0.5, seed=0, min_examples=10)
    learner = mnist_mlp()
    plan = {"name": "codecs", "task": {"epochs": 1, "batch_size": 10, "learning_rate": 0.1}}
    return [
        simulate(plan, learner, clients, only=name, round=1, seed=0, progress=False).delta for name in list(clients)[:3]
    ]


def figures(name: str, deltas: list[Tensors]) -> dict[str, float]:
    """nmse, bytes, encode and decode of one codec."""
    codec = codecs.get(name)
    found: dict[str, list[float]] = {"nmse": [], "bytes": [], "encode": [], "decode": []}
    for place, delta in enumerate(deltas):

        def encoded(delta: Tensors = delta, place: int = place) -> bytes:
            return encode_update(Update(delta, 10), codec, "bench", 1, device=str(place), plan=f"{place:064x}")

        body = encoded()
        header = read_header(body)
        values = flatten(delta, Manifest.of(delta).in_file_order()).astype(np.float64)
        back = np.concatenate([part.copy() for part in codec.blocks(body, header)])
        found["nmse"].append(float(((back - values) ** 2).sum() / (values**2).sum()))
        found["bytes"].append(len(body))
        found["encode"].append(median(cost_s(encoded) for _ in range(REPEATS)))
        found["decode"].append(median(cost_s(lambda: list(codec.blocks(body, header))) for _ in range(REPEATS)))  # noqa: B023
    return {figure: fmean(samples) for figure, samples in found.items()}


def measure(quick: bool) -> Iterator[Row]:
    """The rows, kind by kind."""
    for kind, deltas in (("gaussian", gaussian(100_000 if quick else 1_000_000)), ("fashion", fashion())):
        beside = figures(BESIDE, deltas)
        for name in codecs.names():
            label = "unbiased" if name in UNBIASED else "biased"
            for figure, value in figures(name, deltas).items():
                row = f"{kind} {figure} {name} {label}"
                if figure == "nmse":
                    aim = PUBLISHED[name] * 1.02 if kind == "gaussian" and name in PUBLISHED else None
                    yield Row(name=row, value=value, unit="", aim=aim, met=None if aim is None else value <= aim)
                else:
                    unit = "bytes" if figure == "bytes" else "CPU s"
                    yield Row(name=row, value=value, unit=unit, limit=beside[figure], ratio=value / beside[figure])


if __name__ == "__main__":
    main("codecs", measure)
