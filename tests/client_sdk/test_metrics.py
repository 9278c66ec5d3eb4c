"""Means that add up exactly."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.metrics import Tally

VALUES = st.floats(allow_nan=False, allow_infinity=False)
PARTS = st.lists(st.tuples(st.dictionaries(st.sampled_from("abc"), VALUES), st.integers(0, 10**6)), max_size=12)


@given(PARTS, st.randoms())
def test_a_total_is_the_sum_of_its_parts_in_any_order(
    parts: list[tuple[dict[str, float], int]], order: random.Random
) -> None:
    total = Tally.total(parts)
    assert total == sum((Tally.of(metrics, examples) for metrics, examples in parts), Tally())
    order.shuffle(parts)
    assert Tally.total(parts) == total
    for name, (value, examples) in total.sums.items():
        behind = [(metrics[name], weight) for metrics, weight in parts if name in metrics]
        assert value == sum((Fraction(one) * weight for one, weight in behind), Fraction(0))
        assert examples == sum(weight for _, weight in behind)


def test_means_are_over_those_who_have_the_metric() -> None:
    total = Tally.total([({"loss": 1.0, "accuracy": 0.5}, 3), ({"loss": 2.0}, 1), ({"nothing": 7.0}, 0)])
    assert total.means() == {"accuracy": 0.5, "loss": 1.25}


def test_numbers_far_apart_are_added_exactly() -> None:
    assert Tally.total([({"x": 1e300}, 1), ({"x": 1.0}, 1), ({"x": -1e300}, 1)]).means() == {"x": 1 / 3}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "0.5", None, 10**400])
def test_what_is_no_finite_number_is_refused(bad: object) -> None:
    for make in (lambda: Tally.total([({"loss": bad}, 2)]), lambda: Tally.of({"loss": bad}, 2)):  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="the metric 'loss' is"):
            make()
