"""Adaptive clipping: a round's clip follows a quantile of the norms of updates (Andrew, Thakkar, McMahan, Ramaswamy
2021, arXiv:1905.03871, algorithm 1). A device's vector has one coordinate more, the bit, which says whether its update
is within the clip, and both are one mechanism.

With C the round's clip, u the update, and the same unit of the sum for every C, the vector is

    values    kappa u / max(C, |u|)             kappa = sqrt(1 - beta^2)
    bit       beta where |u| <= C, else -beta

so its norm is at most 1. Noise of deviation z on every coordinate, the bit's too, costs what it costs without a bit,
and so does noise that is correlated over rounds. The paper's theorem 1 is the same sentence: over the clip the values
have noise z_delta = z / kappa, the bit in {-1/2, 1/2} has sigma_b = z / (2 beta), and
z_delta^-2 = (1 - beta^2) / z^2 = z^-2 - (2 sigma_b)^-2.

The sum of values, over kappa and times C, is that of clipped updates. Of n devices, the plan's goal, the part within C
is 1/2 + (noised sum of bits) / (2 beta n), and the next clip

    C' = C exp(-rate (part - quantile)),    held within [lowest, highest]

is a function of that part alone, in decimal arithmetic: the same bits on every machine.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

_ERROR = 20
"""The noise of the part within the clip is 1 / 20, where beta may be as large as that takes: see the paper's section
3.1."""
_DIGITS = 6
_CONTEXT = Context(prec=40)


def beta_of(noise: float, goal: int) -> float:
    """The length of the bit. With noise z the part within the clip is off by z / (2 beta n). At most 1/2, where values
    have 1.15 times the noise that they have without a bit."""
    return min(0.5, max(0.01, _ERROR * noise / (2 * goal)))


def kappa_of(beta: float) -> float:
    """The length that is left for the values."""
    return math.sqrt(1 - beta * beta)


def part_within(noised: int, bit: int, goal: int) -> float:
    """The part of updates within the clip, from the noised sum of bits of +-``bit``, rounded to six digits."""
    return float(round(Fraction(1, 2) + Fraction(noised, 2 * bit * goal), _DIGITS))


def next_clip(clip: float, within: float, *, quantile: float, rate: float, lowest: float, highest: float) -> float:
    """The clip of the round after one with this ``clip``, in which the part ``within`` was found."""
    by = _CONTEXT.multiply(Decimal(rate), _CONTEXT.subtract(Decimal(quantile), Decimal(within)))
    found = _CONTEXT.multiply(Decimal(clip), _CONTEXT.exp(by))
    return min(highest, max(lowest, float(f"{found:.9g}")))
