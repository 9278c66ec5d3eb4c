"""Why a run stands still: what an operator reads of it, in one line."""

from __future__ import annotations

import pytest

from client_sdk.protocol.workers import WorkerPoll
from coordinator.blobs import DiskFull, MemoryBlobs
from coordinator.blobs.port import MemorySpool
from coordinator.engine.phases import opening
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import LEARNER, World

NAN = "The loss is NaN after 3 steps: try a smaller learning rate."


def stalled(world: World) -> str:
    """The line; every place has the same one."""
    view = world.coordinator.operators.run("marks")
    assert world.coordinator.stalled() == ({"marks": view.stalled} if view.stalled else {})
    assert view.stalled.isprintable()
    return view.stalled


def withdraw(world: World, reason: str = NAN) -> None:
    for number in world.cohort()[:3]:
        state = world.coordinator.core.state("marks")
        device = world.rows[number].device
        world.coordinator.devices.withdraw(device, "marks", state.round_number, 0, reason)
    world.settle()


def test_devices_that_withdraw_say_why(world: World) -> None:
    world.check_in()
    assert stalled(world) == ""
    withdraw(world)
    gone = "3 of 4 devices withdrew; 1 are left and the quorum is 2. 3 devices withdrew: " + NAN.removesuffix(".")
    assert stalled(world) == f"the last round was abandoned, because {gone}"
    world.check_in()
    withdraw(world)
    assert stalled(world) == f"2 rounds in a row were abandoned, the last one because {gone}"
    view = world.coordinator.operators.rounds("marks")[1]
    assert view.reason == "3 of 4 devices withdrew; 1 are left and the quorum is 2"
    assert view.departures == "3 devices withdrew: " + NAN.removesuffix(".")
    assert world.play_round(3)
    assert stalled(world) == "", "a commit ends it"


