"""Aggregation rules: from the updates of a round to one delta.

A rule declares what it needs. *sum*: the exact weighted sum, folded as updates arrive; the rule is then its mean.
*all*: every update at once, read by blocks of columns at the end of the round. Rules know vectors and weights, never
files or devices.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Rule(Protocol):
    needs: Literal["sum", "all"]

    def combine(self, columns: NDArray[np.float32], weights: NDArray[np.int64]) -> Vector:
        """One block of the delta, [B], from ``columns`` [n, B], a row for each update by device id, and ``weights``
        [n]. Only for *all*.
        """
        ...


class Mean:
    """The weighted mean, sum_k w_k delta_k / sum_k w_k, from the exact sum (``client_sdk.tensors.exact_sum``)."""

    needs: Literal["sum", "all"] = "sum"

    def combine(self, columns: NDArray[np.float32], weights: NDArray[np.int64]) -> Vector:
        raise TypeError("the mean is made from the exact sum, not from columns")


class Median:
    """The coordinate-wise median (Yin et al.

    2018, arXiv:1803.01498, Algorithm 1, option I). Order-free: the same set gives the same bits.
    """

    needs: Literal["sum", "all"] = "all"

    def combine(self, columns: NDArray[np.float32], weights: NDArray[np.int64]) -> Vector:
        return np.median(columns, axis=0).astype(np.float32)


RULES: dict[str, Rule] = {"mean": Mean(), "median": Median()}
