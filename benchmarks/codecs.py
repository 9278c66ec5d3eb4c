"""Measures every built-in codec: error, bytes of the whole body, and CPU seconds of encoding and decoding.

``python -m benchmarks.codecs [--quick] [--json]``. Three vectors or updates of a kind; figures are their means:

    gaussian   1,000,000 standard normal values in one tensor (100,000 with ``--quick``)
    fashion    what clients of Fashion-MNIST send after their first epoch: a perceptron of 50,890 parameters in four
               tensors, NIID-Bench's Dirichlet 0.5

    nmse       ||x - decoded||^2 / ||x||^2 of a single update
    bytes      of the body, with header and report; the ratio is over float16's
    encode     CPU seconds from the delta to the body; the ratio is over float16's
    decode     CPU seconds from the body to its blocks; the ratio is over float16's

Each row says whether the codec is *unbiased*: whether the expectation of what is decoded is the update, so that the
error of a mean of n devices is the n-th part. EDEN's aims are its published errors, and 2 %. The aim of the
entropy-coded codecs on Fashion-MNIST is half of EDEN's error at as many bits; the ratio is over EDEN's. Beside it is
the *bound*: the least error of unbiased codes of so many bits a value, were the values normal deviates whose variances
(a row's times a column's) were known. It is (sum of D) / (sum of v) with v the variances, D (D + v) = c v, and c such
that the mean of log2(1 + v / D) / 2 is the bits: what water-filling is for codes that may be biased. *gain* is the
geometric over the arithmetic mean of the variances: what the error of one and the same variance shrinks by at many
bits.
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

UNBIASED = {
    "float32@1",
    "rotated@1",
    "stochastic8@1",
    "eden1@1",
    "eden2@1",
    "eden4@1",
    "entropy1@1",
    "entropy2@1",
    "entropy4@1",
    *(codec.name for codec in codecs.STOCHASTIC),
} | {codec.name for codec in codecs.SAMPLED if codec.unbiased}
PUBLISHED = {"eden1@1": 0.571, "eden2@1": 0.134, "eden4@1": 0.0096}
"""NMSE on Gaussian vectors: Vargaftik et al. 2022."""
ENTROPY = {codec.name: codec.bits for codec in codecs.ENTROPY}
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


def variances(delta: Tensors) -> np.ndarray:
    """Of each value: of a matrix its row's times its column's, relative to the whole's; else its tensor's."""
    found = []
    for array in delta.values():
        squares = array.astype(np.float64) ** 2
        if squares.ndim == 2:
            squares = np.outer(squares.mean(axis=1), squares.mean(axis=0)) / max(squares.mean(), 1e-300)
        else:
            squares = np.full(squares.shape, squares.mean())
        found.append(squares.reshape(-1))
    least: np.ndarray = np.maximum(np.concatenate(found), 1e-30)
    return least


def bound(of_values: np.ndarray, bits: int) -> float:
    """The NMSE that unbiased codes of ``bits`` a value cannot be below."""
    low, high = 1e-30, 1e6 * float(of_values.max())
    for _ in range(300):
        middle = (low * high) ** 0.5
        errors = 2 * of_values * middle / (of_values + np.sqrt(of_values**2 + 4 * of_values * middle))
        if float(np.log2(1 + of_values / errors).mean()) / 2 > bits:
            low = middle
        else:
            high = middle
    return float(errors.sum() / of_values.sum())


def measure(quick: bool) -> Iterator[Row]:
    """The rows, kind by kind."""
    for kind, deltas in (("gaussian", gaussian(100_000 if quick else 1_000_000)), ("fashion", fashion())):
        beside = figures(BESIDE, deltas)
        known = [variances(delta) for delta in deltas]
        gain = fmean(float(np.exp(np.log(of_values).mean()) / of_values.mean()) for of_values in known)
        yield Row(name=f"{kind} gain of variances", value=gain, unit="")
        errors: dict[str, float] = {}
        for name in codecs.names():
            label = "unbiased" if name in UNBIASED else "biased"
            for figure, value in figures(name, deltas).items():
                row = f"{kind} {figure} {name} {label}"
                if figure == "nmse" and name in ENTROPY:
                    bits = ENTROPY[name]
                    eden = errors[f"eden{bits}@1"]
                    aim = eden / 2 if kind == "fashion" else None
                    met = None if aim is None else value <= aim
                    yield Row(name=row, value=value, unit="", aim=aim, met=met, limit=eden, ratio=value / eden)
                    least = fmean(bound(of_values, bits) for of_values in known)
                    yield Row(name=f"{kind} bound of {bits} bits unbiased", value=least, unit="")
                elif figure == "nmse":
                    errors[name] = value
                    aim = PUBLISHED[name] * 1.02 if kind == "gaussian" and name in PUBLISHED else None
                    yield Row(name=row, value=value, unit="", aim=aim, met=None if aim is None else value <= aim)
                else:
                    unit = "bytes" if figure == "bytes" else "CPU s"
                    yield Row(name=row, value=value, unit=unit, limit=beside[figure], ratio=value / beside[figure])


if __name__ == "__main__":
    main("codecs", measure)
