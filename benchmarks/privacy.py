"""Measures the noise of a private round, on the coordinator and on a device: a million values.

``python -m benchmarks.privacy [--quick] [--json]``. CPU seconds of one process; ``--quick`` takes fewer pairs.

    noise_1m_cpu_s             discrete Gaussian noise for 1M values, drawn exactly, in the units of the exact sum; the
                               limit is what everybody must do who draws as many: the key stream, and a float normal
                               deviate of numpy's Philox, rounded, which tells its input (Mironov 2012)
    private_mean_1m_vs_plain   the mean of an exact sum of 1M values with its noise, over that without
    masks_with_noise_1m        on a device of a *strict* roster of 300, q = 16: noise and masks of 1M values, over the
                               masks alone
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from benchmarks.harness import Row, Spread, interleaved, main
from client_sdk.secagg.agreement import KeyStream
from client_sdk.secagg.header import GraphRule, share_of
from client_sdk.secagg.lanes import lane_bits, lane_dtype
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.noise import BLOCK, NO_NOISE, DiscreteGaussian, add_noise, reach
from client_sdk.secagg.quantize import Quantizer
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.engine.plan import Plan
from coordinator.folding.noise import Noise, RoundSeed

MILLION = 1_000_000
AIM_S = 1.0
AIM_MASKS = 1.3
PEERS = 300
CLIP, NOISE, GOAL = 0.5, 4.0, 256
PLAN = {
    "name": "private",
    "task": {"learner": "a:b"},
    "cohort": {"most_rounds": 10},
    "aggregation": {"weighting": "equal"},
    "privacy": {"clip": CLIP, "noise": NOISE, "delta": 1e-6},
}


def exactly(key: bytes = bytes(32)) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The noise of a round."""
    deviation = int(CLIP * NOISE * 2**32)
    return DiscreteGaussian(Fraction(deviation) ** 2).draw(key, MILLION)


def rounded(seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """As many rounded normal deviates, and the key stream of as many words."""
    stream = KeyStream(8 * BLOCK)
    stream.start(bytes(32))
    for _ in range(0, MILLION, BLOCK):
        stream.fill(8 * BLOCK)
    drawn = np.random.Generator(np.random.Philox(seed)).standard_normal(MILLION)
    return np.rint(drawn * (CLIP * NOISE * 2**32)).astype(np.int64)


def _masks(noise: Fraction) -> None:
    """What a device adds to its lanes, once it has agreed on a seed with each of its peers."""
    bits = lane_bits(PEERS, 16, reach(PEERS * noise))
    vector, masker = np.zeros(MILLION, lane_dtype(bits)), Masker(bits)
    if noise:
        add_noise(vector, noise, bytes(32))
    for peer in range(PEERS):
        masker.apply(vector, peer.to_bytes(32, "big"), 1)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    pairs = 5 if quick else 15
    if abs(exactly().std() / rounded().std() - 1) > 0.01:
        raise SystemExit("the two draw from other distributions: wrong results are not reported")
    both = interleaved(exactly, rounded, pairs)
    mine = both.ours_median
    yield Row(
        name="noise_1m_cpu_s",
        value=mine,
        unit="CPU s",
        limit=both.other_median,
        ratio=both.ratio.median,
        aim=AIM_S,
        met=Spread.of(both.ours).met(AIM_S),
    )
    plan = Plan.parse(PLAN)
    total = ExactSum(MILLION)
    values = np.random.default_rng(0).standard_normal(MILLION).astype(np.float32)
    total.add((np.trunc(values * 2.0**20) / 2.0**32).astype(np.float32), 1)
    seed = RoundSeed("r", 1, hashlib.sha256(b"a benchmark").digest())

    def private() -> None:
        if plan.privacy is not None:
            Noise(plan, plan.privacy).mean(total, seed, "p")[0].read(0, MILLION)

    means = interleaved(private, total.mean, pairs)
    yield Row(name="private_mean_1m_vs_plain", value=means.ratio.median, unit="ratio", ratio=means.ratio.median)
    used = Quantizer(q=16, max_norm=CLIP, max_abs=CLIP / 100, weight_cap=1, noise=NOISE, divisor=PEERS)
    share = share_of(used, GraphRule(profile="strict"), MILLION, PEERS)
    both = interleaved(lambda: _masks(share), lambda: _masks(NO_NOISE), pairs)
    yield Row(
        name="masks_with_noise_1m",
        value=both.ratio.median,
        unit="ratio",
        ratio=both.ratio.median,
        aim=AIM_MASKS,
        met=both.ratio.met(AIM_MASKS),
    )


if __name__ == "__main__":
    main("privacy", measure)
