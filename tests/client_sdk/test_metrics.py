"""Means that add up exactly."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.metrics import Tally, added, measured, pooled, undefined
from client_sdk.protocol.devices import Score

VALUES = st.floats(allow_nan=False, allow_infinity=False)
WEIGHTS = st.floats(min_value=2.0**-60, max_value=2.0**60)
NAMES = st.sampled_from("abc")
PARTS = st.lists(
    st.tuples(st.dictionaries(NAMES, VALUES), st.integers(0, 10**6), st.dictionaries(NAMES, WEIGHTS)), max_size=12
)
Parts = list[tuple[dict[str, float], int, dict[str, float]]]


@given(PARTS, st.randoms())
def test_a_total_is_the_sum_of_its_parts_in_any_order(parts: Parts, order: random.Random) -> None:
    total = Tally.total(parts)
    assert total == sum((Tally.of(*part) for part in parts), Tally())
    order.shuffle(parts)
    assert Tally.total(parts) == total
    for name, (value, weight) in total.sums.items():
        behind = [
            (Fraction(metrics[name]), Fraction(weights.get(name, examples)))
            for metrics, examples, weights in parts
            if name in metrics
        ]
        assert value == sum((one * of for one, of in behind), Fraction(0))
        assert weight == sum(of for _, of in behind)


def test_means_are_over_those_who_have_the_metric() -> None:
    total = Tally.total([({"loss": 1.0, "accuracy": 0.5}, 3, {}), ({"loss": 2.0}, 1, {}), ({"nothing": 7.0}, 0, {})])
    assert total.means() == {"accuracy": 0.5, "loss": 1.25}


def test_numbers_far_apart_are_added_exactly() -> None:
    assert Tally.total([({"x": 1e300}, 1, {}), ({"x": 1.0}, 1, {}), ({"x": -1e300}, 1, {})]).means() == {"x": 1 / 3}


@given(st.lists(st.lists(st.floats(-(2.0**60), 2.0**60), min_size=3, max_size=3), min_size=1), st.randoms())
def test_states_are_added_exactly_in_any_order(vectors: list[list[float]], order: random.Random) -> None:
    total = added(vectors)
    assert total == [float(sum(map(Fraction, column))) for column in zip(*vectors, strict=True)]
    order.shuffle(vectors)
    assert added(vectors) == total


def test_a_state_of_another_size_than_most_is_of_another_metric() -> None:
    assert added([[1.0, 2.0], [9.0], [3.0, 4.0]]) == [4.0, 6.0]


def test_scores_are_pooled_by_weights_and_by_states() -> None:
    one = Score(
        examples=2, metrics={"loss": 1.0, "f1": 0.5, "x": 1.0}, weights={"loss": 30.0}, states={"f1": [1.0, 4.0]}
    )
    other = Score(examples=6, metrics={"loss": 2.0, "f1.undefined": 1.0, "x": 3.0}, states={"f1": [2.0, 0.0]})
    whole = pooled([one, other])
    assert whole.metrics == {"loss": (30 + 12) / 36, "x": 2.5}
    assert (whole.examples, whole.states) == (8, {"f1": [3.0, 4.0]})
    assert pooled([other, one]) == whole


def test_a_score_says_weights_and_states_only_where_there_are_some() -> None:
    assert Score(examples=2, metrics={"x": 1.0}).model_dump() == {"examples": 2, "metrics": {"x": 1.0}}
    with pytest.raises(ValueError, match="at most 1024 numbers"):
        Score(examples=1, metrics={}, states={"a": [0.0] * 1000, "b": [0.0] * 25})


def test_measured_numbers_have_names_that_reports_take() -> None:
    assert measured({"a": np.float32(0.5), "auc": float("nan")}) == {"a": 0.5}
    assert len(measured({f"m{n}": 1.0 for n in range(64)})) == 64
    assert undefined("auc") == "auc.undefined"
    assert undefined("a" * 64) == "a" * 54 + ".undefined"
    for bad in ({"F1 score": 1.0}, {"": 1.0}, {"a\n": 1.0}, {"a" * 65: 1.0}, {f"m{n}": 1.0 for n in range(65)}):
        with pytest.raises(ValueError, match="metric"):
            measured(bad)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "0.5", None, 10**400])
def test_what_is_no_finite_number_is_refused(bad: object) -> None:
    for make in (lambda: Tally.total([({"loss": bad}, 2, {})]), lambda: Tally.of({"loss": bad}, 2)):  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="the metric 'loss' is"):
            make()
