"""Small tensors in the exact sum: they keep their values, the same bits in any order, and change nothing of others."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.tensors import Manifest, ManifestMismatch
from client_sdk.tensors.exact_sum import ExactSum, SumOverflow, level_of, peak, rounding_of
from client_sdk.update import Update

pytestmark = pytest.mark.usefixtures("both_ways")

SIZES = (3, 0, 1, 5, 2)
ENDS = [int(end) for end in np.cumsum(SIZES)]
magnitudes = st.integers(-149, 3).map(lambda exponent: math.ldexp(1.0, exponent))


@st.composite
def vectors(draw: st.DrawFn) -> np.ndarray:
    """An update whose tensors have sizes of their own: among them zeros, large tensors beside small ones, and values of
    other levels in one tensor."""
    tensors, values = [], st.builds(math.ldexp, st.floats(-1, 1, width=32), st.sampled_from((0, 0, -30, -55)))
    for size in SIZES:
        largest = draw(st.one_of(st.just(0.0), magnitudes))
        part = st.lists(values, min_size=size, max_size=size)
        tensors.append(np.array(draw(part), np.float32) * np.float32(largest))
    return np.concatenate(tensors)


def tensors(vector: np.ndarray) -> list[np.ndarray]:
    return np.split(vector, ENDS[:-1])


def counted(vector: np.ndarray) -> list[Fraction]:
    """Its values as they count, in exact arithmetic."""
    found = []
    for tensor in tensors(vector):
        largest = float(np.abs(tensor).max(initial=0.0))
        level = 0
        while largest and largest < 2.0 ** -(24 + 26 * level) and level < 2:
            level += 1
        found += [Fraction(round(Fraction(float(x)) * 2 ** (32 + 26 * level)), 2 ** (32 + 26 * level)) for x in tensor]
    return found


def summed(updates: list[tuple[np.ndarray, int]], cuts: list[int]) -> ExactSum:
    total = ExactSum(ENDS[-1], ends=ENDS)
    for vector, weight in updates:
        total.add_blocks(in_one_buffer(np.split(vector, sorted(cuts))), weight, peak(vector))
    return total


def in_one_buffer(parts: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Blocks as a reader may give them: each one overwrites the one before."""
    buffer = np.empty(ENDS[-1], np.float32)
    for part in parts:
        buffer[: part.size] = part
        yield buffer[: part.size]


@given(st.lists(st.tuples(vectors(), st.integers(1, 10_000)), min_size=1, max_size=5), st.data())
def test_any_order_grouping_and_blocks_give_the_mean_of_what_counts(
    updates: list[tuple[np.ndarray, int]], data: st.DataObject
) -> None:
    one = summed(updates, [])
    cuts = st.lists(st.integers(0, ENDS[-1]), max_size=4)
    order = data.draw(st.permutations(updates))
    at = data.draw(st.integers(0, len(order)))
    other, rest = summed(order[:at], data.draw(cuts)), summed(order[at:], data.draw(cuts))
    other.merge(ExactSum.on(rest._lanes.copy(), json.loads(json.dumps(rest.state)), rest.ends))
    assert one.same_as(other)
    assert one.mean().tobytes() == other.mean().tobytes() == other.copy().mean().tobytes()
    assert one.mean_block(2, 7).tobytes() == one.mean()[2:7].tobytes()
    for total in (one, other):
        bound, found = total.state[3], [abs(int(x)) for totals in total._small.values() for x in totals]
        assert max(found, default=0) <= bound
    weight = sum(weight for _, weight in updates)
    rows = [counted(vector) for vector, _ in updates]
    exact = [
        sum(x * w for x, (_, w) in zip(column, updates, strict=True)) / weight for column in zip(*rows, strict=True)
    ]
    largest = [max((abs(x) for x in column), default=0) for column in zip(*rows, strict=True)]
    for found, wanted, most in zip(one.mean().tolist(), exact, largest, strict=True):
        assert abs(Fraction(found) - wanted) <= abs(wanted) * Fraction(1, 2**23) + most * Fraction(1, 2**50) + Fraction(
            1, 2**149
        )


def test_rounding_is_half_a_unit_of_the_tensors_level() -> None:
    cases = {0.0: 0.0, 1.0: 2.0**-33, 2.0**-24: 2.0**-9, 2.0**-25: 2.0**-34, 2.0**-60: 2.0**-25, 2.0**-90: 1.0}
    assert {largest: rounding_of(largest) for largest in cases} == cases


def test_a_tensor_counts_at_one_level_however_it_is_cut() -> None:
    for values in product((0.0, 1.0, 2.0**-30, -(2.0**-55)), repeat=3):
        vector = np.array([*values, 2.0**-40], np.float32)
        whole = ExactSum(4, ends=[3, 4])
        whole.add(vector, 3)
        for cuts in ([1], [2], [1, 2], [3], [1, 3]):
            total = ExactSum(4, ends=[3, 4])
            total.add_blocks(in_one_buffer(np.split(vector, cuts)), 3, peak(vector))
            assert total.same_as(whole), (values, cuts)
            assert total.mean().tobytes() == whole.mean().tobytes()


def test_sums_of_other_tensors_are_not_merged() -> None:
    total, other = ExactSum(3, ends=[1, 3]), ExactSum(3, ends=[3])
    with pytest.raises(ManifestMismatch):
        total.merge(other)


