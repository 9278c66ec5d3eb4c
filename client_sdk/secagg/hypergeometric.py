"""How likely a draw without replacement holds many marked ones: exact integers, and bits rounded the safe way.

Every result is a fraction of Python integers: the same on every machine, which is why devices may decide by it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from math import comb

CERTAIN_BITS = 128
"""What cannot happen at all is given as 2^-128: nothing stronger than the ciphers is ever claimed."""


def tail(total: int, marked: int, drawn: int, least: int) -> Fraction:
    """P[X >= least] for X ~ Hypergeometric(total, marked, drawn): of ``total`` balls ``marked`` are black, ``drawn``
    are drawn without replacement, X of those are black.

    P[X = i] = C(marked, i) C(total - marked, drawn - i) / C(total, drawn); each term from the one before, exactly. Past
    the mode terms fall: once all that follow come to less than 2^-200 of the sum they are taken as large as the last,
    so the result is never too small.
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
    """A float that log2 of ``tail`` is never below, to see quickly what cannot be: that of the tail's largest term. 0
    where the tail is everything, -inf where it is nothing."""
    if least <= max(0, drawn + marked - total):
        return 0.0
    if least > min(marked, drawn):
        return -math.inf
    x = max(least, (marked + 1) * (drawn + 1) // (total + 2))  # the mode, where the tail holds it
    return (_log_comb(marked, x) + _log_comb(total - marked, drawn - x) - _log_comb(total, drawn)) / math.log(2)


def _log_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def at_most(chance: Fraction, bits: int) -> bool:
    """Whether ``chance`` <= 2^-bits, exactly."""
    return chance.numerator << bits <= chance.denominator


def bits_of(chance: Fraction) -> float:
    """-log2(chance), rounded down to hundredths, at most ``CERTAIN_BITS``, at least 0: 2^-bits is no less than the
    chance.

    By integers: floor(100 * -log2 p) is the largest m with p^100 <= 2^-m.
    """
    if at_most(chance, CERTAIN_BITS):
        return float(CERTAIN_BITS)
    if chance >= 1:
        return 0.0
    # Roots of huge powers are costly: cut the fraction to 160 bits first, upwards.
    upper = (chance.numerator << 320) // chance.denominator + 1
    cut = max(0, upper.bit_length() - 160)
    mantissa = (upper >> cut) + 1
    hundredths = 100 * (320 - cut) - (mantissa**100 - 1).bit_length()
    return max(0, hundredths) / 100
