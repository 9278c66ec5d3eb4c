"""The number of neighbours of a device and of shares that rebuild a secret, with the security bound that they achieve.

Every device computes the same: exact integers decide, floats only discard candidates that fail clearly. The events are
those of Bell et al. 2020 (ePrint 2020/704), bounded here for a k-regular ring of devices in random order (``graph``);
the argument follows.

Of n devices C collude with the server and D drop out. A device's secrets are shared among its k neighbours, any t of
whom rebuild one. Neighbours are a random k of the other n - 1, so the numbers of colluding and of absent neighbours are
hypergeometric. *sigma*: no secret of an honest device leaks, except with probability 2^-sigma, by these two events:

1. A device's neighbours reveal its secrets; a union bound over the n devices.
   The server is *semi-malicious* (it is honest only until the roster is fixed, then reports one peer as alive to some
   devices and as gone to others): an honest neighbour gives one share of the two, a colluding one both, so both secrets
   are rebuilt where (k - c) + 2c >= 2t, that is c >= 2t - k.
2. The remaining graph is disconnected, and the sum of one component is revealed. Honest devices that signed the
   survivor list and are at most k/2 places apart are neighbours, and each holds the other's shares: they share a mask.
   So they are disconnected only where two stretches of k/2 places each hold nothing but colluding devices and devices
   that did not sign; a union bound over the n(n - k - 1)/2 pairs of stretches. The server chooses who does not sign, at
   most D, so at least k - D of the k collude. A signer at the edge of a stretch needs t neighbours that reveal, of whom
   k/2 are in the stretch, and so does the signer at the edge of the other: at least 2t - k of the k collude as well.
   This is impossible where k > C + D. A
   device that did not sign is not a component of its own: without event 1, each such device of which anything is
   revealed shares a mask with an honest device that signed. This requires that devices reveal nothing until *signers*
   of the whole roster have signed their list: n - D, and floor((n + C) / 2) + 1 at least. Two lists cannot both have
   that many: some honest device would have signed both.

*eta*: with probability at least 1 - 2^-eta every device keeps t neighbours when D devices drop out, so that every
secret can be rebuilt; a union bound over the n devices. Errors: BadParameters.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb

from client_sdk.secagg.errors import BadParameters

STRICT_LIMIT = 300
"""Most devices of a *strict* round."""
SMALLEST = 3
LARGEST = 10_000
"""Fewest and most devices of a secure round."""

_TOO_MANY = "of {n} devices {drop} may vanish and {colluding} collude: no graph and no threshold withstands both"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """The parameters that a rule gives for one size of roster."""

    n: int
    """Devices of the roster."""
    neighbours: int
    """Devices with which a device masks: n - 1 in a complete graph, else an even number k."""
    holders: int
    """Devices that hold shares of a device's secrets: all n of a complete graph, itself included, else its k
    neighbours."""
    threshold: int
    """How many shares rebuild a secret: more than half of the number of holders."""
    signers: int
    """How many of the roster must have signed a survivor list before anything is revealed under it: so many that two
    lists cannot both have them, however the colluding devices sign, and on a ring all but those that may drop out."""
    sigma: float
    """Bits of secrecy: no secret leaks, except with probability 2^-sigma. At most 128."""
    eta: float
    """Bits of correctness: every secret can be rebuilt, except with probability 2^-eta. At most 128."""

    @property
    def complete(self) -> bool:
        """Whether the graph is complete: every device is every other's neighbour."""
        return self.neighbours == self.n - 1


def strict(n: int) -> Parameters:
    """The profile *strict*: a complete graph, t = floor(2n/3) + 1. It withstands any 2t - n - 1 colluding and any n - t
    absent devices: 101 and 99 of 300.
    """
    _require_size(n)
    if n > STRICT_LIMIT:
        raise BadParameters(f"a strict round has at most {STRICT_LIMIT} devices, not {n}")
    threshold = 2 * n // 3 + 1
    require_threshold(threshold, n)
    return Parameters(n=n, neighbours=n - 1, holders=n, threshold=threshold, signers=threshold, sigma=128.0, eta=128.0)


@lru_cache(maxsize=64)
def fast(
    n: int,
    drop: int,
    corrupt: Fraction,
    sigma: int = 40,
    eta: int = 40,
) -> Parameters:
    """The smallest even k, and for it the smallest t, that give ``sigma`` and ``eta`` bits when ``drop`` of ``n``
    devices drop out and floor(``corrupt`` * n) collude. A complete graph where no k below n - 1 does.

    At n = 300, 44 absent and 10 % colluding: k = 106, t = 68 for 40 bits each; k = 110, t = 71 for sigma = 80, where
    2t - k = 32 is above the 30 that collude: event 1 is impossible.
    """
    colluding = require_faults(n, drop, corrupt)
    for name, bits in (("sigma", sigma), ("eta", eta)):
        if not 1 <= bits <= 128:
            raise BadParameters(f"{name} is from 1 to 128 bits, not {bits}")
    if _one_list(n, colluding) > n - drop:
        raise BadParameters(_TOO_MANY.format(n=n, drop=drop, colluding=colluding))
    for k in range(2, n - 1, 2):
        if _hopeless(n, drop, colluding, k, sigma, eta):
            continue
        threshold = _largest_threshold(n, drop, k, eta)
        if threshold is None or not _secret(n, drop, colluding, k, threshold, sigma):
            continue
        threshold = _smallest_threshold(n, drop, colluding, k, threshold, sigma)
        return achieved(n, drop, corrupt, k, threshold)
    return achieved(n, drop, corrupt, n - 1, _one_list(n, colluding))


