"""The exact sum against exact rational arithmetic, in any order and grouping, at its limits, and when it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from client_sdk import exact_sum
from client_sdk.exact_sum import (
    RANGE,
    TOTAL_LIMIT,
    WEIGHT_LIMIT,
    EmptySum,
    ExactSum,
    SpoiledSum,
    SumOverflow,
    peak,
    range_for,
)
from client_sdk.tensors import ManifestMismatch, NotFinite, OutOfRange, TensorError, narrow

BLOCK = exact_sum._BLOCK
UNIT = 2.0**-32

values = st.one_of(
    st.floats(-RANGE, RANGE, width=32),
    st.floats(-1, 1, width=32),
    # around the ties of a grid of 2^-32
    st.integers(-(2**12), 2**12).map(lambda n: float(np.float32(n * 2.0**-34))),
)
weights = st.one_of(st.integers(0, 5), st.integers(0, 2**31))
parts = st.lists(st.tuples(st.lists(values, min_size=3, max_size=3), weights), min_size=1, max_size=6)


def vector(numbers: list[float]) -> np.ndarray:
    return np.array(numbers, np.float32)


def quantized(x: float) -> int:
    """x in units of 2^-32, ties to even, by exact arithmetic (round() of a Fraction is half to even)."""
    return round(Fraction(float(x)) * 2**32)


def exact_totals(updates: list[tuple[list[float], int]]) -> list[int]:
    return [
        sum(w * quantized(x) for x, w in zip(lane, [w for _, w in updates], strict=True))
        for lane in zip(*[x for x, _ in updates], strict=True)
    ]


def stated_mean(total: int, weight: int) -> np.float32:
    """float32(float64(T) * 2^-32 / W), each step rounded to nearest even."""
    return np.float32(float(total) * UNIT / float(weight))


def state(total: ExactSum) -> tuple[int, int, bytes]:
    return total.count, total.total_weight, total.totals().tobytes()


def fits(updates: list[tuple[list[float], int]]) -> bool:
    """The documented condition: sum_k w_k max|x_k|, each rounded up to the grid, stays below 2^31."""
    return sum(w * math.ceil(Fraction(max(map(abs, x))) * 2**32) for x, w in updates) <= TOTAL_LIMIT


# ---------------------------------------------------------------- the sum is exact


@given(parts)
@example([([RANGE, -RANGE, 0.0], 1)])
@example([([2.0**-33, -(2.0**-33), 3 * 2.0**-33], 1)])
@example([([1.0, -1.0, 2.0**-32], 2**31 - 1)])
def test_totals_and_mean_are_those_of_rational_arithmetic(updates: list[tuple[list[float], int]]) -> None:
    assume(fits(updates))
    total = ExactSum(3)
    for x, w in updates:
        total.add(vector(x), w)
    weight = sum(w for _, w in updates)
    assert total.totals().tolist() == exact_totals(updates)
    assert (total.count, total.total_weight) == (len(updates), weight)
    if weight:
        expected = [stated_mean(t, weight) for t in exact_totals(updates)]
        assert total.mean().tobytes() == np.array(expected, np.float32).tobytes()


@given(st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(1, 10**6)), min_size=1, max_size=8))
def test_the_mean_is_within_a_unit_and_a_rounding_of_the_true_one(updates: list[tuple[float, int]]) -> None:
    total = ExactSum(1)
    for x, w in updates:
        total.add(vector([x]), w)
    true = sum(Fraction(x) * w for x, w in updates) / sum(w for _, w in updates)
    error = abs(Fraction(float(total.mean()[0])) - true)
    assert error <= Fraction(1, 2**33) + abs(true) * Fraction(1, 2**23)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.data())
def test_any_order_any_grouping_any_blocks_give_the_same_bytes(seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    dimension = int(rng.integers(1, 3)) * BLOCK + int(rng.integers(-5, 6))
    scales = 10.0 ** rng.uniform(-9, 3, 6)
    updates = [
        (rng.standard_normal(dimension).astype(np.float32) * np.float32(s), int(rng.integers(0, 2000))) for s in scales
    ]
    updates.append((np.full(dimension, 0.1, np.float32), 1))
    straight = ExactSum(dimension)
    for x, w in updates:
        straight.add(x, w)

    groups = [ExactSum(dimension) for _ in range(3)]
    for index in rng.permutation(len(updates)):
        x, w = updates[index]
        group = groups[int(rng.integers(0, 3))]
        if rng.random() < 0.5:
            group.add(x, w)
        else:
            cuts = np.sort(rng.integers(0, dimension, 4))
            group.add_blocks(np.split(x, cuts), w, peak(x))
    first, *others = [groups[i] for i in rng.permutation(3)]
    if data.draw(st.booleans()):
        first._tighten()
    for other in others:
        first.merge(other)

    assert state(first) == state(straight)
    assert first.mean().tobytes() == straight.mean().tobytes()


def test_a_sum_over_many_blocks_equals_numpy_in_int64() -> None:
    rng = np.random.default_rng(1)
    dimension = 3 * BLOCK + 17
    updates = [(rng.normal(0, 0.02, dimension).astype(np.float32), int(w)) for w in rng.integers(1, 700, 9)]
    expected = sum(np.rint(x.astype(np.float64) * 2**32).astype(np.int64) * w for x, w in updates)
    total = ExactSum(dimension)
    for x, w in updates:
        total.add(x, w)
    np.testing.assert_array_equal(total.totals(), expected)
    np.testing.assert_array_equal(total.totals(BLOCK - 3, BLOCK + 3), expected[BLOCK - 3 : BLOCK + 3])
    whole = total.mean()
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(total.mean_block(5, BLOCK + 9), whole[5 : BLOCK + 9])


def test_the_plain_mean_by_hand() -> None:
    total = ExactSum(2)
    total.add(vector([1.0, -2.0]), 3)
    total.add(vector([5.0, 2.0]), 1)
    assert total.mean().tolist() == [2.0, -1.0]


def test_a_one_hot_mark_counts_once() -> None:
    total = ExactSum(40)
    for device in range(40):
        total.add(np.eye(40, dtype=np.float32)[device], 1)
    assert total.totals().tolist() == [2**32] * 40


def test_float16_bfloat16_and_strided_inputs_count_with_their_values() -> None:
    x = np.linspace(-2, 2, 9, dtype=np.float32)
    for given_as, exact in (
        (x.astype(np.float16), x.astype(np.float16).astype(np.float32)),
        (narrow(x, "BF16"), (x.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)),
        (np.repeat(x, 2)[::2], x),
    ):
        total, expected = ExactSum(9), ExactSum(9)
        total.add(given_as, 5)
        expected.add(exact, 5)
        assert state(total) == state(expected)


def test_a_weight_of_zero_is_counted_and_checked_but_adds_nothing() -> None:
    total = ExactSum(2)
    total.add(vector([1.0, 2.0]), 0)
    assert (total.count, total.total_weight, total.totals().tolist()) == (1, 0, [0, 0])
    with pytest.raises(NotFinite):
        total.add(vector([np.nan, 0.0]), 0)
    with pytest.raises(EmptySum, match="1 updates"):
        total.mean()
    total.add(vector([1.0, 2.0]), 1)
    assert total.mean().tolist() == [1.0, 2.0]


def test_sums_of_nothing_and_of_no_values() -> None:
    with pytest.raises(EmptySum):
        ExactSum(3).mean()
    nothing = ExactSum(0)
    nothing.add(vector([]), 2)
    assert nothing.mean().shape == (0,)
    assert nothing.count == 1
    merged = ExactSum(2)
    merged.merge(ExactSum(2))
    assert state(merged) == state(ExactSum(2))


def test_a_copy_goes_its_own_way_and_a_sum_can_join_itself() -> None:
    total = ExactSum(1)
    total.add(vector([0.5]), 3)
    twin = total.copy()
    twin.add(vector([0.5]), 1)
    assert (total.total_weight, twin.total_weight) == (3, 4)
    total.merge(total)
    assert (total.count, total.total_weight, total.totals().tolist()) == (2, 6, [6 * 2**31])


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
    x = np.ones(BLOCK, np.float32)
    total, other = ExactSum(BLOCK), ExactSum(BLOCK)
    for weight in [2**k for k in range(21, 4, -1) for _ in range(2)]:
        total.add(x, weight)
        other.add(x, weight)
    assert total._magnitude + max(map(abs, other.totals().tolist()[:1])) > TOTAL_LIMIT
    total.merge(other)
    assert total.totals(0, 1).tolist() == [4 * (2**22 - 2**5) * 2**32]


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


# ---------------------------------------------------------------- blocks


def test_blocks_equal_the_whole_vector() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal(2 * BLOCK + 10).astype(np.float32)
    whole, blocks = ExactSum(x.size), ExactSum(x.size)
    whole.add(x, 9)
    blocks.add_blocks(iter([x[:1], x[1:1], x[1 : 2 * BLOCK], x[2 * BLOCK :]]), 9, peak(x))
    assert state(whole) == state(blocks)


def test_what_is_refused_before_the_first_block_changes_nothing() -> None:
    total = ExactSum(1)
    total.add(vector([1.0]), 2**31 - 1)
    before = state(total)

    def untouched() -> Iterator[np.ndarray]:
        pytest.fail("a block was taken")
        yield vector([1.0])

    with pytest.raises(SumOverflow):
        total.add_blocks(untouched(), 1, 1.0)
    for nonsense in (math.nan, math.inf, -1.0, RANGE * 2):
        with pytest.raises(OutOfRange, match="peak"):
            total.add_blocks(untouched(), 1, nonsense)
    with pytest.raises(NotFinite):
        total.add_blocks([vector([math.nan])], 0, 1.0)
    assert state(total) == before


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        ([vector([1.0]), vector([math.nan])], NotFinite),
        ([vector([1.0]), vector([7e4])], OutOfRange),
        ([vector([1.0])], ManifestMismatch),
        ([vector([1.0]), vector([1.0, 1.0])], ManifestMismatch),
    ],
)
def test_an_update_that_breaks_off_spoils_the_sum_for_good(blocks: list[np.ndarray], error: type[TensorError]) -> None:
    total = ExactSum(2)
    with pytest.raises(error):
        total.add_blocks(blocks, 1, 1.0)
    healthy = ExactSum(2)
    for call in (
        total.mean,
        total.totals,
        total.copy,
        lambda: total.add(vector([0, 0]), 1),
        lambda: total.merge(healthy),
        lambda: healthy.merge(total),
        lambda: total.mean_block(0, 1),
        lambda: total.add_blocks([], 0, 0.0),
    ):
        with pytest.raises(SpoiledSum):
            call()
    assert healthy.count == 0


def test_a_failing_disk_spoils_the_sum_and_comes_through() -> None:
    def failing() -> Iterator[np.ndarray]:
        yield vector([1.0])
        raise OSError("read error")

    total = ExactSum(2)
    with pytest.raises(OSError, match="read error"):
        total.add_blocks(failing(), 1, 1.0)
    with pytest.raises(SpoiledSum):
        total.mean()


def test_values_above_the_announced_peak_cannot_make_a_sum_wrap() -> None:
    total = ExactSum(1)
    total.add(vector([1.0]), 2**30)
    with pytest.raises(SumOverflow):
        total.add_blocks([vector([2.0])], 2**30, 0.5)
    assert total.totals().tolist() == [2**62]


def test_peak_is_the_largest_magnitude() -> None:
    assert peak(vector([1.0, -3.0, 2.0])) == 3.0
    assert peak([vector([1.0]), vector([]), vector([-4.5])]) == 4.5
    assert peak(vector([])) == peak([]) == 0.0
    assert peak(np.array([[1.5], [-2.5]], np.float16)) == 2.5
    assert peak(np.array(-2.0, np.float32)) == 2.0


def test_memory_is_about_one_accumulator() -> None:
    import tracemalloc

    x = np.ones(1_000_000, np.float32)
    tracemalloc.start()
    try:
        total = ExactSum(x.size)
        for _ in range(3):
            total.add(x, 2)
            total.add_blocks([x], 2, 1.0)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * x.size