def sum_of(*values: float, weight: int = 1) -> ExactSum:
    total = ExactSum(1, ends=[1])
    for value in values:
        total.add(np.array([value], np.float32), weight)
    return total


def test_what_is_merged_or_copied_stays_as_it_was() -> None:
    tiny = 2.0**-40
    for part in (sum_of(tiny), sum_of(tiny).copy()):
        total = sum_of()
        total.merge(part)
        for one in (total, total.copy()):
            one.add(np.array([tiny], np.float32), 1)
        assert part.same_as(sum_of(tiny))
        assert total.same_as(sum_of(tiny, tiny))
        assert not total.copy().same_as(sum_of(tiny, -tiny))
    assert sum_of(tiny, -tiny).same_as(sum_of(0.0, 0.0))


def test_a_merge_or_a_copy_that_could_overflow_is_refused() -> None:
    heavy = sum_of(2.0**-24 - 2.0**-48, weight=2**28)
    for total in (heavy.copy(), ExactSum.on(heavy._lanes.copy(), heavy.state, heavy.ends)):
        total.merge(heavy)
        with pytest.raises(SumOverflow):
            total.merge(heavy)


@given(vectors())
def test_a_value_is_off_by_a_512th_of_its_tensors_largest_at_most(vector: np.ndarray) -> None:
    mean = summed([(vector, 3)], []).mean()
    for found, tensor in zip(tensors(mean), tensors(vector), strict=True):
        largest = float(np.abs(tensor).max(initial=0.0))
        assert np.abs(found.astype(np.float64) - tensor).max(initial=0.0) <= (rounding_of(largest) + 2.0**-23) * largest
        assert rounding_of(largest) <= 2.0**-9 or largest < 2.0**-76


@given(vectors())
def test_where_no_tensor_is_small_no_bit_differs(vector: np.ndarray) -> None:
    for tensor in tensors(vector):
        if tensor.size and level_of(float(np.abs(tensor).max())):
            tensor[...] = 0
    plain = ExactSum(ENDS[-1])
    plain.add(vector, 7)
    whole = summed([(vector, 7)], [])
    assert whole.totals().tobytes() == plain.totals().tobytes()
    assert whole.mean().tobytes() == plain.mean().tobytes()
    assert not whole.state[-1]


def test_a_plans_heaviest_round_fits_at_each_level() -> None:
    """A total weight of 2^28 with the largest values that are small; twice that is refused, and never wrapped."""
    for level in range(1, 3):
        value = np.nextafter(np.float32(2.0 ** -(24 + 26 * (level - 1))), np.float32(0))
        assert level_of(float(value)) == level
        total = ExactSum(1, ends=[1])
        for _ in range(2):
            total.add(np.array([value]), 2**28)
        assert total.mean().tolist() == [pytest.approx(float(value), rel=1e-6, abs=0)]
        with pytest.raises(SumOverflow):
            total.add(np.array([value]), 2**31)


def test_an_update_whose_small_tensor_does_not_fit_is_taken_not_at_all() -> None:
    total, vector = ExactSum(4, ends=[2, 4]), np.array([1, 1, 3e-8, 3e-8], np.float32)
    total.add(vector, 2**29)
    before = total.mean()
    with pytest.raises(SumOverflow):
        total.add(vector, 2**29)
    assert (total.count, total.mean().tobytes()) == (1, before.tobytes())


def test_one_tiny_tensor_beside_a_large_one_keeps_its_values_in_the_sum_of_updates() -> None:
    updates = [
        Update({"a": np.full(2, 3e-10), "b": np.array([1.0, -2.0]), "c": np.array([x])}, 5) for x in (1e-12, -3e-12)
    ]
    mean = (updates[0] + updates[1]).mean()
    assert updates[0].mean()["c"] == pytest.approx([1e-12], rel=0.01, abs=0)
    assert mean["a"] == pytest.approx([3e-10, 3e-10], rel=0.01, abs=0)
    assert mean["b"].tolist() == [1.0, -2.0]
    assert mean["c"] == pytest.approx([-1e-12], rel=0.01, abs=0)
    assert updates[0] + updates[1] == updates[1] + updates[0]
    assert updates[0] + updates[1] != updates[0] + updates[0]


def test_the_manifest_says_where_tensors_end() -> None:
    manifest = Manifest.of(
        {"a": np.zeros((2, 3), np.float32), "b": np.zeros(0, np.float32), "c": np.zeros((), np.float32)}
    )
    assert ExactSum.of(manifest).ends == [6, 6, 7]


def test_tiny_updates_take_no_more_than_four_models() -> None:
    total, parts = ExactSum(1000, ends=[*range(1, 101), 500, 1000]), np.arange(1000) % 97 + 1.0
    for power in (0, -24, -30, -49, -50, -60, -76, -90, -120, -140):
        for number in range(3):
            total.add((np.roll(parts, number) / 97 * 2.0**power).astype(np.float32), number + 1)
    assert sum(small.nbytes for small in total._small.values()) == 4 * 1000 * np.dtype(np.float32).itemsize


def test_a_tiny_value_beside_large_ones_counts_to_half_a_unit() -> None:
    together, alone = ExactSum(2, ends=[2]), ExactSum(2, ends=[1, 2])
    for total in (together, alone):
        total.add(np.array([1, 3e-10]), 5)
    assert together.mean().tolist() == [1.0, 2.0**-32]
    assert alone.mean() == pytest.approx([1.0, 3e-10], rel=2**-9)
