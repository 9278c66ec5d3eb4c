"""Epsilon is what the formulas say, what another library says, and never less than the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from client_sdk.privacy.accounting import (
    amplified_of,
    epsilon_of,
    estimate_of,
    noise_for,
    rho_for,
    rho_of,
    rho_of_shares,
)

OF_DP_ACCOUNTING = [
    # noise, participations, delta, RdpAccountant.get_epsilon, PLDAccountant.get_epsilon (dp-accounting 0.6.0)
    (0.5, 1, 1e-05, 10.7253, 9.99726),
    (0.5, 20, 1e-06, 85.2617, 81.7152),
    (0.5, 300, 1e-08, 809.4, 794.405),
    (0.5, 7, 0.001, 32.0229, 29.5677),
    (1, 1, 1e-05, 4.72843, 4.37718),
    (1, 20, 1e-06, 32.2222, 30.5789),
    (1, 300, 1e-08, 252.923, 246.337),
    (1, 7, 0.001, 12.1524, 11.0186),
    (2, 1, 1e-05, 2.16572, 1.99309),
    (2, 20, 1e-06, 13.3737, 12.5952),
    (2, 300, 1e-08, 88.4199, 85.3316),
    (2, 7, 0.001, 4.98748, 4.4523),
    (5, 1, 1e-05, 0.794315, 0.725522),
    (5, 20, 1e-06, 4.60446, 4.30584),
    (5, 300, 1e-08, 25.9888, 24.8478),
    (5, 7, 0.001, 1.65278, 1.44736),
    (20, 1, 1e-05, 0.177517, 0.160042),
    (20, 20, 1e-06, 1.01407, 0.940516),
    (20, 300, 1e-08, 5.19264, 4.92506),
    (20, 7, 0.001, 0.327723, 0.276885),
]


@pytest.mark.parametrize(("noise", "times", "delta", "by_rdp", "by_pld"), OF_DP_ACCOUNTING)
def test_it_is_that_of_the_library_by_renyi_orders_and_above_that_of_the_continuous_gaussian(
    noise: float, times: int, delta: float, by_rdp: float, by_pld: float
) -> None:
    found = epsilon_of(rho_of(noise, times), delta)
    assert by_pld < found <= by_rdp * (1 + 1e-4), "the library searches fewer orders"
    assert found > by_rdp * (1 - 4e-3)


@pytest.mark.parametrize(("noise", "times", "delta", "by_rdp", "by_pld"), OF_DP_ACCOUNTING)
def test_the_estimate_is_that_of_the_library_by_privacy_loss_distributions(
    noise: float, times: int, delta: float, by_rdp: float, by_pld: float
) -> None:
    assert estimate_of(rho_of(noise, times), delta) == pytest.approx(by_pld, rel=2e-4)
    assert estimate_of(rho_of(noise, times), delta) < epsilon_of(rho_of(noise, times), delta)


AMPLIFIED_OF_DP_ACCOUNTING = [
    # noise, chance, rounds, delta, RdpAccountant.get_epsilon of PoissonSampledDpEvent, orders 2 to 256
    (0.5, 0.01, 100, 1e-05, 10.6612),
    (0.7, 0.1, 50, 1e-05, 13.3677),
    (1, 0.001, 1000, 1e-06, 0.869708),
    (1, 0.01, 10000, 1e-06, 7.48693),
    (1, 0.1, 50, 1e-05, 6.02149),
    (1.1, 0.0256, 2000, 1e-05, 6.79341),
    (2, 0.05, 1000, 1e-07, 4.89316),
    (2, 0.5, 10, 0.001, 3.12649),
    (4, 0.01, 100000, 1e-08, 4.79084),
    (4, 0.1, 500, 1e-06, 2.84839),
    (10, 0.3, 300, 1e-06, 2.55338),
    (20, 0.9, 50, 1e-05, 1.31932),
    (20, 0.002, 1000, 1e-09, 0.0568912),
]


@pytest.mark.parametrize(("noise", "chance", "rounds", "delta", "theirs"), AMPLIFIED_OF_DP_ACCOUNTING)
def test_what_sampling_would_gain_in_a_simulation_is_what_the_library_says(
    noise: float, chance: float, rounds: int, delta: float, theirs: float
) -> None:
    found = amplified_of(noise, chance, rounds, delta)
    assert found == pytest.approx(theirs, rel=1e-5)
    assert found < amplified_of(noise, 1, rounds, delta) == epsilon_of(rho_of(noise, rounds), delta)


@pytest.mark.parametrize(
    ("noise", "chance", "rounds", "delta"),
    [(1, 0, 1, 0.1), (1, 1.1, 1, 0.1), (0, 0.5, 1, 0.1), (1, 0.5, 0, 0.1), (1, 0.5, 1, 0), (math.inf, 0.5, 1, 0.1)],
)
def test_impossible_sampling_is_refused(noise: float, chance: float, rounds: int, delta: float) -> None:
    with pytest.raises(ValueError):
        amplified_of(noise, chance, rounds, delta)


def normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("times", [1, 4, 50])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_the_exact_delta_of_a_gaussian_is_below(noise: float, times: int, delta: float) -> None:
    """The tight curve of the continuous Gaussian (Balle, Wang 2018, arXiv:1805.06530, theorem 8)."""
    epsilon, s = epsilon_of(rho_of(noise, times), delta), noise / math.sqrt(times)
    exact = normal(0.5 / s - epsilon * s) - math.exp(epsilon) * normal(-0.5 / s - epsilon * s)
    assert 0 < exact < delta


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("times", [1, 10, 1000])
def test_the_noise_for_a_target_reaches_it_and_hardly_more(epsilon: float, times: int) -> None:
    noise = noise_for(epsilon, 1e-6, times)
    assert epsilon_of(rho_of(noise, times), 1e-6) <= epsilon
    assert epsilon_of(rho_of(0.999 * noise, times), 1e-6) > epsilon


def test_at_the_ends() -> None:
    assert epsilon_of(0.0, 1e-6) == estimate_of(0.0, 1e-6) == 0
    assert 0.999e6 < estimate_of(1e6, 1e-6) < epsilon_of(1e6, 1e-6)
    assert epsilon_of(math.inf, 1e-6) == math.inf
    assert epsilon_of(1e-30, 1e-6) < 1e-9
    assert epsilon_of(1e6, 1e-6) > 1e6
    for delta in (0.0, 1.0, -1.0, 2.0, math.nan):
        with pytest.raises(ValueError, match="a delta is above 0 and below 1"):
            epsilon_of(1.0, delta)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="an epsilon is a number above 0"):
            rho_for(epsilon, 1e-6)
    with pytest.raises(ValueError, match="rho is a number from 0 up"):
        epsilon_of(-1.0, 1e-6)


def divergence(sigma: float, shares: int, shift: int, order: float) -> float:
    """The Renyi divergence of a sum of discrete Gaussians from itself, moved by a whole number: by its convolution.
    Terms are left out where the sum's chance is below e^-600: they would make it larger by less than a float shows."""
    far = math.ceil(40 * sigma) + 40
    x = np.arange(-far, far + 1, dtype=np.longdouble)
    one = np.exp(-(x**2) / (2 * np.longdouble(sigma) ** 2))
    one, found = one / one.sum(), np.ones(1, np.longdouble)
    for _ in range(shares):
        found = np.convolve(found, one)
    p, q = found[shift:], found[: found.size - shift]
    known = (p > np.exp(np.longdouble(-600))) & (q > np.exp(np.longdouble(-600)))
    total = np.exp(order * np.log(p[known]) + (1 - order) * np.log(q[known])).sum()
    return float(np.log(total) / (order - 1))


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.8, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("shares", [1, 2, 3, 7])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_the_sum_of_discrete_gaussians_costs_no_more_than_the_theorem_says(
    sigma: float, shares: int, shift: int
) -> None:
    """For vectors of one value, and of many: divergences of independent values add up."""
    orders = (1.0001, 1.2, 1.5, 2, 3, 5, 10, 30)
    found = {order: divergence(sigma, shares, shift, order) for order in orders}
    for values, moved in ((1, 1), (100, 1), (9, 9)):
        bound = rho_of_shares(math.sqrt(moved) * shift, sigma**2, shares, values)
        assert all(moved * found[order] <= order * bound * (1 + 1e-9) for order in orders)
    plain = shift**2 / (2 * shares * sigma**2)
    if sigma >= 3 or shares == 1:
        assert rho_of_shares(shift, sigma**2, shares, 10**6) == pytest.approx(plain, rel=1e-12)
        assert found[2] == pytest.approx(2 * plain, rel=0.02)


def test_small_shares_cost_more_than_one_discrete_gaussian() -> None:
    """As their sum really does: the term is no ornament."""
    plain = rho_of_shares(1.0, 0.5, 1, 1)
    assert plain == pytest.approx(rho_of(math.sqrt(0.5), 1))
    assert 1.1 * plain < divergence(0.5, 2, 1, 1.0001) < rho_of_shares(1.0, 0.25, 2, 1)
    with pytest.raises(ValueError, match="for variances from 1/4 up"):
        rho_of_shares(1.0, 0.2, 2, 1)
