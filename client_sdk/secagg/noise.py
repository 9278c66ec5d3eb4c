"""The discrete Gaussian over the integers, N_Z(0, sigma^2), drawn exactly: the chance of x is in proportion to
exp(-x^2 / 2 sigma^2) (Canonne, Kamath, Steinke 2020, arXiv:2004.00010, definition 1). The variance is any positive
fraction.

No draw depends on a rounded number. A normal deviate that is computed in floating point and rounded has holes by which
its input can be told (Mironov 2012, doi 10.1145/2382196.2382264).

How a value is drawn. With w a power of two, |x| = k w + j, 0 <= j < w, and

    x^2 / 2 sigma^2 = k^2 c + j (2 k w + j) / 2 sigma^2,    c = w^2 / 2 sigma^2,

so k is drawn with chances in proportion to exp(-k^2 c), j uniformly, and the pair is accepted with chance
exp(-j (2 k w + j) / 2 sigma^2); then a sign is drawn, and the pair (0, minus) is drawn again, or 0 would count twice.
w is about sigma / 16, so more than nine of ten pairs are accepted, and the chances of k are a short table. Below a
sigma of 16 w is 1, and all are.

Each choice compares a uniform number U in [0, 1) with a bound that is no fraction. The first 64 bits of U decide it but
for a chance below 2^-40: the bounds are computed with an error that is known, and where U may lie on either side, its
next bits are drawn and the bound is computed to as many digits as it takes (``decimal``, whose exp is rounded
correctly). So what is drawn depends on the key alone, on every machine.

The bits are those of the key stream of AES-256 in counter mode, which has 2^-128 of a uniform source's strength.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache, partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from client_sdk.secagg.agreement import KeyStream, derive
from client_sdk.secagg.lanes import Lanes

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK = 1 << 16
"""Values that are drawn from one key: any block can be drawn by itself."""
MOST_DEVIATION = 2.0**44
"""Above it values might not fit into 64 bits, nor their products into a float64."""
_DOUBT = 2.0**-42
"""Nearer than this to a bound that was computed in floating point a uniform number decides nothing. The bound is off by
less than 2^-49: its exponent is below 2, of four operations, and exp is right to four units in the last place."""
_WORD = 64
_WORDS = 2**_WORD
_GUIDE_BITS = 12
_BLOCK_LABEL = b"quorate noise block"


class DiscreteGaussian:
    """Draws of N_Z(0, ``variance``). ValueError for a variance that is not above 0, or a deviation above 2^44."""

    def __init__(self, variance: Fraction) -> None:
        if not 0 < variance <= Fraction(MOST_DEVIATION) ** 2:
            raise ValueError(f"a variance is above 0 and at most {MOST_DEVIATION:g}^2, not {float(variance):g}")
        self.variance = variance
        self._width = 1 << max(0, (math.isqrt(int(variance)) >> 4).bit_length() - 1)
        self._table = _Table(self._width**2 / (2 * variance))
        self._rate = float(1 / (2 * variance))

    def draw(self, key: bytes, size: int, first: int = 0) -> Integers:
        """``size`` independent draws, int64, for the places of a vector from ``first`` on, a multiple of ``BLOCK``.
        ``key``: 32 bytes, of this vector alone."""
        if first % BLOCK:
            raise ValueError(f"a part of the noise begins at a multiple of {BLOCK}, not at {first}")
        found = np.empty(size, np.int64)
        for start in range(0, size, BLOCK):
            part = found[start : start + BLOCK]
            stream = _Stream(derive(key, salt=b"", info=_BLOCK_LABEL + (first + start).to_bytes(8, "big")))
            left = np.arange(part.size)
            while left.size:
                part[left], taken = self._tried(left.size, stream)
                left = left[~taken]
        return found

    def _tried(self, size: int, stream: _Stream) -> tuple[Integers, NDArray[np.bool_]]:
        """Pairs with signs, and which of them count."""
        for_k, for_j, for_chance = (stream.words(size) for _ in range(3))
        k, j = self._table.find(for_k, stream), (for_j & np.uint64(self._width - 1)).astype(np.int64)
        magnitude, minus = k * self._width + j, for_j >> np.uint64(_WORD - 1) == 1
        taken = self._accepts(k, j, for_chance, stream) & ~(minus & (magnitude == 0))
        return np.where(minus, -magnitude, magnitude), taken

    def _accepts(self, k: Integers, j: Integers, drawn: Words, stream: _Stream) -> NDArray[np.bool_]:
        if self._width == 1:
            return np.ones(k.size, np.bool_)
        chance = np.exp(-j * (2.0 * self._width * k + j) * self._rate)
        above = chance - np.ldexp(drawn.astype(np.float64), -_WORD)
        taken: NDArray[np.bool_] = above > 0
        for place in np.flatnonzero(np.abs(above) < _DOUBT):
            of_k, of_j = int(k[place]), int(j[place])
            exponent = of_j * (2 * of_k * self._width + of_j) / (2 * self.variance)
            taken[place] = _Uniform(drawn[place], stream).is_below(partial(_exp, exponent))
        return taken


class _Stream:
    """The uniform 64-bit words of one key, in order."""

    def __init__(self, key: bytes) -> None:
        self._stream = KeyStream(8 * BLOCK)
        self._stream.start(key)

    def words(self, size: int) -> Words:
        """The next ``size``, at most ``BLOCK``."""
        whole = 8 * (size + size % 2)  # the cipher's blocks have two words
        return self._stream.take(whole).view("<u8")[:size].astype(np.uint64)


class _Uniform:
    """A number from [0, 1) of which the first bits are known, and as many as are asked for."""

    def __init__(self, word: np.uint64, stream: _Stream) -> None:
        self._known, self._bits, self._stream = int(word), _WORD, stream

    def is_below(self, bound: Callable[[int], Decimal]) -> bool:
        """Whether it is below ``bound(digits)``, which is in [0, 1] and off by less than 10^-digits."""
        while True:
            digits = 20 + self._bits // 3
            exact = Fraction(bound(digits)) * 2**self._bits
            error = Fraction(2**self._bits, 10**digits)
            if self._known + 1 <= exact - error:
                return True
            if self._known >= exact + error:
                return False
            self._known = self._known << _WORD | int(self._stream.words(1)[0])
            self._bits += _WORD


class _Table:
    """The chances of k = 0, 1, ..., in proportion to exp(-k^2 c). F(k) is that of at most k."""

    def __init__(self, c: Fraction) -> None:
        self._c = c
        # 2^64 F(k), rounded down: off by 1 at most
        bounds = [int(Fraction(one) * _WORDS) for one in _chances(c, 25)]
        self._surely = np.array([bound + 2 for bound in bounds if bound + 2 < _WORDS], np.uint64)
        self._maybe = np.array([*(max(0, bound - 1) for bound in bounds), _WORDS - 1], np.uint64)
        starts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(_WORD - _GUIDE_BITS)
        self._guide = np.append(np.searchsorted(self._surely, starts, "right"), self._surely.size)

    def find(self, drawn: Words, stream: _Stream) -> Integers:
        """The k of each uniform number, of which the first 64 bits were drawn: how many F(k) are at most the number.
        The number's first bits say it, but where a bound has the same; then a search does."""
        cells = (drawn >> np.uint64(_WORD - _GUIDE_BITS)).astype(np.intp)
        found = self._guide[cells]
        several = np.flatnonzero(found != self._guide[cells + 1])
        found[several] = np.searchsorted(self._surely, drawn[several], "right")
        for place in np.flatnonzero(self._maybe[found] <= drawn):
            uniform = _Uniform(drawn[place], stream)
            found[place] = next(k for k in count() if uniform.is_below(partial(_at_most, self._c, k)))
        return found.astype(np.int64)


