"""Noise is the discrete Gaussian: its frequencies, its bits, and the draws that a rounded number leaves open."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk.secagg import noise
from client_sdk.secagg.noise import BLOCK, DiscreteGaussian

KEY = bytes(range(32))
DRAWS = 400_000
GOLDEN = [2385, 378, -1163, -1709, -859, 254]
"""Values of one key: a run that was recorded can be folded again for ever."""
FAR = 5.5
"""Standard deviations of a chi-square statistic: one right sampler in 10^7 is beyond."""


def require_close(observed: NDArray[np.int64], chances: NDArray[np.float64]) -> None:
    """By a chi-square test, over classes in which at least ten draws are expected."""
    wanted = chances * observed.sum()
    assert abs(wanted.sum() / observed.sum() - 1) < 1e-6
    assert wanted.min() >= 10
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = observed.size - 1
    assert statistic < freedom + FAR * math.sqrt(2 * freedom) + FAR**2, statistic


@pytest.mark.parametrize("sigma", [Fraction(1, 2), Fraction(3), Fraction(1000)], ids=str)
def test_its_frequencies(sigma: Fraction) -> None:
    drawn = DiscreteGaussian(sigma**2).draw(KEY, DRAWS)
    most = int(9 * sigma) + 2
    values = np.arange(-most, most + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * float(sigma) ** 2))
    chances = weights / weights.sum()
    counts = np.bincount(drawn + most, minlength=values.size)
    wide = max(1, int(sigma) // 20)
    edges = np.arange(0, values.size, wide)
    chances, counts = np.add.reduceat(chances, edges), np.add.reduceat(counts, edges)
    inner = np.flatnonzero(chances * DRAWS >= 10)
    chances[inner[0]], chances[inner[-1]] = chances[: inner[0] + 1].sum(), chances[inner[-1] :].sum()
    counts[inner[0]], counts[inner[-1]] = counts[: inner[0] + 1].sum(), counts[inner[-1] :].sum()
    require_close(counts[inner], chances[inner])


@pytest.mark.parametrize("sigma", [Fraction(1000), Fraction(2**32) * Fraction(73, 100), Fraction(2) ** 40], ids=float)
def test_its_lowest_bits_are_uniform(sigma: Fraction) -> None:
    """A normal deviate that was computed in floating point and rounded has holes there."""
    drawn = DiscreteGaussian(sigma**2).draw(KEY, DRAWS)
    for shift in (0, 3):
        low = np.bincount((drawn >> shift) & 15, minlength=16)
        require_close(low, np.full(16, 1 / 16))
    signs = np.bincount((drawn > 0).astype(int), minlength=2)
    require_close(signs, np.full(2, 0.5))


def test_a_wide_one_is_a_normal_one_where_it_is_coarse() -> None:
    sigma = 2.0**40
    drawn = DiscreteGaussian(Fraction(sigma) ** 2).draw(KEY, DRAWS) / sigma
    edges = np.linspace(-3.5, 3.5, 71)
    below = np.array([0.0, *(0.5 * (1 + math.erf(edge / math.sqrt(2))) for edge in edges), 1.0])
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=72)
    require_close(counts, np.diff(below))


@pytest.mark.parametrize("sigma", [Fraction(1, 2), Fraction(7, 3), Fraction(1000), Fraction(2) ** 32], ids=float)
def test_what_a_rounded_bound_leaves_open_is_decided_as_an_exact_one_does(
    sigma: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each choice by the exact way alone gives the same values: so none hangs on a machine's exp."""
    quickly = DiscreteGaussian(sigma**2).draw(KEY, 300)
    slowly = DiscreteGaussian(sigma**2)
    monkeypatch.setattr(noise, "_DOUBT", 2.0)
    slowly._table._surely = np.zeros(0, np.uint64)
    slowly._table._guide[:] = 0
    slowly._table._maybe = np.zeros(1, np.uint64)
    assert np.array_equal(slowly.draw(KEY, 300), quickly)


def test_a_number_on_a_bound_is_decided_by_its_further_bits() -> None:
    """Its first 64 bits are those of the bound, so that more are drawn: half of the numbers are below."""
    gaussian = DiscreteGaussian(Fraction(9))
    bound = int(Fraction(noise._chances(gaussian._table._c, 40)[0]) * 2**64)
    drawn = np.full(2000, bound, np.uint64)
    found = gaussian._table.find(drawn, noise._Stream(KEY))
    part = float(Fraction(noise._chances(gaussian._table._c, 60)[0]) * 2**64 - bound)
    assert set(found.tolist()) == {0, 1}
    assert abs(float((found == 0).mean()) - part) < 0.06
    last = np.full(10, 2**64 - 1, np.uint64)
    assert (gaussian._table.find(last, noise._Stream(KEY)) > 20).all()


def test_any_block_can_be_drawn_by_itself() -> None:
    gaussian = DiscreteGaussian(Fraction(10**6))
    whole = gaussian.draw(KEY, 2 * BLOCK + 77)
    assert np.array_equal(gaussian.draw(KEY, BLOCK + 77, BLOCK), whole[BLOCK:])
    assert not np.array_equal(whole[:BLOCK], whole[BLOCK : 2 * BLOCK])
    with pytest.raises(ValueError, match="begins at a multiple"):
        gaussian.draw(KEY, 5, 3)


def test_it_hangs_on_the_key_and_on_nothing_around_it() -> None:
    gaussian = DiscreteGaussian(Fraction(10**6))
    first = gaussian.draw(KEY, 1000)
    assert not np.array_equal(first, gaussian.draw(bytes(32), 1000))
    with decimal.localcontext(decimal.Context(prec=3)):
        again = DiscreteGaussian(Fraction(10**6)).draw(KEY, 1000)
    assert np.array_equal(first, again)
    assert first[:6].tolist() == GOLDEN


@pytest.mark.parametrize("variance", [Fraction(0), Fraction(-1), Fraction(2) ** 90])
def test_a_variance_that_is_none_is_refused(variance: Fraction) -> None:
    with pytest.raises(ValueError, match="a variance is above 0"):
        DiscreteGaussian(variance)
