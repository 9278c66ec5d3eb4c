"""A run says by which clock its times are: who opens a simulation's folder must not take its seconds for real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, database_url
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.store import open_store
from simulation import simulate
from tests.coordinator.world import World
from tests.simulation.test_simulate import NET, clients, examples, plan


@pytest.mark.parametrize("datacenter", [None, {"data": "proxy", "steps": 2, "batch_size": 8, "every": 1}])
def test_a_simulated_run_has_a_virtual_clock(tmp_path: Path, datacenter: dict[str, Any] | None) -> None:
    asked = plan(1, datacenter=datacenter) if datacenter else plan(1)
    held = {"proxy": examples(20)} if datacenter else None
    simulate(asked, NET, clients(4), folder=tmp_path, datacenter=held, progress=False)
    store = open_store(database_url(tmp_path))
    try:
        (view,) = Coordinator(Core(store, FileBlobs(tmp_path / BLOBS_FOLDER))).operators.runs()
    finally:
        store.close()
    assert (view.status, view.clock) == ("finished", "virtual")


def test_a_run_of_devices_has_the_worlds_clock() -> None:
    world = World()
    assert world.create().clock == "wall", "before anybody has taken part"
    world.play_round(1)
    assert world.coordinator.operators.run("marks").clock == "wall"
