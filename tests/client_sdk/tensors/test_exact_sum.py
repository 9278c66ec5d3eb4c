"""The exact sum against exact rational arithmetic, in any order and grouping."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from client_sdk.tensors import NotFinite, narrow
from client_sdk.tensors.exact_sum import RANGE, TOTAL_LIMIT, EmptySum, ExactSum, peak
from tests.client_sdk.tensors.exact_totals import BLOCK, UNIT, parts, quantized, state, vector

pytestmark = pytest.mark.usefixtures("both_ways")


def exact_totals(updates: list[tuple[list[float], int]]) -> list[int]:
    return [
        sum(w * quantized(x) for x, w in zip(lane, [w for _, w in updates], strict=True))
        for lane in zip(*[x for x, _ in updates], strict=True)
    ]


def stated_mean(total: int, weight: int) -> np.float32:
    """float32(float64(T) * 2^-32 / W), each step rounded to nearest even."""
    return np.float32(float(total) * UNIT / float(weight))


def fits(updates: list[tuple[list[float], int]]) -> bool:
    """The documented condition: sum_k w_k max|x_k|, each rounded up to the grid, stays below 2^31."""
    return sum(w * math.ceil(Fraction(max(map(abs, x))) * 2**32) for x, w in updates) <= TOTAL_LIMIT


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
