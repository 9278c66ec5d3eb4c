"""The threads of a coordinator process: deadlines fire by the real clock, failures are tried again, nothing spins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from client_sdk.protocol.devices import Assignment
from client_sdk.protocol.problems import ProblemError
from coordinator.blobs import DiskFull, FileBlobs, MemoryBlobs
from coordinator.engine import effects as fx
from coordinator.runtime import driver as drivers
from coordinator.runtime.coordinator import Coordinator, Task
from coordinator.runtime.driver import Driver
from coordinator.store import open_store
from coordinator.store.port import StoreError
from tests.coordinator.world import StandingClock, World

PATIENCE_S = 20.0
"""How long a busy machine may take for what should take a moment."""


class RunningClock(StandingClock):
    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()


def until(truth: Callable[[], bool], what: str) -> None:
    """Looks again and again, for at most ``PATIENCE_S``."""
    end = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < end, f"waited {PATIENCE_S} s for: {what}"
        time.sleep(0.005)


@contextmanager
def driven(coordinator: Coordinator) -> Iterator[Driver]:
    running = Driver(coordinator)
    running.start()
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def world() -> World:
    return World(4, clock=RunningClock())


def check_in(world: World, *numbers: int) -> None:
    for number in numbers:
        world.coordinator.devices.check_in(world.rows[number], world.message())()


def report(world: World, *numbers: int) -> None:
    for number in numbers:
        device = world.rows[number]
        with world.blobs.spool() as spool:
            spool.write(world.body(number))
            world.coordinator.devices.report(device, "marks", 1, 0, spool)()


def version(world: World) -> int:
    return world.coordinator.operators.run("marks").version


@pytest.mark.slow
def test_deadlines_fire_by_themselves(world: World) -> None:
    """Three of four wait: drawn when select_s is over. Two report, which is no goal: closed when collect_s is over."""
    world.create(cohort={"select_s": 0.1, "collect_s": 1.2})
    check_in(world, 1, 2, 3)
    with driven(world.coordinator):
        until(lambda: world.cohort() == [1, 2, 3], "the draw at its deadline")
        report(world, 1, 2)
        until(lambda: version(world) == 1, "the commit at the deadline")
    world.require({1: [1, 2]})
    row = world.coordinator.operators.round("marks", 1)
    assert row.collecting_at is not None
    assert row.closed_at is not None
    assert row.collecting_at >= row.opened_at + 0.1, "not before"
    assert row.closed_at >= row.collecting_at + 1.2, "not before"


def test_a_full_pool_is_drawn_without_waiting_and_a_goal_commits_without_waiting(world: World) -> None:
    world.create(cohort={"select_s": 3600, "collect_s": 3600})
    with driven(world.coordinator):
        check_in(world, 0, 1, 2, 3)
        until(lambda: world.cohort() == [0, 1, 2, 3], "the draw of a full pool")
        report(world, 0, 1, 2)
        until(lambda: version(world) == 1, "the commit at the goal")
    world.require({1: [0, 1, 2]})


def test_a_start_takes_up_what_was_in_flight(world: World) -> None:
    world.create(cohort={"select_s": 3600, "collect_s": 3600})
    check_in(world, 0, 1, 2, 3)
    world.settle()
    report(world, 0, 1, 2)
    world.boot()
    assert world.coordinator.operators.run("marks").phase == "committing"
    with driven(world.coordinator):
        until(lambda: version(world) == 1, "the commit that was pending")
    world.require({1: [0, 1, 2]})


def test_closing_ends_the_threads_quickly(world: World) -> None:
    world.create()
    before = threading.active_count()
    with driven(world.coordinator):
        assert threading.active_count() == before + 4
        started = time.monotonic()
    assert time.monotonic() - started < 5
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "failure", [StoreError("the database is locked"), DiskFull("the disk is full"), ValueError("a bug")]
)
def test_a_task_that_fails_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    monkeypatch.setattr(drivers, "_RETRY_S", 0.05)
    monkeypatch.setattr(drivers, "_IDLE_S", 0.02)
    failed: list[Task] = []
    perform = world.coordinator.perform

    def failing(task: Task) -> None:
        if isinstance(task[1], fx.Commit) and len(failed) < 2:
            failed.append(task)
            raise failure
        perform(task)

    monkeypatch.setattr(world.coordinator, "perform", failing)
    world.create(cohort={"select_s": 3600, "collect_s": 3600})
    with driven(world.coordinator):
        check_in(world, 0, 1, 2, 3)
        until(lambda: len(world.cohort()) == 4, "the draw")
        report(world, 0, 1, 2)
        until(lambda: version(world) == 1, "the commit after two failures")
    assert len(failed) == 2
    world.require({1: [0, 1, 2]})


class FullDisk(MemoryBlobs):
    """A disk without room for anything new, while ``full``."""

    full = True

    def put(self, data: bytes) -> str:
        if self.full:
            raise DiskFull("Could not write a blob: the disk is full.")
        return super().put(data)


def test_repro_a_draw_that_cannot_be_made_is_neither_spun_on_nor_piled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past its deadline the clock looked a thousand times a second, and each look left one more task to try again."""
    monkeypatch.setattr(drivers, "_RETRY_S", 0.05)
    blobs = FullDisk()
    world = World(4, clock=RunningClock(), blobs=blobs)
    world.create(cohort={"select_s": 0.01, "collect_s": 3600})
    tries = 0
    perform = world.coordinator.perform

    def counted(task: Task) -> None:
        nonlocal tries
        tries += isinstance(task[1], fx.Draw)
        perform(task)

    monkeypatch.setattr(world.coordinator, "perform", counted)
    for number in (0, 1):  # a quorum, but no full pool
        check_in(world, number)
    with driven(world.coordinator) as running:
        until(lambda: tries > 2, "a few tries")
        time.sleep(0.5)
        assert tries < 60, f"{tries} tries in half a second"
        assert len(running._retries) <= 1
        blobs.full = False
        until(lambda: world.cohort() == [0, 1], "the draw when there is room again")


