"""A value that takes long is kept for ten times as long, and no longer."""

from __future__ import annotations

import pytest

from coordinator.runtime.clock import RESTS, CostlyValue
from tests.coordinator.world import StandingClock


def test_it_is_made_for_an_eleventh_of_the_time_and_says_when_again() -> None:
    clock = StandingClock()
    value: CostlyValue[int] = CostlyValue(clock)
    made: list[float] = []

    def make() -> int:
        clock.at += 2
        made.append(clock.at)
        return len(made)

    assert value.get(make) == (1, 0.0)
    clock.at += 5
    assert value.get(make) == (1, 2 * RESTS - 5)
    clock.at -= 1000
    assert value.get(make) == (1, 2 * RESTS - 5), "a clock that is set back makes nothing older or younger"
    clock.at += 2 * RESTS - 5
    assert value.get(make) == (2, 0.0)
    assert value.get(make, of="another") == (3, 0.0)
    value.forget()
    assert value.get(make, of="another") == (4, 0.0)


def test_what_takes_no_time_is_of_now() -> None:
    value: CostlyValue[float] = CostlyValue(clock := StandingClock())
    assert [value.get(clock.now) for _ in range(2)] == [(clock.at, 0.0)] * 2


def test_one_that_failed_is_not_kept() -> None:
    value: CostlyValue[float] = CostlyValue(StandingClock())
    with pytest.raises(ZeroDivisionError):
        value.get(lambda: 1 / 0)
    assert value.get(lambda: 2.0) == (2.0, 0.0)
