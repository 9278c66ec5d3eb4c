"""What tests of the exact sum count with: values, weights, and totals in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from client_sdk.tensors import exact_sum
from client_sdk.tensors.exact_sum import RANGE, ExactSum

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


def state(total: ExactSum) -> tuple[int, int, bytes]:
    return total.count, total.total_weight, total.totals().tobytes()
