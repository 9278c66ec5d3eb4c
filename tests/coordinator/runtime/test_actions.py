"""Every action that the engine can ask for is performed, or refused loudly: none vanishes."""

from __future__ import annotations

from typing import get_args

import pytest

from coordinator.engine import effects as fx
from coordinator.runtime.actions import NotServed
from tests.coordinator.world import SECURE, World

NOT_SERVED = [
    fx.Announce(round=1, attempt=0),
    fx.Gather(round=1, attempt=0, advertised=()),
    fx.SendAnswers(round=1, attempt=0, phase="sharing", devices=()),
    fx.Open(round=1, attempt=0),
    fx.CommitSum(round=1, parent="", sum="", weight=0, contributions=()),
]


@pytest.mark.parametrize("action", NOT_SERVED, ids=lambda action: type(action).__name__)
def test_an_action_of_a_secure_round_raises_until_it_is_served(action: fx.Action) -> None:
    world = World(1)
    world.create()
    with pytest.raises(NotServed, match=type(action).__name__):
        world.coordinator.perform(("marks", action))


def test_these_are_all_that_are_not_served() -> None:
    assert {type(action) for action in NOT_SERVED} == set(get_args(SECURE))


def test_something_that_is_no_action_is_refused() -> None:
    world = World(1)
    world.create()
    with pytest.raises(AssertionError):
        world.coordinator.perform(("marks", fx.Release(round=1, devices=None)))  # type: ignore[arg-type]
