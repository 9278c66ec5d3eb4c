"""The coordinate-wise trimmed mean: the mean of each coordinate without its extreme values.

Yin et al. 2018, arXiv:1803.01498, Algorithm 1, option II: with the fraction beta, the floor(beta n) smallest and as
many of the largest of the n values are left out, and the others are averaged. It withstands as many wrong updates.

It takes no weights. That bound counts devices; sizes are reported by the devices themselves, so a weighted trimmed mean
would let a few liars outweigh the many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from coordinator.engine.aggregation.parameters import Parameter, Settings
from coordinator.engine.aggregation.rules import Columns, Needs, Vector, Weights

_ROUNDING = 1e-9
"""Tolerance for the floor of a product in floating point: 0.29 * 100 is 28.999999999999996."""


class TrimmedMean:
    """Values are sorted, so the order of the updates changes no bit; they are added in float64, one row after another,
    so neither does the width of a block."""

    needs: Needs = "all"
    takes_weights = False
    parameters: Mapping[str, Parameter] = {
        "fraction": Parameter(
            meaning="the part of the values that is left out at each end, for example 0.1", least=0.0, below=0.5
        )
    }

    def combine(self, columns: Columns, weights: Weights, settings: Settings) -> Vector:
        count = len(columns)
        cut = min(math.floor(settings["fraction"] * count + _ROUNDING), (count - 1) // 2)
        middle = np.sort(columns, axis=0)[cut : count - cut]
        total = np.zeros(columns.shape[1])
        for row in middle:
            total += row
        mean: Vector = (total / len(middle)).astype(np.float32)
        return mean
