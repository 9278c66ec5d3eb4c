"""Worlds for tests of the runtime: in memory, and on every store that must behave alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coordinator.store import MemoryStore, Store, open_store
from tests.coordinator.world import World

MakeWorld = Callable[..., World]


@pytest.fixture(params=["memory", "sqlite"])
def make_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes a World on a new store of the kind at hand."""
    opened: list[Store] = []

    def make(devices: int = 8, **more: Any) -> World:
        opened.append(MemoryStore() if request.param == "memory" else open_store("sqlite://"))
        return World(devices, store=opened[-1], **more)

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Eight devices and a run named ``marks``: select 4, goal 3, quorum 2, five rounds."""
    made = make_world()
    made.create()
    return made
