"""Neighbours and thresholds: the figures of the design, the bounds against slow sums, and against lots drawn."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.parameters import (
    achieved,
    at_most,
    bits_of,
    fast,
    log2_at_least,
    require_faults,
    require_threshold,
    strict,
    tail,
)

TENTH = Fraction(1, 10)


def test_strict_withstands_99_vanished_and_101_colluding_of_300() -> None:
    found = strict(300)
    assert (found.neighbours, found.holders, found.threshold, found.complete) == (299, 300, 201, True)
    gone, colluding = 99, 101
    assert 300 - gone >= found.threshold > 300 - gone - 1
    # Colluders give both shares, the honest one: both secrets need 2t of n + C.
    assert 2 * found.threshold > 300 + colluding
    assert not 2 * found.threshold > 300 + colluding + 1


def test_strict_holds_for_every_size() -> None:
    for n in range(3, 301):
        found = strict(n)
        assert 2 * found.threshold > n
        assert found.threshold <= n
        assert found.threshold == 2 * n // 3 + 1


def test_the_designs_figure_for_fast() -> None:
    """n = 300, 10 % colluding, 44 gone: k = 110, t = 71 for sigma = 80, and then no chance is left at all."""
    found = fast(300, 44, TENTH, 80)
    assert (found.neighbours, found.threshold, found.holders) == (110, 71, 110)
    assert found.sigma == 128
    assert found.eta == 41.99
    assert 2 * 71 - 110 > 30


@pytest.mark.parametrize(("n", "drop", "corrupt"), [(20, 3, "0.1"), (256, 38, "0.2"), (300, 44, "0.1"), (301, 9, "0")])
def test_no_two_lists_can_both_be_signed(n: int, drop: int, corrupt: str) -> None:
    """Two lists with ``signers`` signatures share an honest signer. On a ring all sign but those who may vanish."""
    found, colluding = fast(n, drop, Fraction(corrupt)), require_faults(n, drop, Fraction(corrupt))
    assert 2 * (found.signers - colluding) > n - colluding
    assert found.signers == (n - drop if found.neighbours < n - 1 else (n + colluding) // 2 + 1)
    assert found.signers <= n - drop
    assert strict(min(n, 300)).signers == strict(min(n, 300)).threshold


def test_the_defaults_at_300() -> None:
    found = fast(300, 44, TENTH)
    assert (found.neighbours, found.threshold, found.sigma, found.eta) == (106, 68, 41.04, 40.02)


@pytest.mark.parametrize(
    ("n", "drop", "corrupt"), [(20, 3, "0.1"), (64, 10, "0.1"), (256, 38, "0.1"), (300, 44, "0.1"), (500, 50, "0.05")]
)
def test_no_smaller_number_of_neighbours_would_do(n: int, drop: int, corrupt: str) -> None:
    """All even k and all t, slowly: the first that meets both bounds is the one found."""
    found = fast(n, drop, Fraction(corrupt), 40, 40)
    for k in range(2, found.neighbours + 1, 2):
        for threshold in range(k // 2 + 1, k + 1):
            this = achieved(n, drop, Fraction(corrupt), k, threshold)
            if this.sigma >= 40 and this.eta >= 40:
                assert (k, threshold) == (found.neighbours, found.threshold)
                return
    assert found.complete


def test_small_cohorts_fall_back_to_everybody() -> None:
    found = fast(5, 1, Fraction(0))
    assert found.complete
    assert found.holders == 5
    assert found.threshold == 3
    with pytest.raises(BadParameters, match="withstands both"):
        fast(10, 5, Fraction(1, 2))
    with pytest.raises(BadParameters, match="withstands both"):
        fast(300, 200, TENTH)


def slow_tail(total: int, marked: int, drawn: int, least: int) -> Fraction:
    terms = (math.comb(marked, i) * math.comb(total - marked, drawn - i) for i in range(max(least, 0), drawn + 1))
    return Fraction(sum(terms), math.comb(total, drawn))


@given(data=st.data(), total=st.integers(1, 40))
def test_the_tail_is_the_sum_of_its_terms(data: st.DataObject, total: int) -> None:
    marked, drawn = data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
    least = data.draw(st.integers(-1, total + 1))
    assert tail(total, marked, drawn, least) == slow_tail(total, marked, drawn, least)


@given(data=st.data(), total=st.integers(1, 400))
def test_the_quick_float_is_never_above_the_tail(data: st.DataObject, total: int) -> None:
    marked, drawn = data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
    least = data.draw(st.integers(-1, total + 1))
    exact = tail(total, marked, drawn, least)
    quick = log2_at_least(total, marked, drawn, least)
    if exact == 0:
        assert quick == -math.inf
    else:
        assert quick <= math.log2(exact.numerator) - math.log2(exact.denominator) + 1e-9


def test_a_long_tail_is_cut_off_upwards_and_late() -> None:
    """3,000 balls: the tail is as exact as the first 200 bits, and never smaller than the truth."""
    exact = slow_tail(3000, 1000, 1500, 800)
    cut = tail(3000, 1000, 1500, 800)
    assert exact <= cut <= exact * (1 + Fraction(1, 2**190))
    assert cut > exact


def test_the_tail_by_drawing_all_hands() -> None:
    hands = list(combinations(range(9), 4))
    for least in range(6):
        share = Fraction(sum(sum(ball < 3 for ball in hand) >= least for hand in hands), len(hands))
        assert tail(9, 3, 4, least) == share


@given(numerator=st.integers(1, 10**40), denominator=st.integers(1, 10**45))
def test_bits_are_rounded_down(numerator: int, denominator: int) -> None:
    chance = Fraction(numerator, denominator)
    bits = bits_of(chance)
    exact = -(math.log2(chance.numerator) - math.log2(chance.denominator))
    if exact >= 128:
        assert bits == 128
    elif exact <= 0:
        assert bits == 0
    else:
        assert exact - 0.0101 < bits <= exact + 1e-9
    assert at_most(chance, math.floor(bits)) or chance > 1


def test_bits_at_whole_numbers() -> None:
    assert bits_of(Fraction(1, 2**40)) == pytest.approx(40, abs=0.011)
    assert bits_of(Fraction(0)) == 128
    assert bits_of(Fraction(1, 2**128)) == 128
    assert bits_of(Fraction(1)) == 0
    assert at_most(Fraction(1, 2**40), 40)
    assert not at_most(Fraction(1, 2**40), 41)


def test_the_union_bound_by_hand() -> None:
    """n = 300, k = 106, t = 68: 300 * P[all 30 colluders among 106 of 299], and the same for eta."""
    found = achieved(300, 44, TENTH, 106, 68)
    leak = 300 * Fraction(math.comb(106, 30), math.comb(299, 30))
    assert found.sigma == pytest.approx(-math.log2(leak), abs=0.011)
    lost = 300 * slow_tail(299, 44, 106, 106 - 68 + 1)
    assert found.eta == pytest.approx(-math.log2(lost), abs=0.011)


def test_a_ring_that_can_fall_apart_costs_sigma() -> None:
    """k = 40 of 100 with 20 colluding and 30 gone: stretches of 20 places can be all bad."""
    liar = achieved(100, 30, Fraction(1, 5), 40, 30)
    apart = Fraction(100 * 59, 2) * slow_tail(100, 20, 40, 20)
    betrayed = 100 * slow_tail(99, 20, 40, 20)
    assert liar.sigma == pytest.approx(-math.log2(apart + betrayed), abs=0.011)


@pytest.mark.parametrize(("threshold", "holders"), [(55, 110), (50, 110), (1, 2), (111, 110), (0, 3)])
def test_thresholds_that_two_halves_could_meet_are_refused(threshold: int, holders: int) -> None:
    with pytest.raises(BadParameters):
        require_threshold(threshold, holders)
    require_threshold(56, 110)


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in (
        lambda: strict(2),
        lambda: strict(301),
        lambda: fast(300, 300, TENTH),
        lambda: fast(300, -1, TENTH),
        lambda: fast(300, 4, Fraction(1)),
        lambda: fast(300, 4, Fraction(-1, 10)),
        lambda: fast(300, 4, TENTH, 0),
        lambda: fast(300, 4, TENTH, 40, 129),
        lambda: fast(10_001, 4, TENTH),
        lambda: achieved(300, 44, TENTH, 111, 71),
        lambda: achieved(300, 44, TENTH, 300, 201),
        lambda: achieved(300, 44, TENTH, 110, 55),
    ):
        with pytest.raises(BadParameters):
            wrong()
    assert require_faults(256, 3, TENTH) == 25


@pytest.mark.parametrize(
    ("n", "drop", "corrupt", "neighbours", "threshold", "same"),
    [
        (100, 5, "0.33", 42, 37, True),
        (100, 30, "0.3", 92, 62, True),
        (100, 33, "0.05", 72, 39, True),
        (1000, 300, "0.3", 872, 584, True),
        (1000, 330, "0.05", 398, 223, True),
        (1000, 50, "0.33", 132, 109, False),
        (10_000, 500, "0.33", 178, 146, False),
    ],
)
def test_beside_the_figures_that_google_tests_with(
    n: int, drop: int, corrupt: str, neighbours: int, threshold: int, same: bool
) -> None:
    """sigma 40, eta 20, semi-malicious, as in the tests of google-parfait/federated-compute's parameter finder. Ours
    are the same, or more: there the gone are random where a ring falls apart, here the server names them."""
    found = fast(n, drop, Fraction(corrupt), 40, 20)
    if same:
        assert (found.neighbours, found.threshold) == (neighbours, threshold)
    else:
        assert neighbours < found.neighbours <= 1.1 * neighbours
        assert threshold < found.threshold <= 1.1 * threshold


def test_large_rosters_do_not_hold_a_device_up() -> None:
    """The slowest rules that a roster of 10,000 can have: tenths of a second, for a rule that a liar may choose."""
    began = time.process_time()
    found = fast(10_000, 4500, Fraction(1, 50), 128, 128)
    assert (found.neighbours, found.threshold) == (7706, 3954)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("threshold", "sigma", "eta"),
    [
        (11, 0.0, 128.0),
        (12, 128.0, 128.0),
        (16, 128.0, 128.0),
        (17, 128.0, 0.0),
    ],
)
def test_a_complete_graph_is_safe_or_not_by_counting(threshold: int, sigma: float, eta: float) -> None:
    """20 devices of which 3 collude and 4 vanish. Each colluder gives both shares, so both secrets of a device need 2t
    of 23; t of the 16 that stay are needed for the sum."""
    found = achieved(20, 4, Fraction(3, 20), 19, threshold)
    assert (found.sigma, found.eta) == (sigma, eta)