def test_repro_a_bug_in_one_look_at_the_clock_does_not_end_all_looking(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create(cohort={"select_s": 0.01, "collect_s": 0.05})
    monkeypatch.setattr(drivers, "_IDLE_S", 0.02)
    looks: list[Any] = []
    tick = world.coordinator.tick

    def failing() -> float | None:
        looks.append(None)
        if len(looks) == 2:
            raise ValueError("the log holds an event that this version does not know")
        return tick()

    monkeypatch.setattr(world.coordinator, "tick", failing)
    with driven(world.coordinator):
        until(lambda: len(looks) > 4, "looks after the failed one")


@pytest.mark.slow
def test_forty_devices_at_once_on_files_and_sqlite(tmp_path: Path) -> None:
    """Threads for devices, threads for the coordinator, a real database and real files: every mark counts once."""
    store = open_store(f"sqlite:///{tmp_path / 'quorate.sqlite3'}")
    world = World(40, store=store, blobs=FileBlobs(tmp_path / "blobs"), clock=RunningClock())
    world.create(
        cohort={"select": 40, "goal": 32, "quorum": 0.5, "select_s": 3600, "collect_s": 3600}, finish={"rounds": 3}
    )
    wrong: list[BaseException] = []

    def device(number: int) -> None:
        """Checks in, waits for work, sends what it did, until the run is over."""
        row, done = world.rows[number], 0
        try:
            while world.coordinator.operators.run("marks").status == "running":
                work = world.coordinator.devices.check_in(row, world.message())()
                if not isinstance(work, Assignment) or work.round == done:
                    time.sleep(0.01)
                    continue
                done = work.round
                body = world.body(number, done)
                with world.blobs.spool(work.max_update_bytes) as spool:
                    spool.write(body)
                    world.coordinator.devices.report(row, "marks", done, 0, spool)()
        except ProblemError as refusal:
            if refusal.kind != "late":
                wrong.append(refusal)
            else:
                device(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=device, args=(number,)) for number in range(40)]
    with driven(world.coordinator):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert wrong == []
    counted = {
        number: [world.index(row.device) for row in store.contributions("marks", number)] for number in (1, 2, 3)
    }
    assert [len(numbers) for numbers in counted.values()] == [32, 32, 32]
    world.require(counted)
    acknowledged = [row for row in store.events("marks", 0) if row.kind == "Reported"]
    assert len(acknowledged) == 96, "as many as were counted: the late ones were refused"
    store.close()
