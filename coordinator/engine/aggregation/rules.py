"""Aggregation rules: from the updates of a round to one delta.

A rule declares what it needs. *sum*: the exact weighted sum, folded as updates arrive; the rule is then its mean.
*all*: every update at once, read by blocks of columns at the end of the round. *whole*: whole updates, such as for
their distances (``combining``). It also declares whether it takes weights, and which numbers a plan sets for it. Rules
work on vectors and weights, not on files or devices. No code depends on the name of a rule; ``registry`` has the
built-in rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.engine.aggregation.combining import Columns, Needs, Updates, Weights
from coordinator.engine.aggregation.parameters import Parameter, Settings

Vector = NDArray[np.float32]


class Rule(Protocol):
    """The port of a rule; of one that needs the *sum* this is all. A function of its arguments: the same updates give
    the same bits on every machine, whatever the width of a block. A rule whose method ``withstands(settings, count)``
    says it survives that many wrong ones of ``count`` updates."""

    @property
    def needs(self) -> Needs:
        """*sum*: the sum of the updates; *all*: all updates by columns; *whole*: whole updates."""
        ...

    @property
    def takes_weights(self) -> bool:
        """Whether updates may have different weights. A plan with weights is refused where the rule takes none."""
        ...

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The numbers that a plan may set, by name."""
        ...


class ColumnRule(Rule, Protocol):
    """The port of a rule that needs *all*."""

    def combine(self, columns: Columns, weights: Weights, settings: Settings) -> Vector:
        """One block of the delta, [B] float32, from ``columns`` [n, B] and ``weights`` [n]."""
        ...


class WholeRule(Rule, Protocol):
    """The port of a rule that needs *whole* updates. Its result does not depend on the order of the updates either."""

    @property
    def holds(self) -> int:
        """How many whole updates it holds at once, at most: those of ``Updates.whole`` that are still referred to. 0:
        blocks and sums are enough."""
        ...

    def fewest(self, settings: Settings) -> int:
        """The fewest updates that it takes. A plan whose quorum is below it is refused."""
        ...

    def delta(self, updates: Updates, settings: Settings) -> Vector:
        """The delta, [elements] float32, of parameters and statistics. Dot products only by ``combining``, and sums by
        ``Updates.sum``, which have no order. A rule whose method ``remembers(settings)`` says True gets a third
        argument: the last round's delta, of parameters only; zeros at first."""
        ...


class Mean:
    """The weighted mean, sum_k w_k delta_k / sum_k w_k, from the exact sum (``client_sdk.tensors.exact_sum``)."""

    needs: Needs = "sum"
    takes_weights = True
    parameters: Mapping[str, Parameter] = {}


class Median:
    """The coordinate-wise median (Yin et al. 2018, arXiv:1803.01498, Algorithm 1, option I). Order-free: the same set
    of updates gives the same bits."""

    needs: Needs = "all"
    takes_weights = False
    parameters: Mapping[str, Parameter] = {}

    def withstands(self, settings: Settings, count: int) -> int:
        return (count - 1) // 2

    def combine(self, columns: Columns, weights: Weights, settings: Settings) -> Vector:
        return np.median(columns, axis=0).astype(np.float32)


_ROUNDING = 1e-9
"""Tolerance for the floor of a product in floating point: 0.29 * 100 is 28.999999999999996."""


class TrimmedMean:
    """The coordinate-wise trimmed mean: the mean of each coordinate without its extreme values.

    Yin et al. 2018, arXiv:1803.01498, Algorithm 1, option II: with the fraction beta, the floor(beta n) smallest and as
    many of the largest of the n values are left out, and the others are averaged. It withstands as many wrong updates.

    It takes no weights. That bound counts devices; sizes are reported by the devices themselves, so a weighted trimmed
    mean would let a few liars outweigh the many.

    Values are sorted, so the order of the updates changes no bit; they are added in float64, one row after another, so
    neither does the width of a block.
    """

    needs: Needs = "all"
    takes_weights = False
    parameters: Mapping[str, Parameter] = {
        "fraction": Parameter(
            meaning="the part of the values that is left out at each end, for example 0.1", least=0.0, below=0.5
        )
    }

    def withstands(self, settings: Settings, count: int) -> int:
        return min(math.floor(settings["fraction"] * count + _ROUNDING), (count - 1) // 2)

    def combine(self, columns: Columns, weights: Weights, settings: Settings) -> Vector:
        count = len(columns)
        cut = self.withstands(settings, count)
        middle = np.sort(columns, axis=0)[cut : count - cut]
        total = np.zeros(columns.shape[1])
        for row in middle:
            total += row
        mean: Vector = (total / len(middle)).astype(np.float32)
        return mean
