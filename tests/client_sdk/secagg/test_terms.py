"""A plan's terms travel in an assignment, and come back as they were."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from client_sdk.protocol.secure import SecureTask
from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.header import GraphRule, Terms, share_of, task_of, terms_of

STRICT = GraphRule(profile="strict")
FAST = GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40)


@pytest.mark.parametrize("rule", [STRICT, FAST])
@pytest.mark.parametrize("noise", [{}, {"noise": 0.1, "divisor": 64}], ids=str)
def test_terms_travel_as_they_are(rule: GraphRule, noise: dict[str, Any]) -> None:
    terms = Terms(q=16, max_norm=2.0, max_abs=0.25, weight_cap=500, rule=rule, minimum_cohort=64, **noise)
    task = SecureTask.model_validate_json(task_of(terms).model_dump_json())
    assert terms_of(task) == terms


def test_what_this_sdk_does_not_know_is_refused() -> None:
    terms = Terms(q=16, max_norm=2.0, max_abs=0.25, weight_cap=500, rule=STRICT, minimum_cohort=64)
    with pytest.raises(BadParameters, match="strict round takes no drop"):
        terms_of(task_of(terms).changed(drop=3))
    for wrong in ({"noise": 1.0}, {"divisor": 3}, {"noise": 1e5, "divisor": 3}, {"noise": 1.0, "divisor": 3, "q": 1}):
        with pytest.raises(BadParameters, match="noise"):
            terms_of(task_of(terms).changed(**wrong))


@pytest.mark.parametrize("rule", [STRICT, FAST])
def test_noise_moves_a_model_as_far_as_all_of_a_roster_can_add(rule: GraphRule) -> None:
    """By the variances of the largest roster, of 300: the bound is not far above them."""
    values, n = 10_000, 300
    terms = Terms(
        q=16, max_norm=2.0, max_abs=0.25, weight_cap=1, rule=rule, minimum_cohort=64, noise=4.0, divisor=n, move=2.0,
        move_each=2.0,
    )  # fmt: skip
    step = 2 * terms.max_abs / terms.quantizer_of(()).levels
    share = share_of(terms.quantizer_of(()), rule, values, n)
    length = step * math.sqrt(n * share * values) / n
    assert terms.reach(values) == 2.0
    assert 1.05 * length < terms.reach_with_noise(values) - 2.0 < 1.6 * length
    assert replace(terms, noise=0.0, divisor=0).reach_with_noise(values) == 2.0
