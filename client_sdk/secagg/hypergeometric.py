"""Tails of the hypergeometric distribution in exact integers, and bits of security rounded down.

Every result is a fraction of Python integers: it is the same on every machine, so devices can decide by it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from math import comb

CERTAIN_BITS = 128
"""An impossible event is given as 2^-128: no claim is stronger than the ciphers."""


def tail(total: int, marked: int, drawn: int, least: int) -> Fraction:
    """P[X >= least] for X ~ Hypergeometric(total, marked, drawn): of ``total`` balls ``marked`` are black, ``drawn``
    are drawn without replacement, X of those are black.

    P[X = i] = C(marked, i) C(total - marked, drawn - i) / C(total, drawn); each term is computed exactly from the one
    before. Past the mode the terms decrease: as soon as the remaining ones are less than 2^-200 of the sum, each is
    replaced by the last term, so the result is never too small.
    """
    low = max(least, 0, drawn + marked - total)
    high = min(marked, drawn)
    if least <= max(0, drawn + marked - total):
        return Fraction(1)
    if low > high:
        return Fraction(0)
    term = comb(marked, low) * comb(total - marked, drawn - low)
    terms = term
    falling = low * (total + 2) >= (marked + 1) * (drawn + 1)
    for i in range(low, high):
        term = term * (marked - i) * (drawn - i) // ((i + 1) * (total - marked - drawn + i + 1))
        terms += term
        if falling and (term * (high - i - 1)).bit_length() + 200 < terms.bit_length():
            terms += term * (high - i - 1)
            break
    return Fraction(terms, comb(total, drawn))


def log2_at_least(total: int, marked: int, drawn: int, least: int) -> float:
    """A fast lower bound of log2 of ``tail``, as a float: log2 of the tail's largest term. 0 where the tail is 1, -inf
    where it is 0."""
    if least <= max(0, drawn + marked - total):
        return 0.0
    if least > min(marked, drawn):
        return -math.inf
    x = max(least, (marked + 1) * (drawn + 1) // (total + 2))  # the mode, where it is in the tail
    return (_log_comb(marked, x) + _log_comb(total - marked, drawn - x) - _log_comb(total, drawn)) / math.log(2)


def _log_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def at_most(chance: Fraction, bits: int) -> bool:
    """Whether ``chance`` <= 2^-bits, exactly."""
    return chance.numerator << bits <= chance.denominator


def bits_of(chance: Fraction) -> float:
    """-log2(chance), rounded down to hundredths, from 0 to ``CERTAIN_BITS``: 2^-bits is at least the chance.

    Computed in integers: floor(100 * -log2 p) is the largest m with p^100 <= 2^-m.
    """
    if at_most(chance, CERTAIN_BITS):
        return float(CERTAIN_BITS)
    if chance >= 1:
        return 0.0
    # Huge powers are expensive: first round the fraction up to 160 bits.
    upper = (chance.numerator << 320) // chance.denominator + 1
    cut = max(0, upper.bit_length() - 160)
    mantissa = (upper >> cut) + 1
    hundredths = 100 * (320 - cut) - (mantissa**100 - 1).bit_length()
    return max(0, hundredths) / 100
