"""Quantization: a clipped delta, a weight and a canary as lanes of q bits, and the mean from the sum of such lanes.

A vector of d values becomes d + m + 1 lanes; m = ceil(bits of w_cap / q), so 1 where w_cap fits into q bits. Those of
the model's statistics lie between the values and the weight (``StatisticLanes``)::

    lane i < d    round(L / 2 + w / w_cap * x_i * L / (2 R))    x_i: clipped to the norm, then into [-R, R]
    lane d + j    digit j of w in base 2^q, for j < m           the weight, at most w_cap
    lane d + m    1                                             the canary: it sums to the number of survivors

L, the highest value, is 2^q - 2 (1 where q is 1): even, so that a value of 0 is a whole lane and is not rounded.

The values are those of the plan's codec: with a rotating one, x is rotated, and R bounds a rotated coordinate. The norm
is the delta's own, since a rotation keeps it (of a sampled delta: that of the coordinates that are sent).

Rounding is stochastic: up with a probability f equal to the fraction, so the sum is unbiased, whatever q and the
weight. One lane's variance is f (1 - f), at most 1/4, and at most |lane - L / 2| before rounding: a light device, whose
values are near the middle, adds little. In a mean of total weight W of S survivors, with a the weighted mean of |x_i|,
the standard deviation of rounding is at most

    min(sqrt(S) / 2 * s, sqrt(W / w_cap * a * s)) * w_cap / W    with the step s = 2 R / L

so w_cap should not be far above the usual weight where q is small: half of the lane's range is then left empty.

In rounds with noise (``noise``) a vector that rounding would make too long is rounded towards zero, the noise is added
to its lanes afterwards, and a sum is divided by a fixed number of devices. Where the clip adapts (``clip``), x is the
delta in units in which the round's clip is ``max_norm``, times kappa, and behind the values lies one lane more, the bit
of ``clip_bit``, with the same noise: 2 b where the delta is within the clip, else 0, b = floor(beta c), with
c = max_norm L / (2 R). Over b its part of the squared norm is what kappa leaves of c^2.

Its randomness is a key stream of its own, HKDF(the device's rounding secret, header), 32 bits for each value: a device
rounds in the same way for the same header, plain or masked, and the unmasked sum equals the integer sum of the
survivors' lanes bit for bit.
Arithmetic is in float64, elementwise, so the lanes are a function of the values alone on every machine. Errors:
BadVector, BadParameters, NotFinite.

A statistic is not scaled, rotated or sampled with the parameters: each tensor has a range of its own, and each value
many bits. A value x of a tensor with the range R becomes the whole number t, and t travels as digits in base 2^q, a
lane each, so that sums stay sums::

    t = M + w / w_cap * clip(x, -R, R) * M / R        M = 2^47 - 1, so 0 <= t < 2^48

rounded to the nearest whole number. In a mean of total weight W the step is R / M * w_cap / W: with R = 65536, a cap of
10,000 and W = 1,000 it is 5e-9, so statistics keep their meaning whatever the q of the parameters.

*Non-negative* statistics are rounded up, to floor(t) + 2. Float64 is less than a tenth of a unit off here, so each
device puts in more than its delta, and its value was at least 0: the mean delta is at least minus the model's value,
and so the sum of both, rounded as floats are, is at least 0. No range and no q of a plan can commit one below 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np
import numpy.typing as npt

from client_sdk.secagg.agreement import KeyStream, derive
from client_sdk.secagg.clip_bit import beta_of, kappa_of, part_within
from client_sdk.secagg.errors import BadParameters, BadVector
from client_sdk.secagg.lanes import Lanes, lane_bits, lane_dtype
from client_sdk.secagg.noise import NO_NOISE, reach
from client_sdk.secagg.statement import DOMAIN
from client_sdk.tensors.floats import Float32, l2_norm_of_blocks, pieces
from client_sdk.tensors.manifest import NotFinite

BITS = 48
"""Bits of a value of a statistic: a sum of 10,000 fits into 63."""
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


Q_LIMIT = 24
WEIGHT_LIMIT = 2**24 - 1
"""The highest weight cap."""
ROUNDING_BYTES = 32
"""Length of a device's rounding secret."""

SMALLEST_BOUND = 1e-100
LARGEST_BOUND = 1e100
"""The bounds of a clip and of a range: wider than float32's range, and no product of two of them overflows."""

