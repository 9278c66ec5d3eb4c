"""The exact sum of updates that come in blocks, also of those that break off."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from client_sdk.tensors import ManifestMismatch, NotFinite, OutOfRange, TensorError
from client_sdk.tensors.exact_sum import RANGE, ExactSum, SpoiledSum, SumOverflow, peak
from tests.client_sdk.tensors.exact_totals import BLOCK, state, vector

pytestmark = pytest.mark.usefixtures("both_ways")


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
