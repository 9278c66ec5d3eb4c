"""What a plan's mistakes cost who reads and who writes them."""

from __future__ import annotations

import pytest

from coordinator.engine import plan as plan_module
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import LONGEST, MOST, PlanError


def test_repro_a_plan_of_thousands_of_mistakes_is_refused_by_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 256 KiB took the coordinator seconds, and got as many names back."""
    searched: list[str] = []
    monkeypatch.setattr(plan_module, "get_close_matches", lambda name, *_, **__: searched.append(name) or [])
    with pytest.raises(PlanError) as refused:
        Plan.parse({f"k{number}": 1 for number in range(20_000)})
    assert len(searched) <= MOST
    said = str(refused.value)
    assert said.startswith("name: is required; task: is required; k0: there is no such field")
    assert said.endswith(f"; and {20_002 - MOST} more mistakes")


def test_of_a_long_name_the_beginning_is_repeated() -> None:
    with pytest.raises(PlanError) as refused:
        Plan.parse({"name": "x", "task": {"learner": "a:b"}, "k" * 100_000: 1})
    assert str(refused.value) == f"{'k' * LONGEST}: there is no such field"


def test_few_mistakes_are_all_told() -> None:
    with pytest.raises(PlanError) as refused:
        Plan.parse({f"k{number}": 1 for number in range(MOST - 2)})
    assert f"k{MOST - 3}: there is no such field" in str(refused.value)
    assert "more mistakes" not in str(refused.value)
