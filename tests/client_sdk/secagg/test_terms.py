"""A plan's terms travel in an assignment, and come back as they were."""

from __future__ import annotations

import pytest

from client_sdk.protocol.secure import SecureTask
from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.header import GraphRule, Terms, task_of, terms_of

STRICT = GraphRule(profile="strict")
FAST = GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40)


@pytest.mark.parametrize("rule", [STRICT, FAST])
def test_terms_travel_as_they_are(rule: GraphRule) -> None:
    terms = Terms(q=16, max_norm=2.0, max_abs=0.25, weight_cap=500, rule=rule, minimum_cohort=64)
    task = SecureTask.model_validate_json(task_of(terms).model_dump_json())
    assert terms_of(task) == terms


def test_what_this_sdk_does_not_know_is_refused() -> None:
    terms = Terms(q=16, max_norm=2.0, max_abs=0.25, weight_cap=500, rule=STRICT, minimum_cohort=64)
    with pytest.raises(BadParameters, match="strict round takes no drop"):
        terms_of(task_of(terms).changed(drop=3))
