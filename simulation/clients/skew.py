"""How unevenly labels are spread over clients, as one number.

This file knows counts. It has never heard of data sets, of ways to partition or of pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def label_skew(labels: Sequence[int] | npt.NDArray[np.integer], parts: Sequence[npt.NDArray[np.integer]]) -> float:
    """How far the clients' labels are from the whole's: 0 (each like the whole) to almost 1.

    The mean over clients, weighted by their examples, of the total variation distance between the labels:
    sum_k (n_k / n) * (1/2) sum_c |q_kc - p_c|, with q_k the label shares of client k, p those of the whole and n_k
    the client's size. ``labels``: integers [n]; ``parts``: the positions of each client's examples. Accumulated in
    float64. Raises ``ValueError`` when the clients hold no examples at all.
    """
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    if not sizes.sum():
        raise ValueError("no client holds any example: there is no skew to measure")
    held = np.asarray(labels)[np.concatenate([np.asarray(part) for part in parts]).astype(np.int64)]
    return skew_of(held, sizes)


def skew_of(labels: npt.NDArray[Any], sizes_K: npt.NDArray[np.int64]) -> float:
    """``label_skew`` of ``labels`` [n] in the order of their clients: the first ``sizes_K[0]`` are client 0's.

    Only the pairs (client, label) that occur are counted, so that a million clients cost memory of order n:
    sum_c |n_kc - n_k p_c| is summed where n_kc > 0, and is n_k times the mass of p elsewhere.
    """
    kinds, codes = np.unique(labels, return_inverse=True)
    whole_C = np.bincount(codes, minlength=len(kinds)) / len(codes)
    owners = np.repeat(np.arange(len(sizes_K), dtype=np.int64), sizes_K)
    pairs, counts = np.unique(owners * len(kinds) + codes, return_counts=True)
    client, label = np.divmod(pairs, len(kinds))
    expected = sizes_K[client] * whole_C[label]
    met = np.abs(counts - expected).sum()
    missed = float(sizes_K.sum()) - expected.sum()
    return max(0.0, float(met + missed) / (2 * float(sizes_K.sum())))
