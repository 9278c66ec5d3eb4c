"""A small history of a run with secure rounds in a data folder."""

from __future__ import annotations

from pathlib import Path

from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from tests.coordinator.databases import in_file
from tests.coordinator.served import Served


def play(folder: Path) -> None:
    """A committed round of six, of whom one vanished before it masked; and the first message of the next one."""
    store = in_file(folder / DATABASE_FILE)
    world = Served(store=store, blobs=FileBlobs(folder / BLOBS_FOLDER))
    cohort = {"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60}
    world.secure_run(cohort=cohort, finish={"rounds": 2})
    world.phones[2].stops = "mask"
    world.begin()
    for _ in range(3):
        world.play()
        if world.state.version:
            break
        world.pass_time(21)
    assert world.state.version == 1
    world.close()
    store.close()
