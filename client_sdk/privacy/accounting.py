"""How much noise is worth: zero-concentrated differential privacy (zCDP), and epsilon at a delta.

A release of a vector of integers with discrete Gaussian noise of deviation sigma, to which one device adds a vector of
L2 norm at most C, is rho-zCDP with rho = C^2 / 2 sigma^2, whatever the vector's length (Canonne, Kamath, Steinke 2020,
arXiv:2004.00010, theorem 14). Releases compose by the sum of their rho, also where each is chosen after the one before
(Bun, Steinke 2016, arXiv:1605.02065, lemma 7). With a *noise multiplier* z = sigma / C, one participation costs
1 / 2 z^2.

The unit is a device, and adjacency is zero-out: one device's updates are replaced by zeros, and its places in rounds
stay. Nothing here counts on chance in who takes part, but for ``amplified_of``.
"""

from __future__ import annotations

import math
from functools import lru_cache

from client_sdk.secagg.noise import LEAST_SHARE
from client_sdk.secagg.parameters import LARGEST

_STEPS = 200
"""Of a search that halves, or thirds, what is left."""
_ORDERS = 256
_ABOVE = 1 + 2.0**-40
"""What is searched for is given a little on the safe side."""


def rho_of(noise: float, participations: float) -> float:
    """The rho of a device that takes part so often, under a noise multiplier above 0. Of correlated noise it is the
    squared sensitivity in place of a number of participations, here and in ``noise_for``."""
    return participations / (2 * noise * noise)


def rho_of_shares(norm: float, share: float, shares: int, values: int) -> float:
    """The rho of a release of so many integers with the sum of ``shares`` independent discrete Gaussians in each, of
    the variance ``share``, to which one device adds a vector of L2 norm at most ``norm``.

    Such a sum is no discrete Gaussian, and nearly one. With n shares of deviation s >= 1/2 in each of d values, and

        tau = 10 sum_{k = 1}^{n - 1} exp(-2 pi^2 s^2 k / (k + 1)),

    the Renyi divergence of every order a >= 1 is at most a eps^2 / 2 for eps = norm / (sqrt(n) s) + tau sqrt(d), and at
    most a norm^2 / 2 n s^2 + tau d (Kairouz, Liu, Steinke 2021, arXiv:2102.06387, proposition 14, which its theorem 1
    is made of). The latter is at most a eps^2 / 2 for eps^2 = norm^2 / n s^2 + 2 tau d, since a >= 1."""
    if share < 0.25:
        raise ValueError(f"the sum of discrete Gaussians is bounded for variances from 1/4 up, not {share:g}")
    tau = 10 * sum(math.exp(-2 * math.pi**2 * share * k / (k + 1)) for k in range(1, shares))
    alone = norm / math.sqrt(shares * share)
    epsilon = min(math.sqrt(alone**2 + 2 * tau * values), alone + tau * math.sqrt(values))
    return epsilon**2 / 2


@lru_cache(maxsize=1024)
def epsilon_of(rho: float, delta: float) -> float:
    """The least epsilon that is known of rho-zCDP at ``delta``: the minimum, over orders a > 1, of

        rho a + log(1 - 1/a) - log(delta a) / (a - 1)

    (Canonne, Kamath, Steinke 2020, proposition 12), at least 0. Each order gives a bound that holds, so a search that
    ends early gives a larger one."""
    _require_delta(delta)
    if rho < 0 or math.isnan(rho):
        raise ValueError(f"rho is a number from 0 up, not {rho}")
    if math.isinf(rho):
        return math.inf

    def bound(exponent: float) -> float:
        order = 1 + math.exp(exponent)
        return rho * order + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    low, high = -20.0, 40.0
    for _ in range(_STEPS):
        third = (high - low) / 3
        low, high = (low, high - third) if bound(low + third) <= bound(high - third) else (low + third, high)
    return max(0.0, bound((low + high) / 2)) if rho else 0.0


