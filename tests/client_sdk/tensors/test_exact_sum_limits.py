"""The exact sum at its limits: what it refuses, that nothing changes then, and that it never wraps."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from client_sdk.tensors import ManifestMismatch, NotFinite, OutOfRange, TensorError
from client_sdk.tensors.exact_sum import RANGE, TOTAL_LIMIT, WEIGHT_LIMIT, ExactSum, SumOverflow, bound, peak, range_for
from tests.client_sdk.tensors.exact_totals import BLOCK, UNIT, quantized, state, vector

pytestmark = pytest.mark.usefixtures("both_ways")

# ---------------------------------------------------------------- what it refuses, and that nothing changes then


BAD_VALUES: dict[str, tuple[float, type[TensorError]]] = {
    "NaN": (math.nan, NotFinite),
    "infinity": (math.inf, NotFinite),
    "minus infinity": (-math.inf, NotFinite),
    "too large": (65536.01, OutOfRange),
    "far too large": (-3.0e38, OutOfRange),
}


@pytest.mark.parametrize("case", BAD_VALUES)
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 4])
def test_a_bad_value_anywhere_changes_nothing(case: str, place: int) -> None:
    value, error = BAD_VALUES[case]
    rng = np.random.default_rng(2)
    good = rng.standard_normal(2 * BLOCK + 5).astype(np.float32)
    total = ExactSum(good.size)
    total.add(good, 7)
    before = state(total), total._magnitude
    bad = good.copy()
    bad[place] = value
    with pytest.raises(error):
        total.add(bad, 11)
    assert (state(total), total._magnitude) == before
    with pytest.raises(error):
        peak(bad)
    with pytest.raises(error):
        peak(np.split(bad, [3, BLOCK]))
    total.add(good, 1)
    assert total.total_weight == 8


def test_the_largest_magnitude_is_taken() -> None:
    total = ExactSum(2)
    total.add(vector([RANGE, -RANGE]), 1)
    assert total.mean().tolist() == [RANGE, -RANGE]


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_another_dimension_changes_nothing(shape: tuple[int, ...]) -> None:
    total = ExactSum(3)
    total.add(vector([1, 2, 3]), 1)
    before = state(total)
    with pytest.raises(ManifestMismatch, match="3 values"):
        total.add(np.zeros(shape, np.float32), 1)
    with pytest.raises(ManifestMismatch):
        total.merge(ExactSum(math.prod(shape) + 5))
    with pytest.raises(ManifestMismatch, match="never averaged"):
        total.add(np.zeros(3, np.int32), 1)
    assert state(total) == before


@pytest.mark.parametrize("weight", [-1, 1.0, True, "3", None, np.float32(2)])
def test_a_weight_is_a_whole_number_from_zero_up(weight: object) -> None:
    total = ExactSum(1)
    with pytest.raises(OutOfRange, match="weight"):
        total.add(vector([1.0]), weight)  # type: ignore[arg-type]
    with pytest.raises(OutOfRange, match="weight"):
        total.add_blocks([vector([1.0])], weight, 1.0)  # type: ignore[arg-type]
    assert total.count == 0


def test_numpy_integers_are_weights_too() -> None:
    total = ExactSum(1)
    for weight in (np.int32(2**30), np.uint8(255), np.int64(5)):
        total.add(vector([1.0]), weight)  # type: ignore[arg-type]
    assert (total.total_weight, type(total.total_weight)) == (2**30 + 255 + 5, int)


# ---------------------------------------------------------------- never wraps


@given(st.lists(st.tuples(st.floats(-RANGE, RANGE, width=32), st.integers(1, 2**40)), min_size=1, max_size=12))
@example([(RANGE, 32767), (1.0, 65535), (1.0, 1)])
@example([(RANGE, 32768)])
@example([(-RANGE, 32768)])
@example([(1.0, 2**31 - 1), (0.5, 2)])
@example([(1.0, 2**30), (-1.0, 2**30), (1.0, 2**30), (1.0, 2**30)])
def test_a_sum_is_exact_or_refused_never_wrapped(updates: list[tuple[float, int]]) -> None:
    total, expected, weight = ExactSum(1), 0, 0
    for x, w in updates:
        before = state(total)
        following = expected + w * quantized(x)
        try:
            total.add(vector([x]), w)
        except SumOverflow:
            assert state(total) == before
            assert abs(expected) + w * math.ceil(Fraction(abs(x)) * 2**32) > TOTAL_LIMIT
        else:
            expected, weight = following, weight + w
            assert abs(expected) <= TOTAL_LIMIT
        assert total.totals().tolist() == [expected]
        assert total.total_weight == weight


def test_the_very_last_unit_fits_and_one_more_does_not() -> None:
    total = ExactSum(1)
    total.add(vector([1.0]), 2**31 - 1)
    assert total.totals().tolist() == [2**63 - 2**32]
    total.add(vector([UNIT]), 2**32 - 1)
    assert total.totals().tolist() == [TOTAL_LIMIT]
    before = state(total)
    with pytest.raises(SumOverflow, match="range"):
        total.add(vector([UNIT]), 1)
    with pytest.raises(SumOverflow):
        total.add_blocks([vector([UNIT])], 1, UNIT)
    assert state(total) == before
    total.add(vector([0.0]), 10)
    assert total.totals().tolist() == [TOTAL_LIMIT]


def test_two_sums_that_fill_the_range_together_are_merged() -> None:
    total, other = ExactSum(1), ExactSum(1)
    total.add(vector([1.0]), 2**31 - 1)
    other.add(vector([UNIT]), 2**32 - 1)
    total.merge(other)
    assert total.totals().tolist() == [TOTAL_LIMIT]


def test_half_a_unit_more_than_fits_is_refused_too() -> None:
    total = ExactSum(1)
    total.add(vector([1.0]), 2**31 - 1)
    total.add(vector([UNIT]), 2**32 - 2)
    assert total.totals().tolist() == [TOTAL_LIMIT - 1]
    with pytest.raises(SumOverflow):
        total.add(vector([1.5 * UNIT]), 1)
    with pytest.raises(SumOverflow):
        total.add_blocks([vector([1.5 * UNIT])], 1, 1.5 * UNIT)
    total.add(vector([0.5 * UNIT]), 1)
    assert total.totals().tolist() == [TOTAL_LIMIT - 1]


def test_negative_totals_have_the_same_limit() -> None:
    total = ExactSum(1)
    total.add(vector([-1.0]), 2**31 - 1)
    total._tighten()
    for value in (-1.0, -2.0):
        with pytest.raises(SumOverflow):
            total.add(vector([value]), 1)
    assert total.totals().tolist() == [2**32 - 2**63]


def test_a_merged_sum_remembers_how_full_both_were() -> None:
    total, other = ExactSum(1), ExactSum(1)
    total.add(vector([1.0]), 2**30)
    other.add(vector([1.0]), 2**30 - 1)
    total.merge(other)
    with pytest.raises(SumOverflow):
        total.add(vector([1.0]), 1)
    assert total.totals().tolist() == [2**63 - 2**32]


def test_loose_bounds_on_both_sides_do_not_stop_a_merge() -> None:
    total, other = ExactSum(1), ExactSum(1)
    for value in (1.0, -1.0, 1.0):
        total.add(vector([value]), 2**29)
        other.add(vector([value]), 2**29)
    assert total._magnitude + max(map(abs, other.totals().tolist())) > TOTAL_LIMIT
    total.merge(other)
    assert total.totals().tolist() == [2**62]


def test_opposite_values_at_the_limit_meet_at_zero() -> None:
    total = ExactSum(2)
    total.add(vector([1.0, -1.0]), 2**31 - 1)
    other = ExactSum(2)
    other.add(vector([-1.0, 1.0]), 2**31 - 1)
    with pytest.raises(SumOverflow):
        total.merge(other)
    assert total.totals().tolist() == [2**63 - 2**32, 2**32 - 2**63]
    assert (total.count, other.count) == (1, 1)


def test_weights_beyond_exact_float64_are_refused() -> None:
    total = ExactSum(1)
    total.add(vector([0.0]), WEIGHT_LIMIT)
    with pytest.raises(SumOverflow, match="weights"):
        total.add(vector([0.0]), 1)
    assert total.total_weight == WEIGHT_LIMIT
    assert total.mean().tolist() == [0.0]
    with pytest.raises(SumOverflow):
        ExactSum(1).add(vector([0.0]), 10**40)


def test_an_overflow_in_a_late_block_is_undone() -> None:
    x = np.zeros(3 * BLOCK, np.float32)
    x[: 2 * BLOCK] = 0.5
    x[-1] = 3.0
    total = ExactSum(x.size)
    total.add(np.ones(x.size, np.float32), 2**29)
    before = state(total)
    with pytest.raises(SumOverflow):
        total.add(x, 2**29)
    assert state(total) == before


def test_the_bound_is_tightened_before_anything_is_refused() -> None:
    """The quick bound, a root of a dot product, is up to sqrt(BLOCK) too large: it alone would refuse the second."""
    x = np.full(BLOCK, 1.0, np.float32)
    total = ExactSum(BLOCK)
    total.add(x, 2**30)
    total.add(x, 2**30 - 1)
    assert total.totals(0, 1).tolist() == [2**63 - 2**32]
    with pytest.raises(SumOverflow):
        total.add(x, 1)


@given(st.integers(1, 2**31), st.integers(1, 4096))
def test_within_range_for_no_round_overflows(weight: int, parts: int) -> None:
    limit = range_for(weight, parts)
    assume(limit > 0)
    largest = np.float32(limit)
    if float(largest) > limit:
        largest = np.nextafter(largest, np.float32(0))
    total = ExactSum(1)
    total.add(np.array([largest]), weight)
    for _ in range(12):  # doubling: as many parts as fit, in few steps
        if total.count * 2 > parts:
            break
        total.merge(total)
    while total.count < min(parts, total.count + 3):
        total.add(np.array([largest]), weight)
    assert total.totals().tolist() == [total.count * weight * quantized(float(largest))]


def test_range_for_by_hand() -> None:
    assert range_for(1, 1) == RANGE
    assert range_for(32767, 1) == RANGE
    assert range_for(1000, 256) == pytest.approx(2**31 / 256_000)
    assert range_for(2**62, 4) == 0.0


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_the_cheap_bound_is_never_below_the_largest_magnitude(count: int) -> None:
    """Also where float32 rounds the squares down: a bound below the true peak would let a sum wrap unnoticed."""
    values = np.random.default_rng(5).uniform(1, 2, 3000).astype(np.float32) * np.float32(2.0**14)
    below = values[np.sqrt((values * values).astype(np.float64)) < values]
    assert below.size > 500
    for value in below[:500]:
        block = np.zeros(count, np.float32)
        block[count // 2] = -value
        assert bound([block]) >= float(value)
