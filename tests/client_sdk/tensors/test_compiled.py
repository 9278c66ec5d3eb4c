"""The compiled loops give the bits of NumPy: any values, weights, lengths and places in memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.conftest
from client_sdk.codecs.linear_map import transform
from client_sdk.tensors import compiled, floats
from client_sdk.tensors.compiled import Loops
from client_sdk.tensors.exact_sum import BOUND_OVER_PEAK, RANGE, TOTAL_LIMIT, ExactSum, bound, peak
from client_sdk.tensors.manifest import TensorError
from tests.client_sdk.tensors.conftest import loops_in
from tests.client_sdk.tensors.exact_totals import BLOCK

PLACES = {
    "plain": np.copy,
    "misaligned": lambda x: np.frombuffer(b"-" + x.tobytes(), np.float32, x.size, 1),
    "every third": lambda x: np.repeat(x, 3)[::3],
    "from the end": lambda x: x[::-1].copy()[::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32),
}
lengths = st.one_of(st.integers(0, 70), st.integers(1000, 1050), st.sampled_from([2048, 5000, BLOCK - 1, BLOCK + 3]))
scales = st.sampled_from([2.0**-149, 2.0**-126, 2.0**-80, 2.0**-34, 2.0**-24, 1e-3, 1.0, 1e4, 7e4, 1e20, 3e38])
weights = st.one_of(st.integers(0, 3), st.integers(0, 2**53))


@st.composite
def vectors(draw: st.DrawFn) -> np.ndarray:
    """Values around a scale, some of them anything that 32 bits can be: denormal, infinite, NaN."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    with np.errstate(over="ignore"):
        values = (rng.standard_normal(draw(lengths)) * draw(scales)).astype(np.float32)
    if values.size:
        for bits in draw(st.lists(st.integers(0, 2**32 - 1), max_size=2)):
            values[int(rng.integers(values.size))] = np.uint32(bits).view(np.float32)
    return draw(st.sampled_from(list(PLACES.values())))(values)


def by_each(loops: Loops, call: Callable[[], object]) -> list[object]:
    """What it returns, or the error that it raises, by compiled loops and by NumPy."""
    found: list[object] = []
    for chosen in (loops, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "loops", chosen)
            try:
                found.append(call())
            except TensorError as error:
                found.append((type(error), str(error)))
    return found


@np.errstate(all="ignore")
@given(vectors(), weights, st.booleans())
def test_a_sum_has_the_same_bits_or_refuses_with_the_same_words(
    loops: Loops, values: np.ndarray, weight: int, tensors: bool
) -> None:
    """The sum holds something already, which stays where an update is refused."""
    ends = sorted({values.size // 3, values.size}) if tensors else ()
    before = (np.arange(values.size) % 7 - 3).astype(np.float32)

    def summed() -> object:
        total = ExactSum(values.size, ends=ends)
        total.add(before, 2**27)
        refused: object = None
        try:
            total.add(values, weight)
        except TensorError as error:
            refused = type(error), str(error)
        small = {key: totals.tobytes() for key, totals in total._small.items() if totals.any()}
        return refused, total.count, total.total_weight, total.totals().tobytes(), small

    one, other = by_each(loops, summed)
    assert one == other


@np.errstate(all="ignore")
@given(vectors())
def test_a_peak_is_the_same_and_a_bound_of_it_is_not_far_above(loops: Loops, values: np.ndarray) -> None:
    one, other = by_each(loops, lambda: peak(values))
    assert one == other
    tight, loose = by_each(loops, lambda: bound([values]))
    assert isinstance(tight, float)
    assert isinstance(loose, float)
    if isinstance(one, float):
        assert tight == one
        if one > 2.0**-60:
            assert one <= loose
            assert loose <= one * BOUND_OVER_PEAK or loose == math.inf
    else:
        assert tight == loose == math.inf


@settings(max_examples=60)
@given(vectors())
def test_a_norm_has_the_same_bits(loops: Loops, values: np.ndarray) -> None:
    values = np.nan_to_num(values)
    largest = float(np.abs(values).max(initial=0.0))
    one, other = by_each(loops, lambda: floats.l2_norm_of_blocks(floats.pieces(values), largest))
    assert one == other


@pytest.mark.parametrize("place", [0, 1023, 1024, 4999])
@pytest.mark.parametrize("bad", [math.nan, -math.inf, 65537.0])
def test_not_one_value_of_a_refused_vector_is_in_the_lanes(loops: Loops, place: int, bad: float) -> None:
    values = np.linspace(-1, 1, 5000, dtype=np.float32)
    lanes = np.arange(5000, dtype=np.int64) * TOTAL_LIMIT
    before = lanes.tobytes()
    values[place] = bad
    largest = loops.fold(lanes, values, 12345, RANGE)
    assert not largest <= RANGE
    assert lanes.tobytes() == before


def test_a_library_of_another_source_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loops: Loops
) -> None:
    source = tmp_path / "compiled.c"
    source.write_text("int other;")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert compiled.library().name == f"compiled-{hashlib.sha256(b'int other;').hexdigest()[:16]}.so"
    assert compiled._load() is None
    compiled.library().write_bytes(b"no library of any machine")
    assert compiled._load() is None


@pytest.mark.parametrize("exponent", range(17))
def test_a_rotation_has_the_same_bits_and_undoes_itself(loops: Loops, exponent: int) -> None:
    values = np.random.default_rng(exponent).standard_normal(1 << exponent).astype(np.float32)
    room = np.full(values.size + 2, 7, np.float32)

    def rotated(times: int) -> bytes:
        room[1:-1] = values
        for _ in range(times):
            transform(room[1:-1], np.empty_like(values))
        assert room[0] == room[-1] == 7
        return room.tobytes()

    assert len(set(by_each(loops, lambda: rotated(1)))) == 1
    assert len(set(by_each(loops, lambda: rotated(2)))) == 1
    np.testing.assert_allclose(room[1:-1], values, atol=1e-5)


@pytest.mark.parametrize(("in_ci", "outcome"), [(True, pytest.fail.Exception), (False, pytest.skip.Exception)])
def test_without_a_compiler_these_tests_fail_in_ci_and_say_why(
    in_ci: bool, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler-anywhere")
    monkeypatch.setattr(tests.conftest, "IN_CI", in_ci)
    with pytest.raises(outcome, match=r"no C compiler here: .*no-such-compiler-anywhere"):
        loops_in(tmp_path)
