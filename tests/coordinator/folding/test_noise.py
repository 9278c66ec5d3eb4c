"""An update's norm in the integers of a private sum is at most the clip; and no two sums have the same noise."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from client_sdk.tensors import Layout, Manifest, TensorError
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.engine.plan import Plan
from coordinator.folding import validation
from coordinator.folding.noise import Noise, RoundSeed
from coordinator.folding.validation import Bounds, measure_blocks

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-65536, max_value=65536)


def plan(clip: float = 1.0, noise: float = 1.0, goal: int = 4, **privacy: Any) -> Plan:
    body: dict[str, Any] = {
        "name": "private",
        "task": {"learner": "a:b"},
        "cohort": {"select": goal, "goal": goal, "most_rounds": 3},
        "aggregation": {"weighting": "equal"},
        "privacy": {"clip": clip, "noise": noise, "delta": 1e-6, **privacy},
    }
    return Plan.parse(body)


def layout_of(values: int) -> Layout:
    half = values // 2
    tensors = {"a": np.zeros(half, np.float32), "b": np.zeros(values - half, np.float32)}
    return Layout.of(Manifest.of(tensors), ("*",), {})


def counted(values: np.ndarray[Any, np.dtype[np.float32]], clip: float, goal: int = 4) -> ExactSum:
    """The sum of this one update, as a coordinator and a simulation add it."""
    private, layout = plan(clip, goal=goal), layout_of(values.size)
    bounds = Bounds.of(private, layout)
    measures = measure_blocks(lambda: (values,), private, bounds)
    total = ExactSum.of(layout.whole)
    total.add_blocks(bounds.applied((values,), measures.scale), 1, measures.peak)
    return total


ADAPT = {"lowest": 1e-6, "highest": 65536.0}


def counted_at(values: np.ndarray[Any, np.dtype[np.float32]], clip: float, now: float, noise: float = 1.0) -> ExactSum:
    """The same in a round whose clip has come to ``now``: the last value is the bit."""
    private, layout = plan(clip, noise, adapt=ADAPT), layout_of(values.size)
    bounds = Bounds.of(private, layout)
    measures = bounds.at(measure_blocks(lambda: (values,), private, bounds), now)
    total = ExactSum.of(layout.whole, more=bounds.bits)
    total.add_blocks(bounds.applied((values,), measures.scale, measures.bit), 1, measures.peak)
    return total


def norm_squared(total: ExactSum) -> int:
    return sum(int(value) ** 2 for value in total.whole_totals())


@given(
    values=arrays(np.float32, st.integers(1, 40), elements=FLOATS),
    clip=st.floats(2.0**-20, 60000.0),
    small=st.sampled_from([1.0, 1e-6, 1e-12, 1e-30]),
)
def test_the_integer_norm_is_at_most_the_clip(values: Any, clip: float, small: float) -> None:
    values = (values * np.float32(small)).astype(np.float32)
    total = counted(values, clip)
    assert norm_squared(total) <= Fraction(clip) ** 2 * 2**64
    exact = [Fraction(float(value)) * 2**32 for value in values]
    if sum(value * value for value in exact) <= (Fraction(clip) * 2**32) ** 2 * Fraction(99, 100):
        assert total.whole_totals().tolist() == [math.trunc(value) for value in exact], "rounded towards zero"


@given(
    values=arrays(np.float32, st.integers(1, 40), elements=FLOATS),
    clip=st.floats(2.0**-10, 60000.0),
    now=st.floats(1e-6, 65536.0),
    small=st.sampled_from([1.0, 1e-6, 1e-12, 1e-30]),
    noise=st.sampled_from([1e-3, 0.1, 1.0]),
)
def test_the_integer_norm_of_values_and_bit_is_at_most_the_plans_clip_whatever_the_rounds(
    values: Any, clip: float, now: float, small: float, noise: float
) -> None:
    values = (values * np.float32(small)).astype(np.float32)
    total = counted_at(values, clip, now, noise)
    assert norm_squared(total) <= Fraction(clip) ** 2 * 2**64
    exact = sum(Fraction(float(value)) ** 2 for value in values)
    if abs(exact - Fraction(now) ** 2) > Fraction(now) ** 2 / 10**6:
        assert (int(total.whole_totals()[-1]) > 0) == (exact < Fraction(now) ** 2)


def test_values_and_bit_use_the_norm_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a seeded bug: values that leave no room for the bit."""
    values = np.random.default_rng(1).standard_normal(1 << 12).astype(np.float32)
    least = (Fraction(99, 100) * 2**32) ** 2
    assert least < norm_squared(counted_at(values, 1.0, 0.3)) <= 2**64
    monkeypatch.setattr(validation, "kappa_of", lambda beta: 1.0)
    assert norm_squared(counted_at(values, 1.0, 0.3)) > 2**64


def test_many_values_at_the_clip_keep_to_it() -> None:
    """What rounding to nearest would add to each of a million values is more than the room under the bound."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal(1 << 20).astype(np.float32)
    assert norm_squared(counted(values, 0.001)) <= (Fraction(0.001) * 2**32) ** 2
    assert norm_squared(counted(values, 0.001)) > (Fraction(0.00099) * 2**32) ** 2, "and it is used"


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e20])
def test_what_is_no_update_is_refused(value: float) -> None:
    with pytest.raises(TensorError):
        counted(np.array([1.0, value], np.float32), 1.0)


SEED = RoundSeed("r", 3, bytes(range(32)))


def noise_of(total: ExactSum, seed: RoundSeed = SEED, parent: str = "ab" * 32, goal: int = 4) -> list[int]:
    private = plan(noise=5.0, goal=goal)
    assert private.privacy is not None
    mean = Noise(private, private.privacy).mean(total, seed, parent)[0].read(0, total.dimension)
    return [round(float(value) * goal * 2**32) for value in (mean - total.whole_totals() / (goal * 2**32))]


def some_sum(first: float = 0.25) -> ExactSum:
    return counted(np.array([first, *[0.0] * 31], np.float32), 1.0)


def test_the_same_sum_has_the_same_noise_and_every_other_one_another() -> None:
    noise = noise_of(some_sum())
    assert noise_of(some_sum()) == noise
    spread = float(np.std(np.array(noise, float))) / 2**32
    assert 2.5 < spread < 10, "five times the clip"
    others = [
        noise_of(some_sum(0.25 + 2**-25)),
        noise_of(some_sum(), RoundSeed("r", 4, SEED.seed)),
        noise_of(some_sum(), RoundSeed("s", 3, SEED.seed)),
        noise_of(some_sum(), RoundSeed("r", 3, bytes(32))),
        noise_of(some_sum(), parent="cd" * 32),
    ]
    for other in others:
        alike = np.corrcoef(np.array(noise, float), np.array(other, float))[0, 1]
        assert abs(alike) < 0.75


def test_the_sum_is_over_the_goal_whoever_reported() -> None:
    """Else the number of those who did would tell of each."""
    total = some_sum()
    quiet = plan(noise=1e-9, goal=10)
    assert quiet.privacy is not None
    assert Noise(quiet, quiet.privacy).mean(total, SEED, "ab" * 32)[0].read(0, 1)[0] == pytest.approx(0.025, rel=1e-6)


def test_a_seed_is_not_shown() -> None:
    assert SEED.seed.hex() not in repr(SEED)
    assert hashlib.sha256(SEED.key("p", b"s")).hexdigest() != hashlib.sha256(SEED.key("p", b"t")).hexdigest()
