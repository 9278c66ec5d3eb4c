"""``verify`` beside a coordinator at work: no false alarm, whatever is committed and deleted meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.runtime import devices
from coordinator.store import open_store
from coordinator.store.port import MessageRow
from coordinator.verify import verify
from tests.coordinator.world import World


class BusyBlobs:
    """Blobs whose first reader finds that the coordinator has gone on: a round is committed, its updates deleted."""

    def __init__(self, world: World, last: int) -> None:
        self._world = world
        self._last: int | None = last
        self.has = world.blobs.has

    def open(self, digest: str) -> BinaryIO:
        if self._last is not None:
            device, self._last = self._last, None
            self._world.report(device)
        return self._world.blobs.open(digest)


@pytest.mark.parametrize("optimizer", ["none", "fedadam"])
def test_what_is_deleted_between_the_rows_and_the_blobs_is_looked_up_again(optimizer: str) -> None:
    world = World(8)
    world.create(aggregation={} if optimizer == "none" else {"server_optimizer": optimizer})
    world.check_in()
    cohort = world.cohort()
    world.report(*cohort[:2])
    blobs: Any = BusyBlobs(world, cohort[2])
    assert list(verify(world.store, blobs)) == []
    assert world.coordinator.operators.run("marks").version == 1, "the round was committed meanwhile"


@pytest.mark.parametrize("as_files", [True, False])
def test_what_is_missing_and_still_needed_is_named(monkeypatch: pytest.MonkeyPatch, as_files: bool) -> None:
    monkeypatch.setattr(devices, "SHORT_BYTES", 0 if as_files else 1 << 14)
    world = World(8)
    world.create()
    world.check_in()
    receipts = world.report(*world.cohort()[:2])
    if as_files:
        world.blobs.delete(receipts[0].digest)
    else:
        with world.store.transaction() as tx:
            tx._delete(MessageRow, {"run": "marks", "digest": receipts[0].digest})
    ((invariant, number, what),) = [(w.invariant, w.round, w.what) for w in verify(world.store, world.blobs)]
    assert (invariant, number) == ("5", 1)
    assert receipts[0].device in what


def test_rows_are_read_in_one_moment(tmp_path: Path) -> None:
    """Another connection commits a round between two reads of rows."""
    store = open_store(f"sqlite:///{tmp_path / DATABASE_FILE}")
    world = World(8, store=store, blobs=FileBlobs(tmp_path / BLOBS_FOLDER))
    world.create()
    world.play_round(1)
    reader = open_store(f"sqlite:///{tmp_path / DATABASE_FILE}")
    with reader.reading() as moment:
        before = moment.head("marks")
        world.play_round(2)
        assert store.head("marks") > before
        assert moment.head("marks") == before
        assert [row.round for row in moment.rounds("marks")] == [1, 2]
        assert moment.checkpoints("marks")[-1].version == 1
    reader.close()
    store.close()


@pytest.mark.slow
def test_no_false_alarm_while_rounds_are_committed(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / DATABASE_FILE}")
    world = World(8, store=store, blobs=FileBlobs(tmp_path / BLOBS_FOLDER))
    world.create(finish={"rounds": 12})
    done = threading.Event()

    def work() -> None:
        try:
            for number in range(1, 13):
                world.play_round(number)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    reader, looks = open_store(f"sqlite:///{tmp_path / DATABASE_FILE}"), 0
    while not done.is_set() or not looks:
        assert list(verify(reader, BlobFolder(tmp_path / BLOBS_FOLDER))) == []
        looks += 1
    thread.join()
    assert list(verify(reader, BlobFolder(tmp_path / BLOBS_FOLDER))) == []
    assert reader.checkpoints("marks")[-1].version == 12
    reader.close()
    store.close()