def test_what_devices_said_stays_while_they_rest(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create()
    world.check_in()
    withdraw(world)
    world.pass_time(10)
    world.pass_time(10)
    line = stalled(world)
    assert line == (
        "3 attempts at a round in a row failed, the last one for want of devices; in round 1, 3 devices withdrew: "
        + NAN.removesuffix(".")
        + "; 0 eligible devices wait; a round needs at least 2"
    )
    assert world.play_round(2)
    assert stalled(world) == "", "a commit ends it"


def test_devices_whose_training_failed_again_are_not_drawn_with_this_model_and_the_line_says_so(
    make_world: MakeWorld,
) -> None:
    """They wait, say with which version they take part again, and are drawn with that, or when they say so no more."""
    world = make_world(4)
    run = world.create()
    for _ in range(2):
        world.check_in()
        withdraw(world)
    world.check_in(rests=((run.run, 1),))
    world.pass_time(10)
    line = stalled(world)
    assert "in round 2, 3 devices withdrew: " + NAN.removesuffix(".") in line
    assert (
        "0 eligible devices wait; a round needs at least 2. 4 devices were ineligible: the device declines this" in line
    )
    assert "run until version 1, or for a time if its training has failed" in line
    assert world.coordinator.operators.run("marks").round == 3
    world.check_in()
    assert world.play_round(3)
    world.check_in(rests=((run.run, 1),))
    assert len(world.cohort()) == 4


def test_repro_the_want_of_devices_is_said_once(make_world: MakeWorld) -> None:
    """The line said of the last round and of the present one that two devices waited, and that eight are needed."""
    world = make_world(4)
    world.create()
    world.check_in(0)
    world.pass_time(10)
    now = "1 eligible device waits; a round needs at least 2"
    assert stalled(world) == f"the last attempt at a round failed for want of devices; {now}"
    world.check_in(0)
    world.pass_time(6)
    world.pass_time(4)
    world.check_in(0)
    world.pass_time(6)
    assert stalled(world) == f"2 attempts at a round in a row failed, the last one for want of devices; {now}"


def test_a_run_that_was_paused_says_what_devices_said_before(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(finish={"rounds": 5, "abandoned": 3})
    world.check_in()
    withdraw(world)
    world.pass_time(10)
    world.pass_time(10)
    view = world.coordinator.operators.run("marks")
    assert (view.status, view.round) == ("paused", 2)
    assert "because 0 eligible devices waited" in view.reason
    assert stalled(world) == "in round 1, 3 devices withdrew: " + NAN.removesuffix(".")


def test_the_reasons_are_shown_while_the_round_is_open(world: World) -> None:
    world.check_in()
    first, second, *_ = world.cohort()
    for number in (first, second):
        world.coordinator.devices.withdraw(world.rows[number].device, "marks", 1, 0, NAN)
    assert stalled(world) == "2 devices withdrew: " + NAN.removesuffix(".")


def test_the_most_common_reasons_come_first_and_the_rest_is_counted(make_world: MakeWorld) -> None:
    world = make_world(12)
    world.create(cohort={"select": 12, "goal": 6, "quorum": 0.5})
    world.check_in()
    reasons = ["hot.", "cold", "cold", "wet", "wet", "wet", "dry", "old"]
    for number, reason in zip(world.cohort(), reasons, strict=False):
        world.coordinator.devices.withdraw(world.rows[number].device, "marks", 1, 0, reason)
    common = "3 devices withdrew: wet. 2 devices withdrew: cold. 1 device withdrew: dry"
    wanted = f"{common}. 2 devices withdrew for other reasons"
    assert world.coordinator.operators.round("marks", 1).departures == wanted
    assert stalled(world) == wanted


def test_a_round_without_eligible_devices_says_what_is_against_them(world: World) -> None:
    assert stalled(world) == ""
    world.check_in(0, 1, 2, version="1", learners=("tests:other",))
    world.check_in(3)
    world.pass_time(6)
    line = stalled(world)
    assert line.startswith("1 eligible device waits; a round needs at least 2. 3 devices were ineligible: ")
    assert LEARNER in line
    (view,) = world.coordinator.operators.rounds("marks")
    assert (view.status, view.reason) == ("open", line)


def test_a_paused_run_needs_no_further_reason(world: World) -> None:
    world.coordinator.operators.pause("marks")
    world.pass_time(8)
    assert stalled(world) == ""


class FullDisk(MemoryBlobs):
    """Blobs on a disk that is full while ``full`` is set."""

    full = False

    def spool(self, limit: int | None = None) -> MemorySpool:
        if self.full:
            raise DiskFull("Could not write a blob: the disk is full.")
        return super().spool(limit)

    def put(self, data: bytes) -> str:
        if self.full:
            raise DiskFull("Could not write a blob: the disk is full.")
        return super().put(data)


def test_a_full_disk_is_named_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    blobs = FullDisk()
    world = World(8, blobs=blobs)
    world.create()
    blobs.full = True
    for _ in range(3):
        with pytest.raises(DiskFull):
            world.check_in()
    (logged,) = [one.getMessage() for one in caplog.records if one.name == "quorate.storage"]
    assert logged.endswith("goes on trying: Could not write a blob: the disk is full."), "once, not for each request"
    line = "this coordinator could not store data: Could not write a blob: the disk is full."
    assert stalled(world) == line
    assert world.coordinator.operators.rounds("marks")[0].reason == line
    assert world.coordinator.healthy()
    world.clock.at += 61
    assert stalled(world) == ""


def test_a_failure_before_the_last_commit_stands_in_no_runs_way() -> None:
    """It was shown for a minute, while fifty rounds were committed."""
    blobs = FullDisk()
    world = World(8, blobs=blobs)
    world.create()
    blobs.full = True
    with pytest.raises(DiskFull):
        world.check_in()
    assert "the disk is full" in stalled(world)
    blobs.full = False
    world.clock.at += 20
    assert world.play_round(1)
    assert stalled(world) == ""
    world.clock.at += 1
    world.coordinator.core.process.storage_errors.note(DiskFull("Could not write a blob: the disk is full."))
    assert "the disk is full" in stalled(world)


def test_a_run_whose_datacenter_has_no_worker_says_why_it_is_not_paused(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(finish={"rounds": 5, "abandoned": 1}, datacenter={"data": "proxy", "patience": 1})
    world.check_in()
    withdraw(world)
    assert world.coordinator.operators.run("marks").phase == "leasing"
    line = stalled(world)
    assert "no worker has the datacenter round (1 federated round in a row had to be abandoned)" in line
    assert "that finish.abandoned = 1 is reached pauses the run only when the datacenter has tried" in line
    lacking = WorkerPoll(instance="i", data=("proxy",), learners={}, nproc=1)
    for name in ("w1", "w2"):
        worker = world.worker(name)
        world.coordinator.workers.poll(worker, lacking)
    why = f"2 workers asked: the plan wants the learner {LEARNER}, which this worker does not have"
    assert why in stalled(world), "its owner would else wait for workers that wait for him"
    world.coordinator.workers.poll(worker, lacking.model_copy(update={"learners": {LEARNER: "9"}, "data": ()}))
    assert "1 worker asked: the plan wants the data 'proxy'" in stalled(world)
    world.clock.at += 130
    assert "asked" not in stalled(world)


def test_refused_opening_says_why_and_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    against = opening.NotOpened("budget", "the budget is spent")
    monkeypatch.setattr(opening, "reason_against", lambda state, at: against if state.version else None)
    assert world.play_round(1)
    state = world.coordinator.core.state("marks")
    assert (state.version, state.phase, state.status) == (1, "idle", "running")
    assert stalled(world) == "no round opens: the budget is spent"
    events = len(world.coordinator.operators.events("marks"))
    world.pass_time(10)
    world.pass_time(10)
    assert len(world.coordinator.operators.events("marks")) == events, "trying is not logged"
    assert len(world.coordinator.operators.rounds("marks")) == 1
    monkeypatch.undo()
    world.pass_time(10)
    assert world.coordinator.core.state("marks").phase == "collecting", "those who waited are drawn"
    assert len(world.coordinator.operators.rounds("marks")) == 2
    assert world.play_round(2), "and the run goes on"
