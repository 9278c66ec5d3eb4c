"""A data folder that version 0.1.0 wrote opens: its snapshots are of another format, so its logs are folded again.

``folders_of_0_1_0`` holds two folders as that version left them, as an SQL dump and the blobs' bytes in base64:

- *deployed*: round 1 was committed by devices, round 2 abandoned, round 3 committed in the datacenter; of round 5 one
  device has reported and another trains.
- *simulated*: the first two of four rounds of ``simulate``.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.update import Update
from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.engine import events, rounds, state
from coordinator.engine.plan import Plan
from coordinator.folding.refold import BlobFolder
from coordinator.runtime.run_log import RunLog, start_of
from coordinator.store import open_store
from coordinator.store.port import RunRow, Store
from coordinator.verify import verify
from simulation import simulate
from simulation.history.rounds import current_state
from tests.coordinator.certified import key_of
from tests.coordinator.runtime.test_workers import Center
from tests.coordinator.world import StandingClock

FOLDERS = Path(__file__).parent / "folders_of_0_1_0"
RUNS = {"deployed": "marks", "simulated": "sim"}
LEFT_AT = 1_000_077.0
"""The clock of *deployed* when it was left."""
SIMULATED = (
    "92d3d5190c09a48280915b8a516d73db1094d988b651da49c832de036f830151",
    "358f9a6c2178e0f8e45b811e0d39149bf2a88196f12ecd4f67fbd4bedb91760f",
    "940f81bf9247d044de7b9a1475d4302d9be11fe552640b0b09941998b368ede8",
    "ab2aae96c119839716769ece47f2dab882ad3f9df4dfc87a1cc8e462582e95f5",
    "ea33e33b7f1c17bfc7e08b9e9b8f9743123749b6e171e8450cdeac8fb8fe8d53",
)
"""The checkpoints that version 0.1.0 made of *simulated* when nothing interrupted it."""


def unpacked(name: str, folder: Path) -> Path:
    connection = sqlite3.connect(folder / DATABASE_FILE)
    connection.executescript((FOLDERS / f"{name}.sql").read_text())
    connection.close()
    blobs: dict[str, str] = json.loads((FOLDERS / f"{name}.blobs.json").read_text())
    for digest, data in blobs.items():
        path = folder / BLOBS_FOLDER / digest[:2] / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
    return folder


def old_ids(folder: Path) -> list[str]:
    """The ids of the devices of *deployed*, in the order of the world's keys."""
    with sqlite3.connect(folder / DATABASE_FILE) as connection:
        found = dict(connection.execute("SELECT public_key, device FROM devices").fetchall())
    connection.close()
    return [found[key_of(f"device {number}").public_hex] for number in range(len(found))]


def opened(folder: Path) -> Store:
    return open_store(f"sqlite:///{folder / DATABASE_FILE}")


def others(store: Store, blobs: Any) -> list[Any]:
    """What verify finds, but that commits of then do not say from which bytes they were made."""
    return [one for one in verify(store, blobs) if one.invariant != "evidence"]


def row_of(store: Store, run: str) -> RunRow:
    row = store.run(run)
    assert row is not None
    return row


def folded(store: Store, row: RunRow) -> state.RunState:
    """The fold of the log from its first event."""
    now = rounds.begin(row.run, Plan.parse(row.plan), row.init)
    for event in store.events(row.run, 0, 1000):
        now, _ = rounds.step(now, events.from_json(event.kind, event.at, event.body))
    return now


@pytest.mark.parametrize("name", RUNS)
def test_the_snapshot_is_dropped_and_the_state_is_the_fold_of_the_whole_log(name: str, tmp_path: Path) -> None:
    store = opened(unpacked(name, tmp_path))
    row = row_of(store, RUNS[name])
    assert row.snapshot is not None
    assert state.from_json(row.snapshot) is None
    assert start_of(row)[1] == 0 < row.snapshot_seq
    whole = folded(store, row)
    log = RunLog(row, store, StandingClock(LEFT_AT), lambda run, actions: None)
    assert log.caught_up() == (whole, row.seq)
    assert current_state(store, row) == whole
    store.close()


def test_what_was_under_way_still_is(tmp_path: Path) -> None:
    store = opened(unpacked("deployed", tmp_path))
    found = folded(store, row_of(store, "marks"))
    assert (found.round_number, found.phase, found.version, found.fence) == (5, "collecting", 2, 1)
    statuses = sorted(member.status for member in found.current.members.values())
    assert statuses == ["reported", "selected", "selected", "training"]
    assert found.fallback == state.Fallback(fleet_first=True, tried=True)
    store.close()


@pytest.mark.parametrize("name", RUNS)
def test_verify_finds_nothing(name: str, tmp_path: Path) -> None:
    store = opened(unpacked(name, tmp_path))
    assert others(store, BlobFolder(tmp_path / BLOBS_FOLDER)) == []
    store.close()


def test_a_deployed_run_goes_on_and_its_next_snapshot_is_read_again(tmp_path: Path) -> None:
    """Its devices have no certificates: an authority certifies them, and gives them their ids again."""
    folder = unpacked("deployed", tmp_path)
    ids = old_ids(folder)
    store, blobs = opened(folder), FileBlobs(tmp_path / BLOBS_FOLDER)
    assert [row.key_id for row in store.devices()] == [None] * 6
    world = Center(6, store=store, blobs=blobs, clock=StandingClock(LEFT_AT), ids=ids)
    world.settle()
    members = world.coordinator.core.state("marks").current.members
    first = next(world.index(device) for device, member in members.items() if member.status == "reported")
    assert world.coordinator.devices.outcome(world.rows[first].device, "marks", 5).result == "pending"
    second, third, _ = world.cohort()
    world.report(second, third, round=5)
    view = world.coordinator.operators.run("marks")
    assert (view.version, view.round, view.phase) == (3, 6, "selecting")
    marks = np.zeros(6, np.float64)
    marks[[first, second, third]] = 2.0**5
    assert world.checkpoint()["marks"].tolist() == (world.trained(2)["marks"] + marks / 3).astype(np.float32).tolist()
    row = row_of(store, "marks")
    assert row.snapshot is not None
    assert start_of(row) == (state.from_json(row.snapshot), row.snapshot_seq)
    assert folded(store, row) == world.coordinator.core.state("marks")
    assert others(store, blobs) == []
    store.close()


def test_a_simulated_run_is_finished_with_the_bits_of_the_version_that_began_it(tmp_path: Path) -> None:
    def learn(model: Any, data: Any, task: Any) -> Update:
        x, _ = data
        return Update({"w": (np.mean(x, axis=0) - model["w"] / 2).astype(np.float32)}, len(x))

    plan = {
        "name": "sim",
        "task": {"learning_rate": 0.1, "batch_size": 8},
        "cohort": {"select": 3, "goal": 2, "quorum": 0.5},
        "finish": {"rounds": 4},
    }
    data = [(np.full((2, 3), float(number), np.float32), np.zeros(2)) for number in range(4)]
    folder = unpacked("simulated", tmp_path)
    history = simulate(plan, learn, data, init={"w": np.zeros(3, np.float32)}, seed=3, folder=folder, progress=False)
    assert history.status == "finished"
    assert tuple(view.digest for _, view in sorted(history.checkpoints.items())) == SIMULATED
    store = opened(folder)
    assert others(store, BlobFolder(folder / BLOBS_FOLDER)) == []
    store.close()
