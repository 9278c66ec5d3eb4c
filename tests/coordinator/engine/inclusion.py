"""Inclusion probabilities of successive sampling: exactly for small pools, nearly for large ones.

Reference for tests and for the figures of docs/selection.md. Knows no hashes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist


def exact(sizes: Sequence[int], k: int) -> list[float]:
    """pi_i: the chance that device i is among k drawn one by one, each time proportional to size. [n]

    By recursion over sets: P(S) = sum over i in S of P(S without i) * n_i / (N - sum of S without i). 2^n sets.
    """
    sets = _sets(sizes, k)
    return [sum(chance for drawn, chance in sets.items() if drawn >> i & 1) for i in range(len(sizes))]


def pairs(sizes: Sequence[int], k: int) -> dict[tuple[int, int], float]:
    """The chance that both devices i < j are among them, likewise."""
    sets = _sets(sizes, k)
    return {
        (i, j): sum(chance for drawn, chance in sets.items() if drawn >> i & drawn >> j & 1)
        for i, j in combinations(range(len(sizes)), 2)
    }


def _sets(sizes: Sequence[int], k: int) -> dict[int, float]:
    """The chance of each set of k, as bits."""
    total = sum(sizes)
    reached = {0: 1.0}
    for _ in range(k):
        following: dict[int, float] = {}
        for drawn, chance in reached.items():
            left = total - sum(size for i, size in enumerate(sizes) if drawn >> i & 1)
            for i, size in enumerate(sizes):
                if not drawn >> i & 1:
                    following[drawn | 1 << i] = following.get(drawn | 1 << i, 0.0) + chance * size / left
        reached = following
    return reached


def nearly(sizes: Sequence[int], k: int) -> list[float]:
    """pi_i = 1 - exp(-n_i t), with t such that they add up to k (Rosen 1972): for pools of hundreds and more. [n]"""
    low, high = 0.0, 1e3
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if sum(-math.expm1(-size * t) for size in sizes) < k else (low, t)
    return [-math.expm1(-size * t) for size in sizes]


def distance(sizes: Sequence[int], inclusion: Sequence[float], k: int) -> float:
    """Total variation between pi_i / k, how the unweighted mean of cohorts weighs devices, and n_i / N.

    The most by which that mean can miss the mean over all examples, when what is averaged lies between 0 and 1.
    """
    total = sum(sizes)
    return sum(abs(chance / k - size / total) for chance, size in zip(inclusion, sizes, strict=True)) / 2


def log_normal(n: int, sigma: float) -> list[int]:
    """n sizes at the evenly spaced quantiles of a log-normal distribution with median 100, at least 1."""
    normal = NormalDist()
    return [max(1, round(100 * math.exp(sigma * normal.inv_cdf((i + 0.5) / n)))) for i in range(n)]
