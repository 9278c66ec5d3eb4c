"""Aggregation rules: each keeps to the contract, and gives what can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.engine.aggregation.registry import RULES
from coordinator.engine.aggregation.rules import Median, TrimmedMean
from quorate.testing import ColumnRuleContract, RuleContract, WholeRuleContract

GIVEN: dict[str, dict[str, float]] = {
    "trimmed-mean": {"fraction": 0.25},
    "krum": {"wrong": 2, "keep": 3},
    "centered-clipping": {"radius": 1000.0, "iterations": 10},
}
"""Parameters as a plan sets them, where the rule needs any."""


def contract(name: str) -> type[RuleContract]:
    """The contract's tests for one entry of the registry."""
    rule = RULES[name]
    kind = {"sum": RuleContract, "all": ColumnRuleContract, "whole": WholeRuleContract}[rule.needs]
    return type(f"Test_{name.replace('-', '_')}", (kind,), {"rule": rule, "given": GIVEN.get(name, {})})


for _name in RULES:  # a new entry is among them by itself
    globals()[f"Test_{_name.replace('-', '_')}"] = contract(_name)


def test_a_rule_that_depends_on_the_order_is_seen() -> None:
    class Newest(Median):
        def combine(self, columns: Any, weights: Any, settings: Any) -> Any:
            return columns[-1]

    made: Any = contract("median")()
    made.rule = Newest()
    with pytest.raises(AssertionError):
        made.test_the_order_of_the_updates_changes_no_bit()


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("fraction", "values", "mean"),
    [
        (0.0, [1, 2, 6], 3),
        (0.1, [1, 2, 6], 3),  # floor(0.3) of 3 values: none is left out
        (0.2, [-900, 1, 2, 3, 900], 2),
        (0.25, [8, 1, 4, 1000], 6),
        (0.49, [5, 1, 1000], 5),
        (0.499, [5], 5),
        (0.29, [0] * 29 + [1] * 42 + [7000] * 29, 1),  # 0.29 * 100 is 28.999999999999996
    ],
)
def test_a_trimmed_mean(fraction: float, values: list[float], mean: float) -> None:
    columns = np.array(values, np.float32).reshape(-1, 1)
    found = TrimmedMean().combine(columns, np.ones(len(values), np.int64), {"fraction": fraction})
    assert found.tolist() == [mean]


def test_a_trimmed_mean_trims_each_coordinate_alone() -> None:
    columns = np.array([[0, 900], [1, 1], [2, 2], [900, 3]], np.float32)
    assert TrimmedMean().combine(columns, np.ones(4, np.int64), {"fraction": 0.25}).tolist() == [1.5, 2.5]
