"""Aggregation rules: from the updates of a round to one delta.

A rule declares what it needs. *sum*: the exact weighted sum, folded as updates arrive; the rule is then its mean.
*all*: every update at once, read by blocks of columns at the end of the round. It also declares whether it takes
weights, and which numbers a plan sets for it. Rules work on vectors and weights, not on files or devices. No code
depends on the name of a rule; ``registry`` has the built-in rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.engine.aggregation.parameters import Parameter, Settings

Vector = NDArray[np.float32]
Columns = NDArray[np.float32]
"""[n, B]: a row for each update, in the order of the devices' ids, and a column for each coordinate of a block."""
Weights = NDArray[np.int64]
Needs = Literal["sum", "all"]


class Rule(Protocol):
    """The port of a rule. A function of its arguments: the same columns give the same bits on every machine, whatever
    the width of the block."""

    @property
    def needs(self) -> Needs:
        """*sum* or *all*, as above."""
        ...

    @property
    def takes_weights(self) -> bool:
        """Whether updates may have different weights. A plan with weights is refused where the rule takes none."""
        ...

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The numbers that a plan may set, by name."""
        ...

    def combine(self, columns: Columns, weights: Weights, settings: Settings) -> Vector:
        """One block of the delta, [B] float32, from ``columns`` [n, B] and ``weights`` [n]. Only for *all*."""
        ...


class Mean:
    """The weighted mean, sum_k w_k delta_k / sum_k w_k, from the exact sum (``client_sdk.tensors.exact_sum``)."""

    needs: Needs = "sum"
    takes_weights = True
    parameters: Mapping[str, Parameter] = {}

    def combine(self, columns: Columns, weights: Weights, settings: Settings) -> Vector:
        raise TypeError("the mean is made from the exact sum, not from columns")


class Median:
    """The coordinate-wise median (Yin et al. 2018, arXiv:1803.01498, Algorithm 1, option I). Order-free: the same set
    of updates gives the same bits."""

    needs: Needs = "all"
    takes_weights = False
    parameters: Mapping[str, Parameter] = {}

    def combine(self, columns: Columns, weights: Weights, settings: Settings) -> Vector:
        return np.median(columns, axis=0).astype(np.float32)