def achieved(n: int, drop: int, corrupt: Fraction, neighbours: int, threshold: int) -> Parameters:
    """The parameters with this k and t, and the bits that they achieve. BadParameters for an odd k on a ring, and for a
    t that is not above half of the number of holders and at most all of them."""
    colluding = require_faults(n, drop, corrupt)
    holders = n if neighbours == n - 1 else neighbours
    if not 2 <= neighbours <= n - 1 or (neighbours % 2 and neighbours != n - 1):
        raise BadParameters(
            f"a device has all {n - 1} others as neighbours or an even number of them, not {neighbours}"
        )
    require_threshold(threshold, holders)
    leak = _leak(n, drop, colluding, neighbours, threshold)
    lost = _lost(n, drop, neighbours, threshold)
    return Parameters(
        n=n,
        neighbours=neighbours,
        holders=holders,
        threshold=threshold,
        signers=_one_list(n, colluding) if neighbours == n - 1 else max(_one_list(n, colluding), n - drop),
        sigma=bits_of(leak),
        eta=bits_of(lost),
    )


def require_threshold(threshold: int, holders: int) -> None:
    """Raise BadParameters unless ``threshold`` is above half of the ``holders`` and at most all of them.

    At or below half, two disjoint halves of the holders could each rebuild a secret: one the device's self-mask seed,
    the other its mask key.
    """
    if threshold > holders:
        raise BadParameters(f"a threshold of {threshold} can never be met by {holders} share holders")
    if 2 * threshold <= holders:
        raise BadParameters(f"a threshold of {threshold} is not above half of the {holders} share holders")


def _one_list(n: int, colluding: int) -> int:
    """The number of signatures that no two lists can both have."""
    return (n + colluding) // 2 + 1


def require_faults(n: int, drop: int, corrupt: Fraction) -> int:
    """How many collude: floor(corrupt * n). BadParameters for numbers out of range."""
    _require_size(n)
    if not 0 <= drop < n:
        raise BadParameters(f"from 0 to {n - 1} of {n} devices may vanish, not {drop}")
    if not 0 <= corrupt < 1:
        raise BadParameters(f"the colluding fraction is from 0 to below 1, not {float(corrupt):g}")
    return corrupt.numerator * n // corrupt.denominator


def _require_size(n: int) -> None:
    if not SMALLEST <= n <= LARGEST:
        raise BadParameters(f"a secure round has from {SMALLEST} to {LARGEST} devices, not {n}")


def _largest_threshold(n: int, drop: int, k: int, eta: int) -> int | None:
    """The largest allowed t with which ``eta`` is met; None where there is none."""
    allowed = range(k // 2 + 1, k + 1)
    met = bisect_left(allowed, True, key=lambda threshold: not at_most(_lost(n, drop, k, threshold), eta))
    return allowed[met - 1] if met else None


def _smallest_threshold(n: int, drop: int, colluding: int, k: int, threshold: int, sigma: int) -> int:
    """The smallest allowed t with which ``sigma`` is met, where ``threshold`` meets it: the leak falls as t grows."""
    below = range(k // 2 + 1, threshold)
    return below.start + bisect_left(below, True, key=lambda least: _secret(n, drop, colluding, k, least, sigma))


def _hopeless(n: int, drop: int, colluding: int, k: int, sigma: int, eta: int) -> bool:
    """Whether k surely fails, by single terms of the tails in floats with half a bit of margin: this discards most k
    quickly, and none that could succeed."""
    union = math.log2(n)
    above = low = k // 2
    high = k
    while low < high:  # the largest t with which eta could be met
        middle = (low + high + 1) // 2
        if union + log2_at_least(n - 1, drop, k, k - middle + 1) <= 0.5 - eta:
            low = middle
        else:
            high = middle - 1
    betrayed = union + log2_at_least(n - 1, colluding, k, 2 * low - k)
    if low == above or betrayed > 0.5 - sigma:
        return True
    if k > colluding + drop:
        return False
    pairs = union + math.log2(n - k - 1) - 1
    return pairs + log2_at_least(n, colluding, k, max(k - drop, 2 * low - k)) > 0.5 - sigma


def _secret(n: int, drop: int, colluding: int, k: int, threshold: int, sigma: int) -> bool:
    return at_most(_leak(n, drop, colluding, k, threshold), sigma)


def _lost(n: int, drop: int, k: int, threshold: int) -> Fraction:
    """An upper bound of the probability that some device keeps fewer than t share holders."""
    if k == n - 1:
        return Fraction(int(threshold > n - drop))
    return n * tail(n - 1, drop, k, k - threshold + 1)


def _leak(n: int, drop: int, colluding: int, k: int, threshold: int) -> Fraction:
    """An upper bound of the probability that a secret, or the sum of one component, is revealed: both events, added."""
    if k == n - 1:
        return Fraction(int(2 * threshold <= n + colluding))
    betrayed = n * tail(n - 1, colluding, k, 2 * threshold - k)
    if k > colluding + drop:
        return betrayed
    pairs = Fraction(n * (n - k - 1), 2)
    return betrayed + pairs * tail(n, colluding, k, max(k - drop, 2 * threshold - k))


def colluding_of_all(n: int, groups: int, withstood: int, sigma: int) -> int:
    """How many of a roster of ``n`` may collude, so that in a random division into ``groups`` none has more than the
    ``withstood`` of them, except with probability 2^-sigma. A union bound over the groups, of which the largest is
    drawn without replacement."""
    largest = -(-n // groups)
    colluding = min(withstood, n)
    while colluding < n and at_most(groups * tail(n, colluding + 1, largest, withstood + 1), sigma):
        colluding += 1
    return colluding


# ------------------------------------------------------------ tails of the hypergeometric distribution
# In exact integers, and bits of security rounded down. Every result is a fraction of Python integers: it is the same
# on every machine, so devices can decide by it.

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
