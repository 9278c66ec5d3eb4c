"""Worlds for tests of the runtime: in memory, and on every store that must behave alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from coordinator.runtime import devices
from coordinator.store import MemoryStore
from tests.coordinator import databases
from tests.coordinator.world import World

MakeWorld = Callable[..., World]


@pytest.fixture(params=["memory", "sqlite"])
def make_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes a World on a new store of the kind at hand."""
    with ExitStack() as opened:

        def make(devices: int = 8, **more: Any) -> World:
            store = MemoryStore() if request.param == "memory" else opened.enter_context(databases.in_memory())
            return World(devices, store=store, **more)

        yield make


@pytest.fixture
def updates_as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are blobs however short they are."""
    monkeypatch.setattr(devices, "SHORT_BYTES", 0)


@pytest.fixture
def needs_proc() -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("reads /proc to see what is fsynced")


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Eight devices and a run named ``marks``: select 4, goal 3, quorum 2, five rounds."""
    made = make_world()
    made.create()
    return made
