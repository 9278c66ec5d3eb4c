"""A full disk under the runtime: nothing is lost, and a later try succeeds."""

from __future__ import annotations

import pytest

from coordinator.blobs import DiskFull, MemoryBlobs
from coordinator.blobs.port import MemorySpool
from tests.coordinator.world import World


class FullDisk(MemoryBlobs):
    """Blobs on a disk that is full while ``full`` is set."""

    full = False

    def spool(self, limit: int | None = None) -> MemorySpool:
        spool = super().spool(limit)
        commit = spool.commit

        def fails(expected: str | None = None) -> str:
            if self.full:
                raise DiskFull("Could not write a blob: the disk is full.")
            return commit(expected)

        spool.commit = fails  # type: ignore[method-assign]
        return spool


@pytest.mark.usefixtures("updates_as_files")
def test_a_full_disk_leaves_everything_as_it_was_and_a_later_try_succeeds() -> None:
    blobs = FullDisk()
    world = World(8, blobs=blobs)
    world.create()
    world.check_in()
    first, second, third, _ = world.cohort()
    world.report(first)
    before, head = world.coordinator.operators.run("marks"), world.store.head("marks")
    blobs.full = True
    with pytest.raises(DiskFull):
        world.report(second)
    assert (world.coordinator.operators.run("marks"), world.store.head("marks")) == (before, head)
    assert world.assignment(second) is not None
    blobs.full = False
    world.report(second, third)
    world.require({1: [first, second, third]})


def test_a_full_disk_at_the_checkpoint_leaves_the_round_committing_until_there_is_room() -> None:
    blobs = FullDisk()
    world = World(8, blobs=blobs)
    world.create()
    world.check_in()
    first, second, third, _ = world.cohort()
    world.report(first, second)
    device = world.rows[third]
    with blobs.spool() as spool:
        spool.write(world.body(third))
        world.coordinator.devices.report(device, "marks", 1, 0, spool)()
    blobs.full = True
    with pytest.raises(DiskFull):
        world.settle()
    assert world.coordinator.operators.run("marks").phase == "committing"
    blobs.full = False
    world.boot()
    world.settle()
    world.require({1: [first, second, third]})