MOST_NOISE = 10_000.0
_BLOCK = 1 << 15
_GLANCE = 1 << 16
_SLACK = 1 + 1e-6
"""More than the rounding errors of a norm in float64."""
_HARDLY = 100.0
"""Honest rounding exceeds the bound on its norm with chance exp(-100)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantizer:
    """Converts values to lanes by the plan's numbers, which are the same on every device of a round."""

    q: int = 16
    """Bits of a value, 1 to 24."""
    max_norm: float
    """L2 norm to which a delta is clipped."""
    max_abs: float
    """R: the largest magnitude of a coordinate; larger ones are clipped."""
    weight_cap: int
    """w_cap: the largest weight of a device, 1 to 2^24 - 1."""
    statistics: tuple[StatisticRange, ...] = ()
    """The model's statistics, which have lanes of their own."""
    noise: float = 0.0
    """The deviation of the noise that each sum surely has, over the norm of one device's integers; 0: there is none."""
    divisor: int = 0
    """By how many devices a sum with noise is divided, however many are in it; 0 without noise."""
    clip: float = 0.0
    """The L2 norm to which a delta is clipped in this round, where that adapts: it counts as ``max_norm`` in the lanes.
    0: it is ``max_norm``, and there is no bit."""

    def __post_init__(self) -> None:
        if not _whole(self.q) or not 1 <= self.q <= Q_LIMIT:
            raise BadParameters(f"q is from 1 to {Q_LIMIT} bits, not {self.q!r}")
        for name, value in (("norm", self.max_norm), ("range", self.max_abs)):
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise BadParameters(f"the clipping {name} is a positive number, not {value!r}")
            if not SMALLEST_BOUND <= value <= LARGEST_BOUND:
                raise BadParameters(
                    f"the clipping {name} is from {SMALLEST_BOUND:g} to {LARGEST_BOUND:g}, not {value!r}"
                )
        if not _whole(self.weight_cap) or not 1 <= self.weight_cap <= WEIGHT_LIMIT:
            raise BadParameters(f"the weight cap is from 1 to {WEIGHT_LIMIT}, not {self.weight_cap!r}")
        if not (isinstance(self.noise, int | float) and 0 <= self.noise <= MOST_NOISE):
            raise BadParameters(f"a noise multiplier is from 0 to {MOST_NOISE:g}, not {self.noise!r}")
        if bool(self.noise) != (_whole(self.divisor) and self.divisor > 0):
            raise BadParameters("a round has noise exactly where its sum is divided by a fixed number of devices")
        if self.noise and (self.q == 1 or self.statistics):
            raise BadParameters("noise goes with values of 2 bits or more, and covers no statistics")
        if self.clip and not (self.noise and SMALLEST_BOUND <= self.clip <= LARGEST_BOUND):
            raise BadParameters(f"a clip that adapts goes with noise, and is a positive number, not {self.clip!r}")
        if self.clip and not self.bit:
            raise BadParameters(f"the bit of a clip that adapts is less than 1 unit of a lane of {self.q} bits")

    @property
    def levels(self) -> int:
        """L: the highest value of a lane, 2^q - 2; 1 where q is 1."""
        return max(1, (1 << self.q) - 2)

    @property
    def weight_lanes(self) -> int:
        """Lanes of the weight: its digits in base 2^q, the lowest first."""
        return -(-self.weight_cap.bit_length() // self.q)

    @property
    def _kappa(self) -> float:
        """The part of ``max_norm`` that is left for the values."""
        return kappa_of(beta_of(self.noise, self.divisor)) if self.clip else 1.0

    @property
    def bit(self) -> int:
        """b, in units of a lane; 0: there is no bit."""
        whole = self.max_norm * self.levels / (2 * self.max_abs)
        return math.floor(beta_of(self.noise, self.divisor) * whole) if self.clip else 0

    @property
    def bit_lanes(self) -> int:
        """Lanes of the bit: they lie behind the values, and get the same noise."""
        return int(self.clip > 0)

    def lane_bits(self, n: int, spread: Fraction) -> int:
        """Bits that hold the sum of the lanes of ``n`` devices, with noise of this variance."""
        return lane_bits(n, self.q, reach(spread), 2 * self.bit)

    @property
    def of_statistics(self) -> StatisticLanes:
        """Converts statistics to lanes."""
        return StatisticLanes(self.statistics, self.q, self.weight_cap)

    @property
    def extra_lanes(self) -> int:
        """Lanes behind those of the values: the bit's, the statistics', the weight's, and the canary."""
        return self.bit_lanes + self.of_statistics.count + self.weight_lanes + 1

    def bits_used(self, weight: float, survivors: int) -> float:
        """The bits of a value in the mean of so many devices of this weight: log2(L w / w_cap sqrt(S)), since a device
        uses L w / w_cap levels, and rounding averages out. What is finer is chance."""
        return math.log2(self.levels * weight / self.weight_cap * math.sqrt(survivors))

    def rounding_error(self, dimension: int, survivors: int, weight: float) -> float:
        """How far rounding moves a mean of ``dimension`` values at most, on average, as a part of ``max_norm``: the
        bound at the top of this file for survivors of this ``weight`` each, with a = max_norm / sqrt(dimension), the
        most that it can be."""
        step, share = 2 * self.max_abs / self.levels, weight / self.weight_cap
        a = self.max_norm / math.sqrt(dimension)
        one = min(math.sqrt(survivors) / 2 * step, math.sqrt(survivors * share * a * step)) / (survivors * share)
        return math.sqrt(dimension) * one / self.max_norm

    def takes_weight(self, weight: int) -> bool:
        """Whether ``weight`` is valid: a whole number from 0 to the cap."""
        return _whole(weight) and 0 <= weight <= self.weight_cap

    def lanes(
        self,
        values: Float32,
        weight: int,
        bits: int,
        rounding: bytes,
        statistics: Float32 = NOTHING,
    ) -> Lanes:
        """The lanes of ``values`` and ``statistics`` (1-d float32), as ``lane_dtype(bits)``. ``rounding``: the key from
        ``rounding_key``. A vector is clipped, not refused; NotFinite where it holds NaN or infinity."""
        if values.ndim != 1 or values.dtype != np.float32:
            raise BadVector("values are a flat array of float32")
        if statistics.shape != (self.of_statistics.values,):
            raise BadVector(f"{statistics.size} values of statistics are there, not {self.of_statistics.values}")
        if not self.takes_weight(weight):
            raise BadVector(f"a weight is a whole number from 0 to the cap, {self.weight_cap}, not {weight!r}")
        if bits < self.q:
            raise BadParameters(f"values of {self.q} bits do not fit into lanes of {bits}")
        middle, share = self.levels / 2, weight / self.weight_cap
        clipping, within = self._clipping(values)
        factor, bound = clipping * (share * (middle / self.max_abs)), share * middle
        lanes = np.empty(values.size + self.extra_lanes, lane_dtype(bits))
        whole = lanes.view(
            "<i4" if lanes.itemsize == 4 else "<i8"
        )  # lanes are below 2^24, and conversion to signed is faster
        here = whole[: values.size]
        self._round(values, factor, bound, here, rounding)
        if self.noise and self._is_beyond(here):
            self._round(values, factor, bound, here, None)
            if self._is_beyond(here):
                raise BadVector("the values cannot be rounded within their clip")
        mask = (1 << self.q) - 1
        if self.clip:
            part = self.bit * weight // self.weight_cap
            whole[values.size] = self.bit + (part if within else -part)
        behind = lanes[values.size + self.bit_lanes :]
        behind[: -self.weight_lanes - 1] = self.of_statistics.lanes(statistics, weight, bits)
        behind[-self.weight_lanes - 1 :] = *((weight >> self.q * j) & mask for j in range(self.weight_lanes)), 1
        return cast("Lanes", lanes)

    def _round(self, values: Float32, factor: float, bound: float, found: Lanes, key: bytes | None) -> None:
        """Write the lanes of ``values`` into ``found``: rounded at random by the stream of this key, or towards
        zero."""
        middle = self.levels / 2
        stream = KeyStream(4 * _BLOCK)
        if key is not None:
            stream.start(key)
        words = stream.buffer.view("<u4")
        size = min(_BLOCK, values.size)
        scratch, chances = np.empty(size), np.empty(size)
        for start in range(0, values.size, _BLOCK):
            block = values[start : start + _BLOCK]
            part, chance = scratch[: block.size], chances[: block.size]
            part[:] = block
            part *= factor
            np.clip(part, -bound, bound, out=part)
            if key is None:
                np.trunc(part, out=part)
                part += middle
            else:
                part += middle
                stream.fill(4 * block.size)
                chance[:] = words[: block.size]
                chance *= 2.0**-32
                part += chance
            here = found[start : start + block.size]
            here[:] = part  # never below 0, so truncation rounds down
            np.minimum(here, self.levels, out=here)
        stream.wipe()
        scratch[:] = chances[:] = 0  # wipe the last block of plain values

    def squared_norm(self, dimension: int) -> int:
        """In rounds with noise: the most that the squares of one device's integers, lane - L / 2 and +-b, sum to. Its
        square root is the sensitivity of a sum to one device, in exact integers.

        Random rounding makes a vector longer. With c = max_norm L / (2 R) it ends above this bound,

            c^2 + d / 4 + sqrt(2 ln(1 / beta)) (c + sqrt(d) / 2),    beta = 2^-40,

        with a chance below beta (Kairouz, Liu, Steinke 2021, arXiv:2102.06387, section 4, conditional rounding); such
        a vector is rounded towards zero instead, which makes none longer. So rounding is biased by less than beta."""
        c2 = (Fraction(_SLACK * self.max_norm) * self.levels / (2 * Fraction(self.max_abs))) ** 2
        longer = -(-dimension // 4) + 8 * (math.isqrt(math.ceil(c2)) + 1) + 4 * (math.isqrt(dimension) + 1)
        return min(math.ceil(c2) + longer, dimension * (self.levels // 2) ** 2 + self.bit**2)

    def variance(self, dimension: int) -> int:
        """sigma^2, of the noise that a sum of vectors of so many values surely has: ``noise`` times the norm that one
        device's integers have at most, squared; 0 without noise."""
        return math.ceil(Fraction(self.noise) ** 2 * self.squared_norm(dimension)) if self.noise else 0

    def _is_beyond(self, lanes: Lanes) -> bool:
        """Whether the squares of these integers and of the bit sum to more than ``squared_norm``: exactly."""
        squares, middle = self.bit**2, self.levels // 2
        for start in range(0, lanes.size, _BLOCK):
            part = lanes[start : start + _BLOCK].astype(np.int64) - middle
            squares += int(np.dot(part, part))
        return squares > self.squared_norm(lanes.size)

    def mean_of(self, lanes: Lanes, survivors: int, weight: int) -> npt.NDArray[np.float64]:
        """The weighted mean of some of the survivors' clipped values, from their lanes in a sum that was found possible
        (``require_possible``). ``weight``: above 0. The mean is sum_k w_k x_k / sum_k w_k, with
        sum_k (w_k / w_cap) x_k = (lanes - survivors * L / 2) * 2 R / L; where the clip adapts, in units of the model
        again."""
        values = lanes.astype(np.float64)
        values -= survivors * self.levels / 2
        values *= 2 * self.max_abs / self.levels * (self.weight_cap / weight)
        if self.clip:
            values *= self.clip / (self.max_norm * self._kappa)
        return values

    def within(self, total: Lanes, survivors: int) -> float:
        """The part of deltas within the clip, from all lanes of a sum with its noise that was found possible."""
        noised = int(total[-self.extra_lanes]) - survivors * self.bit
        return part_within(noised, self.bit, self.divisor)

    def rounding_share(self, lanes: Lanes, survivors: int) -> float:
        """About how much of a sum of lanes of values is rounding, as a part of its norm: from 0 to 1. A lane's variance
        is taken as survivors / 6, that of uniform fractions, and as 0 where the sum is that of zeros."""
        squares, moved = 0.0, 0
        for start in range(0, lanes.size, _BLOCK):
            part = lanes[start : start + _BLOCK] - survivors * self.levels / 2
            squares, moved = squares + float(np.dot(part, part)), moved + int(np.count_nonzero(part))
        return min(1.0, math.sqrt(moved * survivors / (4 if self.q == 1 else 6) / squares)) if moved else 0.0

    def require_possible(self, total: Lanes, survivors: int, spread: Fraction = NO_NOISE) -> int:
        """The total weight W, where ``total`` can be the sum of ``survivors`` vectors. BadVector otherwise: its canary,
        weight, a lane or its norm is impossible, and the device at fault cannot be identified. ``spread``: the variance
        of all the noise that can be in it (``noise.reach``), which is beyond these bounds with a chance below 2^-40.

        S survivors' canaries sum to S, each digit of their weights to at most S (2^q - 1), their weights to
        W <= S w_cap. Their sum in a lane is within L / 2 (S +- W / w_cap), and S for their rounding. So a mean
        is accepted only if its values, as the codec sends them, exceed the range by no more than rounding, and their
        norm the clip by no more than rounding: see ``_require_norm``.
        """
        canary, digits = int(total[-1]), [int(lane) for lane in total[-self.weight_lanes - 1 : -1]]
        if canary != survivors:
            raise BadVector(f"the canary lane sums to {canary}, not to the {survivors} survivors: a vector was wrong")
        if max(digits) > survivors * ((1 << self.q) - 1):
            raise BadVector(f"a lane of the weights sums to {max(digits)}, more than {survivors} survivors may have")
        weight = sum(digit << self.q * j for j, digit in enumerate(digits))
        if weight > survivors * self.weight_cap:
            raise BadVector(f"the weights sum to {weight}, more than {survivors} survivors may have")
        values = total[: -self.extra_lanes]
        if values.size:
            self._require_in_range(values, survivors, weight, reach(spread))
            self._require_norm(values, survivors, weight, spread)
        if self.clip and not -reach(spread) <= int(total[values.size]) <= 2 * self.bit * survivors + reach(spread):
            raise BadVector("the lane of the bits is beyond what the survivors can have put in: a vector was wrong")
        behind = total[values.size + self.bit_lanes : -self.weight_lanes - 1]
        self.of_statistics.require_possible(behind, survivors, weight)
        return weight

    def _require_in_range(self, values: Lanes, survivors: int, weight: int, noise: int) -> None:
        """Raise BadVector for a lane out of the range of these survivors, in exact integers. ``noise``: the most that
        noise adds to one."""
        cap, slack = self.weight_cap, survivors + 1 + noise
        most = min(self.levels * (survivors * cap + weight) // (2 * cap) + slack, self.levels * survivors + noise)
        least = self.levels * (survivors * cap - weight) // (2 * cap) - slack
        largest, smallest = int(values.max()), int(values.min())
        for lane, beyond, words in ((largest, largest > most, "more"), (smallest, smallest < least, "less")):
            if beyond:
                raise BadVector(
                    f"a lane sums to {lane}, {words} than the survivors of this weight can have put in: "
                    "a vector was wrong"
                )

    def _require_norm(self, values: Lanes, survivors: int, weight: int, spread: Fraction) -> None:
        """Raise BadVector where the values' norm exceeds the clip of these survivors.

        Without rounding the norm is at most max_norm L / (2 R) W / w_cap. Rounding adds to each lane S
        independent errors of mean 0 in intervals of length 1: at most S sqrt(d) in norm, and hardly ever more than
        sqrt(S (d + 2 sqrt(d t) + 2 t)) / 2, with chance exp(-t) (Hsu, Kakade, Zhang 2012, arXiv:1110.2842, theorem
        2.1). With few bits the first would be as large as the clip itself. Noise of variance v in each lane is
        subgaussian (Canonne, Kamath, Steinke 2020, arXiv:2004.00010), so by the same theorem its norm is hardly ever
        more than sqrt(v (d + 2 sqrt(d t) + 2 t)).
        """
        middle, squares = survivors * self.levels / 2, 0.0
        for start in range(0, values.size, _BLOCK):
            part = values[start : start + _BLOCK] - middle
            squares += float(np.dot(part, part))
        clip = self.max_norm * self.levels / (2 * self.max_abs) * (weight / self.weight_cap)
        d, t = values.size, _HARDLY
        hardly = math.sqrt(d + 2 * math.sqrt(d * t) + 2 * t)
        rounding = min(survivors * math.sqrt(d), math.sqrt(survivors) * hardly / 2)
        if math.sqrt(squares) > _SLACK * (clip + rounding + math.sqrt(spread) * hardly):
            raise BadVector("the values' norm is more than the survivors of this weight can have: a vector was wrong")

    def _clipping(self, values: Float32) -> tuple[float, bool]:
        """The factor that brings the norm of ``values`` to at most ``max_norm``, of which a clip that adapts leaves a
        part for the bit; and whether they are within the clip."""
        highest, clip = largest(values), self.clip or self.max_norm
        if not math.isfinite(highest):
            raise NotFinite("the delta holds NaN or infinity")
        norm = 0.0 if _surely_within(values, clip) else l2_norm_of_blocks(pieces(values), highest)
        return self.max_norm * self._kappa / max(clip, norm), norm <= clip


def largest(values: Float32) -> float:
    """The largest magnitude in ``values``; 0 for no values, NaN or infinite where one of them is."""
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def _whole(value: object) -> bool:
    """Whether it is an integer, NumPy's included, and not a boolean."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _surely_within(values: Float32, max_norm: float) -> bool:
    """Whether a fast upper bound of the norm is at most ``max_norm``: then the exact norm, ten times as expensive, is
    not needed.

    Sums of at most 2^16 squares in float32 are too small by less than 2^-8 of them (65536 roundings of 2^-24), and by
    less than 2^-120 where squares underflow; overflow gives infinity, which is never within.
    """
    scratch = np.empty(min(_GLANCE, values.size), np.float32)
    total = 0.0
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, values.size, _GLANCE):
            block = values[start : start + _GLANCE]
            total += float(np.square(block, out=scratch[: block.size]).sum()) * 1.01 + 2.0**-120
    return total <= max_norm * max_norm


def rounding_key(secret: bytes, header_digest: bytes) -> bytes:
    """The key of the stream for stochastic rounding, from the device's rounding secret (32 bytes, permanent; a
    simulation derives it from its seed)."""
    return derive(secret, salt=header_digest, info=DOMAIN + b"rounding")
