"""Splitting one data set among clients, evenly or unevenly by label.

This file knows labels and chance: labels in, lists of positions out. It has never heard of images, devices or files.
Every way of splitting is exact (each example belongs to exactly one client) and a function of its arguments alone.

| by          | a client's labels                             | a client's size        | source           |
|-------------|-----------------------------------------------|------------------------|------------------|
| `iid`       | like the whole                                | equal, or `size_sigma` |                  |
| `dirichlet` | its own mixture; the smaller alpha, the purer | equal, or `size_sigma` | arXiv:1909.06335 |
| `shards`    | about two: two shards of the sorted data      | equal                  | arXiv:1602.05629 |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from simulation.datasets import Examples

By = Literal["iid", "dirichlet", "shards"]
Labels = Examples | Sequence[int] | npt.NDArray[np.integer]
Indices = npt.NDArray[np.int64]

SHARDS_PER_CLIENT = 2
"""McMahan et al. 2017, section 3: each of 100 clients gets 2 of 200 shards."""


def partition(
    labels: Labels,
    clients: int,
    by: By = "dirichlet",
    alpha: float = 0.3,
    seed: int = 0,
    min_examples: int = 1,
    *,
    size_sigma: float = 0.0,
) -> list[Indices]:
    """Give every example to exactly one of `clients` clients.

    - `labels`: `Examples`, or integers `[n]`.
    - `alpha`: for `dirichlet`, the concentration per label, above 0. 100 is nearly even, 0.3 leaves a client about
      three of ten labels that matter, 0.01 mostly one. The label mixture of a client is
      q ~ Dir(alpha * C * p) with p the labels' shares in the whole and C their number, so that balanced labels give
      the common Dir(alpha, ..., alpha). Hsu et al. write Dir(α p): their α is `alpha * C`.
    - `seed`: any integer from 0; PCG64's stream. Equal arguments give equal answers with one release of numpy.
    - `min_examples`: how few a client may get, from 0; `clients * min_examples` may not exceed n.
    - `size_sigma`: 0 gives sizes that differ by at most one. Above 0, what clients hold beyond `min_examples` is
      proportional to a log-normal draw exp(size_sigma * N(0, 1)), largest remainders first; not for `shards`.

    Returns `clients` arrays of positions (int64, ascending). Raises `ValueError` for arguments that cannot be met.
    """
    y = _checked_labels(labels)
    _check(len(y), clients, by, alpha, seed, min_examples, size_sigma)
    rng = np.random.Generator(np.random.PCG64(seed))
    match by:
        case "iid":
            parts = np.split(rng.permutation(len(y)), _ends(_sizes(len(y), clients, min_examples, size_sigma, rng)))
        case "dirichlet":
            parts = _dirichlet(y, _sizes(len(y), clients, min_examples, size_sigma, rng), alpha, rng)
        case "shards":
            parts = _shards(y, clients, rng)
    if (smallest := min(len(part) for part in parts)) < min_examples:
        raise ValueError(f"these shards give a client only {smallest} examples: fewer clients, or min_examples less")
    return [np.sort(part).astype(np.int64) for part in parts]


def label_skew(labels: Labels, parts: Sequence[npt.NDArray[np.integer]]) -> float:
    """How far the clients' labels are from the whole's: 0 (each like the whole) to almost 1.

    The mean over clients, weighted by their examples, of the total variation distance between the labels:
    sum_k (n_k / n) * (1/2) sum_c |q_kc - p_c|, with q_k the label shares of client k, p those of the whole and n_k
    the client's size. Accumulated in float64. Raises `ValueError` when the clients hold no examples at all.
    """
    y = _checked_labels(labels)
    if not any(len(part) for part in parts):
        raise ValueError("no client holds any example: there is no skew to measure")
    kinds, codes = np.unique(y, return_inverse=True)
    counts_KC = np.stack([np.bincount(codes[part], minlength=len(kinds)) for part in parts]).astype(np.float64)
    sizes_K1 = counts_KC.sum(axis=1, keepdims=True)
    whole_C = counts_KC.sum(axis=0) / counts_KC.sum()
    return float(np.abs(counts_KC - sizes_K1 * whole_C).sum() / (2 * sizes_K1.sum()))


def _dirichlet(y: Indices, sizes_K: Indices, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Hsu, Qi, Brown 2019, arXiv:1909.06335: client k draws q_k ~ Dir, then its examples' labels from q_k.

    Drawn without replacement: once a label is used up, q_k is renormalized over the others. Drawing one by one and
    dropping draws of used-up labels is the same as drawing the missing ones in batches and capping them, which is what
    the loop does. Late clients get what is left, so clients take their turns in random order.
    """
    kinds, codes = np.unique(y, return_inverse=True)
    left_C = np.bincount(codes)
    concentration_C = alpha * len(kinds) * left_C / len(y)
    pools = [rng.permutation(np.flatnonzero(codes == c)) for c in range(len(kinds))]
    parts: list[Indices] = [np.empty(0, np.int64)] * len(sizes_K)
    for k in rng.permutation(len(sizes_K)):
        q_C = rng.dirichlet(concentration_C)
        taken_C = np.zeros_like(left_C)
        while (missing := int(sizes_K[k] - taken_C.sum())) > 0:
            open_C = np.where(taken_C < left_C, q_C, 0.0)
            if open_C.sum() <= 0.0:  # all of q_k's mass is on used-up labels: fall back to what the whole has left
                open_C = (left_C - taken_C).astype(np.float64)
            drawn_C = rng.multinomial(missing, open_C / open_C.sum())
            taken_C = np.minimum(taken_C + drawn_C, left_C)
        parts[k] = np.concatenate(
            [pool[left - taken : left] for pool, left, taken in zip(pools, left_C, taken_C, strict=True)]
        )
        left_C = left_C - taken_C
    return parts