@lru_cache(maxsize=8)
def _chances(c: Fraction, digits: int) -> tuple[Decimal, ...]:
    """F(0), F(1), ..., each off by less than 10^-digits; those that are left out are 1 but for less than that."""
    context, sums, least = Context(prec=digits + 10), [Decimal(0)], Decimal(10) ** -(digits + 5)
    for k in count():
        term = _exp(c * k * k, digits + 5)
        sums.append(context.add(sums[-1], term))
        if term < least:
            return tuple(context.divide(one, sums[-1]) for one in sums[1:])
    raise AssertionError


def _at_most(c: Fraction, k: int, digits: int) -> Decimal:
    """F(k), off by less than 10^-digits."""
    chances = _chances(c, digits)
    return chances[k] if k < len(chances) else Decimal(1)


def _exp(exponent: Fraction, digits: int) -> Decimal:
    """exp(-exponent), off by less than 10^-digits."""
    context = Context(prec=digits + 5)
    return context.exp(context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))


# ------------------------------------------------------------ shares
# The noise of a sum under masks, of which each device adds a share before it masks: integers of N_Z(0, sigma^2 / h),
# where h is how many honest devices are in each sum that can be opened. A sum's noise is described by its variance.

NO_NOISE = Fraction(0)
LEAST_SHARE = 9
"""Of a share's variance, in squared units of a lane. From here on a sum of shares is as private as one discrete
Gaussian of its variance: see ``privacy.accounting.rho_of_shares``."""
_TAIL = 114


def reach(spread: Fraction) -> int:
    """How far noise of this variance is from 0 at most in each of up to 2^40 lanes, but for a chance of 2^-40.

    A sum of discrete Gaussians is subgaussian (Canonne, Kamath, Steinke 2020, arXiv:2004.00010): one lane is beyond T
    with chance 2 exp(-T^2 / 2 v) at most, and 114 is above 2 ln(2 x 2^40 x 2^40)."""
    return math.isqrt(math.ceil(_TAIL * spread)) + 1 if spread else 0


def signed(lanes: Lanes, bits: int, spread: Fraction) -> Lanes:
    """The lanes of an opened sum with noise of this variance as they were before they wrapped modulo 2^bits: int64.
    Those of a sum without noise as they are."""
    if not spread:
        return lanes
    far = reach(spread)
    found: Lanes = ((lanes.astype(np.int64) + far) & ((1 << bits) - 1)) - far
    return found


def add_noise(vector: Lanes, share: Fraction, key: bytes) -> None:
    """Add a share of noise of this variance to each lane, in place; lanes wrap (``lanes.cut``). ``key``: 32 secret
    bytes, of this vector alone."""
    vector += DiscreteGaussian(share).draw(key, vector.size).astype(vector.dtype)
