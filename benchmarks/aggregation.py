"""Measures the exact sum of 256 updates of 1M float32 beside a blocked float32 weighted add, memcpy, and peers.

``python -m benchmarks.aggregation [--quick] [--json]``. CPU seconds of one process, without digests and disks. Needs
1.2 GB of memory (3.5 GB with flwr installed); ``--quick`` sums 48 updates and scales its CPU seconds to 256.

- ``exact_sum_256x1m_vs_float_add``: ``ExactSum.add``, which validates, over ``acc += w * x`` in float32 in blocks of
  the size that was fastest for it. The aim is for this ratio.
- ``bodies_256x1m_vs_float_add``: the work of a coordinator: header and report parsed, values checked on arrival,
  added later, mean computed.
- Peers get arrays, so reading their wire format is not measured.
"""

from __future__ import annotations

import importlib
import tracemalloc
from collections.abc import Callable, Iterator
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from benchmarks.harness import Row, interleaved, main
from client_sdk import codecs
from client_sdk.tensors import read_header
from client_sdk.tensors.exact_sum import ExactSum, peak
from client_sdk.tensors.floats import Float32
from client_sdk.update import Update, decode_report, encode_update

DIMENSION = 1_000_000
UPDATES = 256
FLOAT_BLOCK = 65536
AIM = 2.5
MEMORY_AIM_MODELS = 3.0

Weighted = list[tuple[Float32, int]]


def bodies_of(count: int) -> list[bytes]:
    """``count`` update bodies of DIMENSION float32 values, with weights from 1 to 999."""
    rng = np.random.default_rng(0)
    return [
        encode_update(Update({"w": values}, int(examples)), "float32@1", "bench", 1)
        for values, examples in (
            (rng.standard_normal(DIMENSION, np.float32) * np.float32(0.01), rng.integers(1, 1000)) for _ in range(count)
        )
    ]


def arrays_of(bodies: list[bytes]) -> Weighted:
    """The values of the bodies, as views, and their weights."""
    found: Weighted = []
    for body in bodies:
        header = read_header(body)
        values = np.frombuffer(body, np.float32, DIMENSION, header.data_start)
        found.append((values, decode_report(header).examples))
    return found


def exact(updates: Weighted) -> Float32:
    total = ExactSum(DIMENSION)
    for values, weight in updates:
        total.add(values, weight)
    return total.mean()


def from_bodies(bodies: list[bytes]) -> Float32:
    """The mean as a coordinator computes it: each body is checked on arrival, then added block by block."""
    codec = codecs.get("float32@1")
    total = ExactSum(DIMENSION)
    for body in bodies:
        header = read_header(body)
        report = decode_report(header)
        largest = peak(codec.blocks(body, header))
        total.add_blocks(codec.blocks(body, header), report.examples, largest)
    return total.mean()


def float_add(updates: Weighted) -> Float32:
    """acc += w * x, then acc / sum(w): float32 throughout, in blocks, with one reused buffer and no validation."""
    total = np.zeros(DIMENSION, np.float32)
    product = np.empty(FLOAT_BLOCK, np.float32)
    for values, weight in updates:
        factor = np.float32(weight)
        for start in range(0, DIMENSION, FLOAT_BLOCK):
            block = values[start : start + FLOAT_BLOCK]
            part = product[: block.size]
            np.multiply(block, factor, out=part)
            lanes = total[start : start + FLOAT_BLOCK]
            np.add(lanes, part, out=lanes)
    return total / np.float32(sum(weight for _, weight in updates))


def memcpy(updates: Weighted) -> None:
    target = np.empty(DIMENSION, np.float32)
    for values, _ in updates:
        np.copyto(target, values)


def flwr_sum() -> Callable[[Weighted], Float32]:
    aggregate = importlib.import_module("flwr.server.strategy.aggregate").aggregate
    return lambda updates: aggregate([([values], weight) for values, weight in updates])[0]