def _shards(y: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """McMahan et al. 2017, arXiv:1602.05629, section 3: sort by label, cut into 2 shards a client, deal them out."""
    in_label_order = np.argsort(y, kind="stable")
    shards = np.array_split(in_label_order, SHARDS_PER_CLIENT * clients)
    dealt_KS = rng.permutation(len(shards)).reshape(clients, SHARDS_PER_CLIENT)
    return [np.concatenate([shards[s] for s in hand]) for hand in dealt_KS]


def _sizes(n: int, clients: int, least: int, sigma: float, rng: np.random.Generator) -> Indices:
    """How many examples each client gets, `[clients]`, summing to n: `least` each, the rest by log-normal shares."""
    shares_K = np.exp(sigma * rng.standard_normal(clients))
    exact_K = (n - clients * least) * (shares_K / shares_K.sum())
    sizes_K: Indices = np.floor(exact_K).astype(np.int64)
    short = n - clients * least - int(sizes_K.sum())
    sizes_K[np.argsort(sizes_K - exact_K, kind="stable")[:short]] += 1
    sizes_K += least
    return sizes_K


def _ends(sizes_K: Indices) -> Indices:
    """Where each client but the last ends, `[clients - 1]`."""
    return np.cumsum(sizes_K, dtype=np.int64)[:-1]


def _checked_labels(labels: Labels) -> Indices:
    y = labels.y if isinstance(labels, Examples) else np.asarray(labels)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"labels must be integers of shape [n], not {y.dtype} of shape {list(y.shape)}")
    return y.astype(np.int64)


def _check(n: int, clients: int, by: str, alpha: float, seed: int, min_examples: int, size_sigma: float) -> None:
    """Everything that can be refused before any chance is drawn, each in one plain sentence."""
    if by not in get_args(By):
        raise ValueError(f"by={by!r} is no way to partition; known are: {', '.join(get_args(By))}")
    if clients < 1:
        raise ValueError(f"clients={clients}: at least one client is needed")
    if min_examples < 0:
        raise ValueError(f"min_examples={min_examples} must be 0 or more")
    if clients * min_examples > n:
        raise ValueError(f"{n} examples cannot give each of {clients} clients {min_examples}: fewer clients, or less")
    if seed < 0:
        raise ValueError(f"seed={seed} must be 0 or more")
    if not (math.isfinite(alpha) and 1e-6 <= alpha <= 1e6):
        raise ValueError(f"alpha={alpha} must be from 1e-6 (one label each) to 1e6 (even)")
    if not (math.isfinite(size_sigma) and 0.0 <= size_sigma <= 5.0):
        raise ValueError(f"size_sigma={size_sigma} must be from 0 (equal sizes) to 5")
    if by == "shards" and size_sigma > 0:
        raise ValueError("shards have one size: size_sigma applies to iid and dirichlet")
