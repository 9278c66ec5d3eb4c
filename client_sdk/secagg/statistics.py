"""Statistics of a model under masks: a range of its own for each tensor, and many bits for each value.

A statistic is not scaled, rotated or sampled with the parameters. Each value x of a tensor with the range R becomes the
whole number t, and t travels as digits in base 2^q, a lane each, so that sums stay sums::

    t = M + w / w_cap * clip(x, -R, R) * M / R        M = 2^47 - 1, so 0 <= t < 2^48

rounded to the nearest whole number. In a mean of total weight W the step is R / M * w_cap / W: with R = 65536, a cap of
10,000 and W = 1,000 it is 5e-9, so statistics keep their meaning whatever the q of the parameters.

*Non-negative* statistics are rounded up, to floor(t) + 2. Float64 is less than a tenth of a unit off here, so each
device puts in more than its delta, and its value was at least 0: the mean delta is at least minus the model's value,
and so the sum of both, rounded as floats are, is at least 0. No range and no q of a plan can commit one below 0.

Errors: BadParameters, BadVector, NotFinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from client_sdk.secagg.errors import BadParameters, BadVector
from client_sdk.secagg.lanes import Lanes, lane_dtype
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import NotFinite

BITS = 48
"""Bits of a value: a sum of 10,000 fits into 63."""
MIDDLE = (1 << (BITS - 1)) - 1
NOTHING = np.zeros(0, np.float32)
"""The values of a model without statistics."""


@dataclass(frozen=True, slots=True)
class StatisticRange:
    """One tensor of statistics in a header."""

    elements: int
    range: float
    """R: the largest magnitude of a value's delta; larger ones are cut."""
    non_negative: bool

    def __post_init__(self) -> None:
        if self.elements < 0 or not (math.isfinite(self.range) and 1e-30 <= self.range <= 1e30):
            raise BadParameters(f"a statistic of {self.elements} values has the range {self.range!r}")


@dataclass(frozen=True, slots=True)
class StatisticLanes:
    """Converts the statistics of one header to lanes and back. The lanes hold the lowest digits of all values, then the
    next ones, and so on."""

    tensors: tuple[StatisticRange, ...]
    q: int
    weight_cap: int

    @property
    def values(self) -> int:
        return sum(one.elements for one in self.tensors)

    @property
    def digits(self) -> int:
        """Lanes of a value."""
        return -(-BITS // self.q)

    @property
    def count(self) -> int:
        """Lanes of all values."""
        return self.values * self.digits

    def lanes(self, values: Float32, weight: int, bits: int) -> Lanes:
        """The lanes of ``values`` (1-d float32), as ``lane_dtype(bits)``. NotFinite for NaN and infinity."""
        if not np.isfinite(values).all():
            raise NotFinite("the delta of a statistic holds NaN or infinity")
        ranges = self._spread([one.range for one in self.tensors])
        whole = np.clip(values.astype(np.float64), -ranges, ranges)
        whole *= weight / self.weight_cap * (MIDDLE / ranges)
        whole += MIDDLE
        up = self._spread([float(one.non_negative) for one in self.tensors]) > 0
        found = np.where(up, np.floor(whole) + 2, np.rint(whole)).astype(np.int64)
        found = np.minimum(found, (1 << BITS) - 1)
        mask = (1 << self.q) - 1
        rows = [(found >> self.q * place) & mask for place in range(self.digits)]
        return cast("Lanes", np.concatenate([np.zeros(0, np.int64), *rows]).astype(lane_dtype(bits)))

    def mean_of(self, lanes: Lanes, start: int, count: int, survivors: int, weight: int) -> npt.NDArray[np.float64]:
        """The weighted mean of ``count`` values from ``start``, of survivors of this total ``weight`` above 0.
        ``lanes``: of all statistics, of a sum that was found possible."""
        ranges = self._spread([one.range for one in self.tensors])[start : start + count]
        total = self._totals(lanes, start, count) - survivors * MIDDLE
        return total.astype(np.float64) * (ranges / MIDDLE) * (self.weight_cap / weight)

    def require_possible(self, lanes: Lanes, survivors: int, weight: int) -> None:
        """BadVector where survivors of this total weight cannot have put these lanes in: a digit above what they can
        have together, or a value beyond its range by more than rounding."""
        if not lanes.size:
            return
        last = (1 << (BITS - self.q * (self.digits - 1))) - 1
        for place in range(self.digits):
            most = survivors * (last if place == self.digits - 1 else (1 << self.q) - 1)
            if int(lanes[place * self.values : (place + 1) * self.values].max()) > most:
                raise BadVector("a lane of a statistic sums to more than the survivors may have: a vector was wrong")
        totals, cap, slack = self._totals(lanes, 0, self.values), self.weight_cap, 3 * survivors + 1
        share = MIDDLE * weight // cap + slack
        if int(totals.max()) > survivors * MIDDLE + share or int(totals.min()) < survivors * MIDDLE - share:
            raise BadVector(
                "a statistic is out of the range that the survivors of this weight can have put in: a vector was wrong"
            )

    def _totals(self, lanes: Lanes, start: int, count: int) -> npt.NDArray[np.int64]:
        found = np.zeros(count, np.int64)
        for place in range(self.digits):
            first = place * self.values + start
            found += lanes[first : first + count].astype(np.int64) << self.q * place
        return found

    def _spread(self, of_tensors: Sequence[float]) -> npt.NDArray[np.float64]:
        """A number for each value, from one for each tensor."""
        return np.repeat(np.array(of_tensors, np.float64), [one.elements for one in self.tensors])
