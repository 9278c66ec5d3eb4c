"""What grows faster than its work fails."""

from __future__ import annotations

import pytest

from benchmarks import growth
from benchmarks.growth import of_a_fleet, rows_of, slope


def test_the_slope_is_the_exponent() -> None:
    assert slope({n: 3.0 * n for n in (10, 100, 1000)}) == pytest.approx(1)
    assert slope({n: 0.1 * n**2 for n in (10, 1000)}) == pytest.approx(2)
    assert slope({10: 5.0, 100: 5.0}) == pytest.approx(0)


def test_more_than_linear_fails() -> None:
    *shown, last = rows_of("rounds", {n: 0.001 * n**1.5 for n in (100, 400)}, growth.LINEAR, each=True)
    assert [round(row.value or 0, 6) for row in shown] == [10.0, 20.0], "of one"
    assert (last.name, last.met) == ("rounds_slope", False)
    assert [row.met for row in rows_of("rounds", {10: 1.0, 100: 10.5}, growth.LINEAR)][-1]


def test_a_fleet_is_measured() -> None:
    found = of_a_fleet(60)
    assert set(found) == {"by_state", "by_text", "check_in", "page", "participation", "runs", "standstill"}
    assert all(cost > 0 for cost in found.values())
    assert all(cost > 0 for cost in growth.draws_s(growth.COHORT * 3))