@lru_cache(maxsize=1024)
def estimate_of(rho: float, delta: float) -> float:
    """The exact epsilon at ``delta`` of continuous Gaussian noise of this rho (Balle, Wang 2018, arXiv:1805.06530,
    theorem 8): what other tools show. It is no proven bound for discrete noise, which is nearly as good."""
    _require_delta(delta)
    mu = math.sqrt(2 * rho)

    def lost(epsilon: float) -> float:
        below, above = (0.5 * math.erfc((epsilon / mu + part) / math.sqrt(2)) for part in (-mu / 2, mu / 2))
        return below - (math.exp(epsilon + math.log(above)) if above else 0.0)

    low, high = 0.0, epsilon_of(rho, delta)
    for _ in range(_STEPS if rho else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if lost(middle) <= delta else (middle, high)
    return high


@lru_cache(maxsize=256)
def amplified_of(noise: float, chance: float, rounds: int, delta: float) -> float:
    """The epsilon at ``delta`` of so many rounds, each of which takes a device with this chance, whatever it took
    before, while nobody sees whom (Poisson sampling), with continuous Gaussian noise. It follows from the Renyi
    divergences of the integer orders a from 2 to 256,

        log(sum_{k = 0}^{a} binomial(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / 2 z^2)) / (a - 1)

    (Mironov, Talwar, Zhang 2019, arXiv:1908.10530, section 3.3). So it can be of a simulation alone, where it is what
    other tools show: devices check in when they like, and who took part is public."""
    _require_delta(delta)
    if not 0 < chance <= 1 or not 0 < noise < math.inf or rounds < 1:
        raise ValueError(
            f"a chance is above 0 and at most 1, noise above 0, rounds from 1 up, not {chance}, {noise}, {rounds}"
        )
    if chance == 1:
        return epsilon_of(rho_of(noise, rounds), delta)
    found = math.inf
    for order in range(2, _ORDERS + 1):
        logs = [
            math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
            + (order - k) * math.log1p(-chance) + k * math.log(chance) + (k * k - k) / (2 * noise * noise)
            for k in range(order + 1)
        ]  # fmt: skip
        most = max(logs)
        divergence = (most + math.log(sum(math.exp(log - most) for log in logs))) / (order - 1)
        found = min(found, rounds * divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return max(0.0, found)


@lru_cache(maxsize=1024)
def rho_for(epsilon: float, delta: float) -> float:
    """The largest rho that is at most ``epsilon`` at ``delta``."""
    _require_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"an epsilon is a number above 0, not {epsilon}")
    low, high = -100.0, math.log(epsilon)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(math.exp(middle), delta) <= epsilon else (low, middle)
    return math.exp(low)


def noise_for(epsilon: float, delta: float, participations: float) -> float:
    """The least noise multiplier with which a device that takes part so often stays within ``epsilon`` at ``delta``,
    rounded up to 24 bits: other machines have other last bits of logarithms, and a run has one noise."""
    fraction, exponent = math.frexp(math.sqrt(participations / (2 * rho_for(epsilon, delta))) * _ABOVE)
    return math.ldexp(math.ceil(fraction * 2**24), exponent - 24)


def _require_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"a delta is above 0 and below 1, not {delta}")


# ------------------------------------------------------------ rounds under masks
# What a round costs a device, by what the device itself has checked.


_VALUES = 1 << 40


@lru_cache(maxsize=64)
def rho_under_masks(noise: float) -> float:
    """The rho that a masked vector costs its device under a header with this ``noise``, whatever becomes of the
    attempt: that of the one sum of its group that can be opened. Infinite where sums have no noise.

    It is the same for every roster that a device accepts, and up to 2^40 values. The sum has sigma^2 = noise^2 norm^2
    at least, in shares of a variance of ``LEAST_SHARE`` or more; the fewer and the larger the shares are, the more it
    is like one discrete Gaussian."""
    if not noise:
        return math.inf
    norm = math.sqrt(LEAST_SHARE * LARGEST) / noise
    return rho_of_shares(norm, LEAST_SHARE, LARGEST, _VALUES)
