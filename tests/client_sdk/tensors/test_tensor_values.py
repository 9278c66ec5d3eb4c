"""Tensors as numbers: rounding between dtypes, norms, clipping."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client_sdk.tensors import (
    BF16,
    ManifestMismatch,
    OutOfRange,
    dtype_name,
    l2_norm_of_blocks,
    narrow,
    pieces,
    widen,
)
from client_sdk.tensors.floats import joined

pytestmark = pytest.mark.usefixtures("both_ways")

# ---------------------------------------------------------------- rounding


def every_float16() -> np.ndarray:
    return np.arange(2**16, dtype=np.uint16).view(np.float16)


def test_widening_is_exact_for_every_float16_and_bfloat16() -> None:
    half = every_float16()
    assert widen(half).tolist()[:0x7C01] == [float(x) for x in half[:0x7C01]]
    assert np.isnan(widen(half)[np.isnan(half)]).all()
    brain = np.arange(2**16, dtype=np.uint16).view(BF16)
    expected = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    assert widen(brain).tobytes() == expected.tobytes()


def test_narrowing_gives_back_every_bfloat16_and_float16() -> None:
    brain = np.arange(2**16, dtype=np.uint16).view(BF16)
    back = narrow(widen(brain), "BF16")
    same = back.view(np.uint16) == brain.view(np.uint16)
    assert (same | np.isnan(widen(brain))).all()
    assert np.isnan(widen(back)[np.isnan(widen(brain))]).all()
    half = every_float16()
    np.testing.assert_array_equal(narrow(widen(half), "F16"), half)


def nearest_even(value: float, candidates: list[tuple[Fraction, int]]) -> int:
    """The code of the candidate nearest to ``value``; of two as near, the even code."""
    exact = Fraction(value)
    return min(candidates, key=lambda pair: (abs(pair[0] - exact), pair[1] % 2))[1]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**127), max_value=2.0**127))
def test_bfloat16_is_rounded_to_nearest_even(value: float) -> None:
    bits = int(np.float32(abs(value)).view(np.uint32)) >> 16
    candidates = [
        (Fraction(float(np.uint32(code << 16).view(np.float32))), code) for code in (bits, bits + 1) if code < 0x7F80
    ]
    expected = nearest_even(abs(value), candidates)
    got = int(narrow(np.array([value], np.float32), "BF16").view(np.uint16)[0])
    assert got & 0x7FFF == expected
    assert bool(got & 0x8000) == (math.copysign(1, value) < 0)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(1 + 2**-8, 1.0), (1 + 3 * 2**-8, 1 + 2**-6), (-1 - 2**-8, -1.0), (1 + 2**-8 + 2**-20, 1 + 2**-7)],
)
def test_a_value_half_way_between_two_bfloat16_goes_to_the_even_one(value: float, rounded: float) -> None:
    """Of ties that all go up, the mean of many updates is too large."""
    assert widen(narrow(np.array([value], np.float32), "BF16")).tolist() == [rounded]


@given(st.floats(width=32, min_value=-65519.0, max_value=65519.0))
def test_float16_is_rounded_to_nearest_even(value: float) -> None:
    got = narrow(np.array([value], np.float32), np.dtype(np.float16))
    codes = range(
        max(0, int(np.abs(got).view(np.uint16)[0]) - 1), min(0x7BFF, int(np.abs(got).view(np.uint16)[0]) + 1) + 1
    )
    candidates = [(Fraction(float(np.uint16(code).view(np.float16))), code) for code in codes]
    assert int(np.abs(got).view(np.uint16)[0]) == nearest_even(abs(value), candidates)


@pytest.mark.parametrize(("value", "dtype"), [(65520.0, "F16"), (-1e6, "F16"), (3.4e38, "BF16"), (-3.4e38, "BF16")])
def test_nothing_overflows_silently(value: float, dtype: str) -> None:
    with pytest.raises(OutOfRange, match=dtype):
        narrow(np.array([1.0, value], np.float32), dtype)
    infinity = narrow(np.array([np.inf, np.nan], np.float32), dtype)
    assert np.isinf(widen(infinity)[0])
    assert np.isnan(widen(infinity)[1])


def test_float64_to_float32_and_back() -> None:
    assert widen(np.array([0.1])).tolist() == [np.float32(0.1)]
    assert narrow(np.array([0.5], np.float32), "F64").dtype == np.float64
    with pytest.raises(OutOfRange):
        widen(np.array([1e39]))


def test_integers_are_not_averaged() -> None:
    for array in (np.zeros(2, np.int64), np.zeros(2, bool)):
        with pytest.raises(ManifestMismatch, match="never averaged"):
            widen(array)
    with pytest.raises(ManifestMismatch):
        narrow(np.zeros(2, np.float32), "I64")


def test_scalars_keep_their_shape() -> None:
    for dtype in ("F32", "F16", "BF16", "F64"):
        stored = narrow(np.array(1.5, np.float32), dtype)
        assert stored.shape == widen(stored).shape == ()
        assert dtype_name(stored.dtype) == dtype


# ---------------------------------------------------------------- norms


def l2_norm(tensors: dict[str, np.ndarray]) -> float:
    """The norm of all values, in blocks of the longest length that is taken."""
    largest = max((float(np.abs(array).max()) for array in tensors.values() if array.size), default=0.0)
    return l2_norm_of_blocks((part for array in tensors.values() for part in pieces(array)), largest)


@given(hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_the_norm_is_that_of_exact_arithmetic(values: np.ndarray) -> None:
    squares = sum((Fraction(float(x)) ** 2 for x in values), Fraction(0))
    norm = l2_norm({"w": values})
    assert abs(Fraction(norm) ** 2 - squares) <= squares * Fraction(1, 2**49)


def test_the_norm_does_not_depend_on_order_or_grouping() -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(200_000) * 10.0 ** rng.uniform(-6, 2, 200_000)).astype(np.float32)
    parts = {str(i): part for i, part in enumerate(np.split(rng.permutation(values), [3, 70_000, 70_001, 140_000]))}
    assert l2_norm({"w": values}) == l2_norm(parts) == l2_norm({"w": values[::-1]})
    assert l2_norm({"w": values}) == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), rel=1e-12)


def test_the_norm_of_nothing_is_zero() -> None:
    assert l2_norm({}) == l2_norm({"w": np.zeros(3, np.float32)}) == 0.0


def test_arrays_that_lie_one_after_another_come_as_one_view() -> None:
    flat = np.arange(10, dtype=np.float32)
    other = np.array([[20.0, 21.0]], np.float32)
    found = list(joined([flat[:3], flat[3:7].reshape(2, 2), flat[8:9], other]))
    assert [view.tolist() for view in found] == [[0, 1, 2, 3, 4, 5, 6], [8], [20, 21]]
    assert all(view.base is flat for view in found[:2]), "no copy"
    assert list(joined([])) == []


def test_a_view_of_bytes_of_another_type_comes_with_its_own_values() -> None:
    bits = np.array([1.0, -2.0], np.float32).view(np.int32).copy()
    assert [view.tolist() for view in joined([bits.view(np.float32)[:1], bits.view(np.float32)[1:]])] == [[1.0], [-2.0]]