def pfl_sum() -> Callable[[Weighted], Float32]:
    statistics: Any = importlib.import_module("pfl.stats").MappedVectorStatistics

    def run(updates: Weighted) -> Float32:
        total = reduce(add, (statistics({"w": values * np.float32(weight)}, weight) for values, weight in updates))
        total.average()
        return total["w"]  # type: ignore[no-any-return]

    return run


def nvflare_sum() -> Callable[[Weighted], Float32]:
    module = "nvflare.app_common.aggregators.weighted_aggregation_helper"
    helper: Any = importlib.import_module(module).WeightedAggregationHelper

    def run(updates: Weighted) -> Float32:
        total = helper()
        for index, (values, weight) in enumerate(updates):
            total.add({"w": values}, weight, str(index), 0)
        return total.get_result()["w"]  # type: ignore[no-any-return]

    return run


PEERS: dict[str, Callable[[], Callable[[Weighted], Float32]]] = {
    "flwr": flwr_sum,
    "pfl_research": pfl_sum,
    "nvflare": nvflare_sum,
}


def measure(quick: bool) -> Iterator[Row]:
    """The rows. All results are compared with a float64 mean first: a fast wrong answer is no answer."""
    count, pairs = (48, 9) if quick else (UPDATES, 15)
    scale = UPDATES / count
    bodies = bodies_of(count)
    updates = arrays_of(bodies)
    weight = sum(w for _, w in updates)
    true = sum(values.astype(np.float64) * w for values, w in updates) / weight

    def checked(mean: Float32, tolerance: float) -> None:
        worst = float(np.max(np.abs(mean - true)))
        if not worst <= tolerance:
            raise SystemExit(f"a mean is off by {worst:g}: wrong results are not reported")

    checked(exact(updates), 1e-9)
    checked(from_bodies(bodies), 1e-9)
    checked(float_add(updates), 1e-6)

    sums = interleaved(lambda: exact(updates), lambda: float_add(updates), pairs)
    yield Row(
        name="exact_sum_256x1m_vs_float_add",
        value=sums.ratio.median,
        unit="ratio",
        ratio=sums.ratio.median,
        aim=AIM,
        met=sums.ratio.met(AIM),
    )
    exact_s, float_s = sums.ours_median * scale, sums.other_median * scale
    yield Row(name="exact_sum_256x1m_cpu_s", value=exact_s, unit="CPU s", limit=float_s, ratio=sums.ratio.median)

    whole = interleaved(lambda: from_bodies(bodies), lambda: float_add(updates), pairs)
    yield Row(name="bodies_256x1m_vs_float_add", value=whole.ratio.median, unit="ratio", ratio=whole.ratio.median)

    copies = interleaved(lambda: exact(updates), lambda: memcpy(updates), pairs)
    copy_s = copies.other_median * scale
    yield Row(name="memcpy", value=exact_s, unit="CPU s", limit=copy_s, ratio=copies.ratio.median)

    models = memory_models(updates[:4])
    met = models <= MEMORY_AIM_MODELS
    yield Row(name="exact_sum_peak_models", value=models, unit="models", aim=MEMORY_AIM_MODELS, met=met)

    for name, load in PEERS.items():
        try:
            run = load()
        except ImportError:
            yield Row(name=f"exact_sum_vs_{name}", value=None, unit="CPU s")
            continue
        checked(run(updates), 1e-6)
        beside = interleaved(lambda: exact(updates), lambda run=run: run(updates), max(3, pairs // 3))  # type: ignore[misc]
        yield Row(
            name=f"exact_sum_vs_{name}",
            value=beside.ours_median * scale,
            unit="CPU s",
            peer=beside.other_median * scale,
            ratio=beside.ratio.median,
        )


def memory_models(updates: Weighted) -> float:
    """Most memory beyond the input while summing and while the mean is read by blocks, in models of 4 bytes a value."""
    tracemalloc.start()
    try:
        total = ExactSum(DIMENSION)
        for values, weight in updates:
            total.add(values, weight)
        for start in range(0, DIMENSION, FLOAT_BLOCK):
            total.mean_block(start, start + FLOAT_BLOCK)
        return tracemalloc.get_traced_memory()[1] / (4 * DIMENSION)
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    main("aggregation", measure)
