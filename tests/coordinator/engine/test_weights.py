"""What one update weighs: whole numbers, capped, the same for the same work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engine.aggregation.section import (
    MOST_WEIGHT,
    PARTS,
    UNIT,
    Aggregation,
    heaviest,
    is_capped,
    times_of,
    unit_of,
    weight_of,
)
from coordinator.engine.plan import Plan


def weigh(examples: int, steps: int = 4, complete: bool = True, *, planned: int = 4, **rule: Any) -> int:
    """With a goal of one device, in parts of an example."""
    aggregation = Aggregation(**rule)
    return weight_of(
        aggregation,
        unit_of(aggregation, 1),
        examples=examples,
        steps=steps,
        steps_planned=planned,
        complete=complete,
    )


def test_whole_work_weighs_its_examples_up_to_the_cap() -> None:
    assert [weigh(n, weight_cap=100) for n in (1, 99, 100, 101, 10**9)] == [1, 99, 100, 100, 100]


def test_an_update_is_capped_above_the_cap_and_not_at_it() -> None:
    assert [is_capped(Aggregation(weight_cap=100), n) for n in (99, 100, 101)] == [False, False, True]


def test_equal_weights_know_no_examples() -> None:
    assert weigh(1, weighting="equal") == weigh(10**6, weighting="equal") == 1


def test_an_equal_plan_that_counts_what_was_seen_gives_whole_work_a_unit() -> None:
    equal = {"weighting": "equal", "partial": "examples_seen"}
    assert weigh(50, **equal) == UNIT
    assert weigh(50, steps=2, complete=False, **equal) == UNIT // 2
    assert weigh(50, steps=0, complete=False, **equal) == 1


@pytest.mark.parametrize(("steps", "planned"), [(0, 0), (5, 4), (4, 4)])
def test_work_called_incomplete_that_took_all_its_steps_is_whole(steps: int, planned: int) -> None:
    assert weigh(80, steps=steps, planned=planned, complete=False, partial="examples_seen") == 80 * UNIT


def test_the_cap_comes_before_the_fraction() -> None:
    assert weigh(1000, steps=1, complete=False, partial="examples_seen", weight_cap=100) == 25 * UNIT


def test_repro_partial_work_of_few_examples_counts_with_its_fraction() -> None:
    """3 examples at 26 of 40 steps weighed 1, a third of the whole, instead of 1.95."""
    part = weigh(3, 26, complete=False, planned=40, partial="examples_seen")
    whole = weigh(3, 40, planned=40, partial="examples_seen")
    assert whole == 3 * UNIT
    assert part / whole == pytest.approx(26 / 40, abs=1 / whole)


def test_a_fraction_is_rounded_down_never_up() -> None:
    """So a device gains nothing from work that it has not done: 1 of 3 steps is 341.33 parts of 1,024."""
    assert weigh(1, 1, complete=False, planned=3, partial="examples_seen") == 341
    assert weigh(1, 2, complete=False, planned=3, partial="examples_seen") == 682
    assert weigh(9, 1, complete=False, planned=3, partial="examples_seen", weighting="equal") == 341


@pytest.mark.parametrize(("cap", "goal", "unit"), [(10_000, 256, 64), (10_000, 10, UNIT), (2**20, 256, 1)])
def test_the_unit_is_as_fine_as_the_exact_sum_allows(cap: int, goal: int, unit: int) -> None:
    rule = Aggregation(partial="examples_seen", weight_cap=cap)
    assert unit_of(rule, goal) == unit
    assert heaviest(rule, unit) * goal <= MOST_WEIGHT
    assert unit_of(Aggregation(weight_cap=cap), goal) == 1
    assert unit_of(Aggregation(partial="examples_seen", weighting="equal"), goal) == 1


@given(
    examples=st.integers(1, 2**31),
    steps=st.integers(0, 10**9),
    planned=st.integers(0, 10**9),
    complete=st.booleans(),
    weighting=st.sampled_from(["examples", "equal"]),
    partial=st.sampled_from(["full", "examples_seen"]),
    cap=st.integers(1, 2**20),
)
def test_a_weight_is_at_least_one_and_never_above_the_heaviest(
    examples: int, steps: int, planned: int, complete: bool, weighting: Any, partial: Any, cap: int
) -> None:
    rule = Aggregation(weighting=weighting, partial=partial, weight_cap=cap)
    unit = unit_of(rule, 1)
    weight = weight_of(rule, unit, examples=examples, steps=steps, steps_planned=planned, complete=complete)
    assert 1 <= weight <= heaviest(rule, unit)
    whole = weight_of(rule, unit, examples=examples, steps=1, steps_planned=1, complete=True)
    assert weight <= whole, "work cut short never weighs more"


# ------------------------------------------------------------ 1/p


@pytest.mark.parametrize(
    ("selected", "counted", "times"),
    [(0, 0, 64), (5, 5, 64), (5, 0, 64 * 6), (5, 2, 64 * 2), (6, 4, 64 * 7 // 5), (1000, 0, 64 * 16)],
)
def test_one_over_p_is_counted_in_parts_and_bounded(selected: int, counted: int, times: int) -> None:
    weighs = Aggregation(inverse_participation=16, weight_cap=100)
    assert times_of(weighs, selected, counted) == times
    assert unit_of(weighs, 10) == PARTS
    found = weight_of(weighs, PARTS, examples=7, steps=4, steps_planned=4, complete=True, times=times)
    assert found == 7 * times, "64 parts of an example: 1/p changes the ratio of weights alone"
    assert times_of(Aggregation(), selected, counted) == 1


@pytest.mark.parametrize("partial", ["full", "examples_seen"])
@pytest.mark.parametrize("weighting", ["examples", "equal"])
@pytest.mark.parametrize("goal", [1, 10, 256])
def test_nothing_weighs_more_than_the_heaviest_with_one_over_p(partial: Any, weighting: Any, goal: int) -> None:
    weighs = Aggregation(inverse_participation=16, weight_cap=1000, partial=partial, weighting=weighting)
    unit = unit_of(weighs, goal)
    work = {"examples": 10**6, "steps": 4, "steps_planned": 4, "complete": True}
    most = weight_of(weighs, unit, times=times_of(weighs, 10**6, 0), **work)  # type: ignore[arg-type]
    assert most == heaviest(weighs, unit)
    assert most * goal <= MOST_WEIGHT


def test_weights_that_do_not_fit_are_refused_with_the_way_out() -> None:
    body = {"name": "x", "task": {"learner": "a:b"}, "aggregation": {"inverse_participation": 16}}
    with pytest.raises(ValueError, match=r"inverse_participation \(16\).*lower it, weight_cap or goal"):
        Plan.parse(body)
    assert Plan.parse({**body, "cohort": {"select": 26, "goal": 26}}).weight_unit == PARTS
    for wrong, why in (
        ({"aggregation": {"inverse_participation": 8, "rule": "median", "weighting": "equal"}}, "takes no weights"),
        ({"aggregation": {"inverse_participation": 8}, "secure": {"max_norm": 1.0, "max_abs": 0.1}}, "nobody sees one"),
        ({"aggregation": {"inverse_participation": 1}}, "greater than or equal to 2|from 2|at least 2"),
    ):
        with pytest.raises(ValueError, match=why):
            Plan.parse({**body, "cohort": {"select": 20, "goal": 20}, **wrong})
