"""Measures the exact sum of 256 updates of 1M float32 beside torch's weighted add, memcpy, and peers; and each rule and
server optimizer beside the mean.

``python -m benchmarks.aggregation [--quick] [--json]``. CPU seconds of one process, without digests and disks. Needs
1.2 GB of memory (3.5 GB with flwr installed); ``--quick`` sums 48 updates and scales its CPU seconds to 256.

- ``exact_sum_256x1m_vs_float_add``: ``ExactSum.add``, which validates, over ``acc += w * x`` in float32 by torch, in
  one pass over memory. The aim is for this ratio. ``exact_sum_by_numpy``: where nothing was compiled.
- ``bodies_256x1m_vs_float_add``: the work of a coordinator: header and report parsed, values checked on arrival,
  added later, mean computed.
- ``rule_NAME_32x1m_vs_mean``: the next model from 32 updates in memory by that rule, over that by the mean.
- ``optimizer_NAME_1m_vs_average``: the next model and state from a mean in memory, over ``average``. The model has one
  layer of 1M.
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
import torch
from numpy.typing import NDArray

from benchmarks.harness import Pairs, Row, interleaved, main
from client_sdk import codecs
from client_sdk.tensors import Manifest, TensorSpec, compiled, read_header
from client_sdk.tensors.exact_sum import ExactSum, peak
from client_sdk.tensors.floats import Float32
from client_sdk.update import Update, decode_report, encode_update
from coordinator.engine.aggregation.combining import Computed, Sources, Updates, flat
from coordinator.engine.aggregation.registry import RULES, SERVER_OPTIMIZERS, Chosen, choose
from coordinator.engine.aggregation.section import Aggregation

DIMENSION = 1_000_000
UPDATES = 256
FLOAT_BLOCK = 65536
RULE_UPDATES = 32
OF_RULES: dict[str, dict[str, float]] = {
    "trimmed-mean": {"fraction": 0.1},
    "krum": {"wrong": 8, "keep": 16},
    "centered-clipping": {"radius": 10.0},
}
OF_OPTIMIZERS: dict[str, dict[str, float]] = {"radam": {"layerwise": 1, "lookahead": 6}}
"""Numbers of a plan: for rules those that have no default, for RAdam all that it can do."""
AIM = 1.5
MEMORY_AIM_MODELS = 3.0

Weighted = list[tuple[Float32, int]]


def bodies_of(count: int) -> list[bytearray]:
    """``count`` update bodies of DIMENSION float32 values, with weights from 1 to 999."""
    rng = np.random.default_rng(0)
    return [
        bytearray(encode_update(Update({"w": values}, int(examples)), "float32@1", "bench", 1))
        for values, examples in (
            (rng.standard_normal(DIMENSION, np.float32) * np.float32(0.01), rng.integers(1, 1000)) for _ in range(count)
        )
    ]


def arrays_of(bodies: list[bytearray]) -> Weighted:
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


def from_bodies(bodies: list[bytearray]) -> Float32:
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
    """acc += w * x, then acc / sum(w): float32 throughout, each addition in one pass, and no validation."""
    total = torch.zeros(DIMENSION)
    for values, weight in updates:
        total.add_(torch.from_numpy(values), alpha=weight)
    mean: Float32 = total.div_(sum(weight for _, weight in updates)).numpy()
    return mean


def by_numpy(updates: Weighted) -> Float32:
    """``exact`` without compiled loops."""
    loops, compiled.loops = compiled.loops, None
    try:
        return exact(updates)
    finally:
        compiled.loops = loops


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
    if compiled.loops is not None:
        fallback = interleaved(lambda: by_numpy(updates), lambda: exact(updates), pairs)
        yield Row(
            name="exact_sum_by_numpy",
            value=fallback.ours_median * scale,
            unit="CPU s",
            limit=fallback.other_median * scale,
            ratio=fallback.ratio.median,
        )

    whole = interleaved(lambda: from_bodies(bodies), lambda: float_add(updates), pairs)
    yield Row(name="bodies_256x1m_vs_float_add", value=whole.ratio.median, unit="ratio", ratio=whole.ratio.median)

    copies = interleaved(lambda: exact(updates), lambda: memcpy(updates), pairs)
    copy_s = copies.other_median * scale
    yield Row(name="memcpy", value=exact_s, unit="CPU s", limit=copy_s, ratio=copies.ratio.median)

    models = memory_models(updates[:4])
    met = models <= MEMORY_AIM_MODELS
    yield Row(name="exact_sum_peak_models", value=models, unit="models", aim=MEMORY_AIM_MODELS, met=met)

    rows = np.stack([values for values, _ in updates[:RULE_UPDATES]])
    for name in RULES:
        if name != "mean":
            beside = interleaved(by_rule(name, rows), by_rule("mean", rows), max(3, pairs // 3))
            yield beside_mean(f"rule_{name}_{RULE_UPDATES}x1m_vs_mean", beside)
    for name in SERVER_OPTIMIZERS:
        if name != "average":
            yield beside_mean(
                f"optimizer_{name}_1m_vs_average", interleaved(by_optimizer(name), by_optimizer("average"), pairs)
            )

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


def by_rule(name: str, rows: NDArray[np.float32]) -> Callable[[], None]:
    """Makes the next model of these updates."""
    chosen = choose(Aggregation(rule=name, rule_parameters=OF_RULES.get(name, {}), weighting="equal"))
    return lambda: made(chosen, Updates.of(rows, FLOAT_BLOCK))


def by_optimizer(name: str) -> Callable[[], None]:
    """Makes the next model and state of one mean."""
    chosen = choose(Aggregation(server_optimizer=name, server_optimizer_parameters=OF_OPTIMIZERS.get(name, {})))
    mean = np.random.default_rng(1).standard_normal(DIMENSION, np.float32) * np.float32(0.01)
    layer = Manifest({"w": TensorSpec("F32", (1000, DIMENSION // 1000))})
    return lambda: made(chosen, Sources(lambda: flat(mean), layer, DIMENSION))


def made(chosen: Chosen, sources: Sources) -> None:
    """Reads model and state after a round by blocks. It is step 6 of an optimizer that counts: RAdam then divides by
    the root, and LookAhead's slow weights move."""
    parent = flat(np.ones(DIMENSION, np.float32))
    before = {name: tiled(first) for name, first in chosen.keeps.items()}
    combined = chosen.combine(parent, sources, before, {"steps": 5}, {"server_learning_rate": 0.5}, b"")
    for start in range(0, DIMENSION, FLOAT_BLOCK):
        count = min(FLOAT_BLOCK, DIMENSION - start)
        combined.model.read(start, count)
        for kept in combined.tensors.values():
            kept.read(start, count)


def tiled(first: tuple[float, ...]) -> Computed:
    """A state in which each row is ``first``."""
    return Computed(lambda _, count: np.tile(np.array(first, np.float32), (count, 1)))


def beside_mean(name: str, pairs: Pairs) -> Row:
    return Row(name=name, value=pairs.ours_median, unit="CPU s", limit=pairs.other_median, ratio=pairs.ratio.median)


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
