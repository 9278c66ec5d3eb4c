"""Aggregation rules: each keeps to the contract, and gives what can be worked out by hand."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from coordinator.engine.aggregation.registry import RULES
from coordinator.engine.aggregation.rules import Mean, Median
from coordinator.engine.aggregation.trimmed_mean import TrimmedMean
from tests.coordinator.engine.contract import ColumnRuleContract, RuleContract


class TestMean(RuleContract):
    rule = Mean()

    def test_it_is_not_made_from_columns(self) -> None:
        with pytest.raises(TypeError, match="exact sum"):
            self.combine(self.columns())


class TestMedian(ColumnRuleContract):
    rule = Median()


class TestTrimmedMean(ColumnRuleContract):
    rule = TrimmedMean()
    given: ClassVar[dict[str, float]] = {"fraction": 0.25}

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
    def test_by_hand(self, fraction: float, values: list[float], mean: float) -> None:
        columns = np.array(values, np.float32).reshape(-1, 1)
        found = self.rule.combine(columns, np.ones(len(values), np.int64), {"fraction": fraction})
        assert found.tolist() == [mean]

    def test_it_trims_each_coordinate_alone(self) -> None:
        columns = np.array([[0, 900], [1, 1], [2, 2], [900, 3]], np.float32)
        assert self.combine(columns).tolist() == [1.5, 2.5]


def test_every_rule_has_been_here() -> None:
    tested = {
        type(rule.rule)
        for rule in [*RuleContract.__subclasses__(), *ColumnRuleContract.__subclasses__()]
        if hasattr(rule, "rule")
    }
    assert {type(rule) for rule in RULES.values()} <= tested
