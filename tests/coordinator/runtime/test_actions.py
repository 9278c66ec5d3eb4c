"""Every action that the engine can ask for is performed: none vanishes."""

from __future__ import annotations

import pytest

from coordinator.engine import effects as fx
from tests.coordinator.world import World


def test_something_that_is_no_action_is_refused() -> None:
    world = World(1)
    world.create()
    with pytest.raises(AssertionError):
        world.coordinator.perform(("marks", fx.Release(round=1, devices=None)))  # type: ignore[arg-type]
