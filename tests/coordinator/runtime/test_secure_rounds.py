"""What a coordinator is to secure rounds: it dies and goes on with the same attempt, shares them with replicas, and
never adds up an update in clear."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.names import Route
from client_sdk.secagg.header import terms_of
from coordinator.commands.tables import print_run
from coordinator.engine import effects as fx
from coordinator.runtime import driver as drivers
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.driver import Driver
from coordinator.secure import performing
from coordinator.secure.performing import SecureWork
from tests.coordinator.runtime.test_driver import driven, until
from tests.coordinator.served import RUN, SECTION, Served
from tests.coordinator.service.wire import Wire, kind
from tests.rotating import on_day


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served()
    made.secure_run()
    yield made
    made.close()


def kinds(world: Served) -> list[str]:
    return [row.kind for row in world.store.events(RUN, 0)]


def require_summed(world: Served) -> None:
    """One committed round of one attempt, of all six, once."""
    assert np.allclose(world.checkpoint(RUN)["w"], world.sum_of(range(6)), atol=1e-3)
    assert [kinds(world).count(name) for name in ("Announced", "Rostered", "Opened", "Committed")] == [1, 1, 1, 1]
    row = world.store.round(RUN, 1)
    assert row is not None
    assert (row.status, row.attempt) == ("committed", 0)
    assert world.coordinator.core.log(RUN)._unfolded == {}, "nothing is kept in memory that is not added up"


# ------------------------------------------------------------ a coordinator dies


@on_day(0, of=2)
def test_a_coordinator_that_dies_after_every_request_goes_on_with_the_same_attempt(world: Served) -> None:
    world.begin()
    moved = True
    while moved:
        moved = False
        for phone in world.phones:
            moved = world.turn(phone) or moved
            world.boot()
        world.settle()
    require_summed(world)


@pytest.mark.slow
def test_a_coordinator_that_dies_before_and_after_every_action_goes_on_with_the_same_attempt(world: Served) -> None:
    def settle() -> None:
        """Each task is lost once, then performed, and then forgotten to have been."""
        for _ in range(50):
            world.boot()
            world.coordinator.tick()
            task = world.coordinator.core.take_task()
            while task is not None and isinstance(task[1], fx.Discard):
                world.coordinator.perform(task)
                task = world.coordinator.core.take_task()
            if task is None:
                return
            world.boot()
            world.coordinator.perform(task)
        raise AssertionError("the coordinator does not come to rest")

    world.settle = settle  # type: ignore[method-assign]
    world.begin()
    world.play()
    require_summed(world)


# ------------------------------------------------------------ replicas


def to_the_opening(world: Served) -> None:
    """All have revealed their shares, and nobody has opened the sum yet."""
    world.play(lambda: world.state.phase == "unmasking")
    for phone in 2 * world.phones:
        world.turn(phone)


def other_replica(world: Served) -> tuple[Coordinator, Wire]:
    found = world.replica()
    wire = Wire(found)
    world.wires.append(wire)
    return found, wire


def test_two_replicas_that_are_asked_in_turn_give_one_sum(world: Served) -> None:
    world.begin()
    here, there = (world.coordinator, world.wire), other_replica(world)
    moved, number = True, 0
    while moved:
        moved = False
        for phone in world.phones:
            number += 1
            world.coordinator, world.wire = (here, there)[number % 2]
            moved = world.turn(phone) or moved
            world.settle()
    require_summed(world)


def test_repro_a_replica_that_has_not_seen_the_rounds_end_says_that_it_is_over(world: Served) -> None:
    """It looked for the roster's file, which was deleted, and answered that its disk reported an error."""
    world.begin()
    world.play(lambda: bool(world.state.secure.roster))
    stale, wire = other_replica(world)
    assert stale.core.state(RUN).secure is not None
    world.play()
    require_summed(world)
    world.wire = wire
    assert kind(world.answer(world.phones[0], "advertise")) == "late"


def perform_all(coordinator: Coordinator, but: Callable[[fx.Action], bool] = lambda action: False) -> list[fx.Action]:
    """Performs what is to do; what is left out is returned, and lost."""
    lost = []
    while (task := coordinator.core.take_task()) is not None:
        if but(task[1]):
            lost.append(task[1])
        else:
            coordinator.perform(task)
    return lost


def is_work(action: fx.Action) -> bool:
    return isinstance(action, fx.Announce | fx.Gather | fx.Open | fx.CommitSum)


@pytest.mark.slow
def test_repro_what_a_dead_replica_had_to_do_is_done_by_another() -> None:
    """Only a commit was issued again: a header, a roster and an opening were waited for until the deadline, or ever."""
    world = Served()
    world.secure_run(secure={**SECTION, "exchange_s": 300})
    other, _ = other_replica(world)
    lost: list[str] = []

    def settle() -> None:
        """Whatever this replica should do is lost with it; the other one's clock finds out."""
        lost.extend(type(action).__name__ for action in perform_all(world.coordinator, is_work))
        for _ in range(12):
            world.clock.at += 1
            other.tick()
            perform_all(other)
            perform_all(world.coordinator, is_work)
            world.coordinator.core.log(RUN).catch_up()

    world.settle = settle  # type: ignore[method-assign]
    for phone in world.phones:
        message = world.message()
        world.coordinator.devices.check_in(world.rows[phone.number], message)()
    world.coordinator.tick()
    settle()
    world.play()
    require_summed(world)
    assert {"Announce", "Gather", "Open"} <= set(lost)
    world.close()


def test_two_replicas_that_open_one_sum_make_one_commit(world: Served) -> None:
    world.begin()
    to_the_opening(world)
    other, _ = other_replica(world)
    action = fx.Open(round=1, attempt=0)
    assert (RUN, action) in world.coordinator.core.tasks()
    assert world.state.phase == "unmasking"
    barrier = threading.Barrier(2)

    def opened(coordinator: Coordinator) -> None:
        barrier.wait(10)
        coordinator.perform((RUN, action))
        commit = fx.CommitSum
        for task in [task for task in coordinator.core.tasks() if isinstance(task[1], commit)]:
            coordinator.perform(task)

    threads = [threading.Thread(target=opened, args=(one,)) for one in (world.coordinator, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    world.play()
    require_summed(world)
    assert len(world.store.checkpoints(RUN)) == 2


def test_an_opening_takes_no_thread_of_the_other_actions(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a sum is opened, the only thread for other actions performs them, and the run takes events."""
    world.begin()
    to_the_opening(world)
    begun, go_on, opened = threading.Event(), threading.Event(), performing.open_sum
    threads: list[str] = []

    def slow(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(30)
        return opened(*args)

    monkeypatch.setattr(performing, "open_sum", slow)
    tasks = [world.coordinator.core.take_task(openings=True) for _ in range(2)]
    assert tasks == [(RUN, fx.Open(round=1, attempt=0)), None]
    world.coordinator.core.put_back((RUN, fx.Open(round=1, attempt=0)))
    driver = Driver(world.coordinator, workers=1)
    driver.start()
    try:
        assert begun.wait(10)
        assert threads == ["quorate-opening"]
        log = world.coordinator.core.log(RUN)
        assert not log.commits.locked()
        log.submit(lambda tx, state, at: None)
        done = [threading.Event() for _ in range(4)]
        monkeypatch.setattr(world.coordinator, "perform", lambda task: task[1].set())
        for event in done:
            world.coordinator.core.hand_out(RUN, [event])  # type: ignore[list-item]
        assert all(event.wait(10) for event in done)
    finally:
        monkeypatch.undo()
        go_on.set()
        driver.close()


def failing_openings(monkeypatch: pytest.MonkeyPatch, times: float) -> list[int]:
    """So many openings of sums fail by a bug. The list has an entry for each."""
    failed: list[int] = []
    opened = SecureWork._opened

    def fails(work: Any, cohort: Any, secure: Any) -> Any:
        if len(failed) < times:
            failed.append(1)
            raise RuntimeError("can't start new thread")
        return opened(work, cohort, secure)

    monkeypatch.setattr(SecureWork, "_opened", fails)
    monkeypatch.setattr(drivers, "_RETRY_S", 0.02)
    monkeypatch.setattr(drivers, "_IDLE_S", 0.02)
    return failed


def test_an_opening_that_fails_once_is_made_again(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    world.begin()
    to_the_opening(world)
    failed = failing_openings(monkeypatch, 1)
    with driven(world.coordinator):
        until(lambda: world.coordinator.operators.run(RUN).version == 1, "the commit after one failure")
        until(lambda: not world.coordinator.core.process.run_errors.all(), "the trouble to be over")
    assert failed == [1]
    world.play()
    require_summed(world)


def test_a_run_whose_sum_cannot_be_opened_says_why_and_can_be_stopped(
    world: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits, however long: its devices have signed, and a newer version may open it."""
    world.begin()
    to_the_opening(world)
    failed = failing_openings(monkeypatch, math.inf)
    operators = world.coordinator.operators
    why = "the opening of the sum of round 1 failed and will be tried again (RuntimeError: can't start new thread)"
    with driven(world.coordinator):
        until(lambda: len(failed) > 2, "three failures")
        world.clock.at += 10_000
        until(lambda: world.state.deadline is None, "the deadline to pass")
        assert world.state.phase == "unmasking"
        assert operators.run(RUN).trouble.startswith(why)
        assert operators.round(RUN, 1).reason.startswith(why)
        print_run(operators.run(RUN))
        assert f"not handled {why}" in capsys.readouterr().out
        operators.stop(RUN)
        until(lambda: not world.coordinator.core.process.run_errors.all(), "the trouble to end with the run")
    assert operators.run(RUN).status == "stopped"


def test_the_pauses_after_a_bug_double_up_to_five_minutes() -> None:
    assert [drivers.pause_s(failures) for failures in (1, 2, 3, 8, 9, 10_000)] == [2, 4, 8, 256, 300, 300]


# ------------------------------------------------------------ never in clear


def test_an_update_in_clear_is_refused_before_its_body_is_read(world: Served) -> None:
    world.begin()
    phone = world.phones[0]
    body = b"x" * 100
    answer = world.ask(phone, "PUT", Route.UPDATE, body=body)
    assert (answer.status_code, kind(answer)) == (422, "invalid-update")
    assert "masked, never in clear" in answer.json()["detail"]
    assert "Reported" not in kinds(world)
    assert all(b"x" * 100 not in data for data in world.stored().values())


def test_too_few_devices_abandon_the_round_and_are_asked_for_nothing_in_clear(world: Served) -> None:
    world.check_in(0, 1)
    world.pass_time(11)
    row = world.store.round(RUN, 1)
    assert row is not None
    assert (row.status, row.kind, row.body["missed"]) == ("open", "secure", 1)
    assert all(world.assignment(number) is None for number in range(6))
    assert {row.kind for row in world.store.rounds(RUN, 0)} == {"secure"}


def test_an_assignment_has_the_terms_of_the_plan(world: Served) -> None:
    world.begin()
    plan = world.state.plan
    for number in range(6):
        found = world.assignment(number)
        assert found is not None
        assert found.secure is not None
        assert terms_of(found.secure) == plan.secure.terms(plan.aggregation)


def test_repro_replica_that_has_not_read_that_the_roster_is_closed_gives_no_late_work(world: Served) -> None:
    """A claim of a secure round outlasts the roster: the explorer's device trained in vain."""
    other, _ = other_replica(world)
    world.begin()
    device = world.rows[0].device
    assert other.devices.assignment(device) is not None
    world.play(lambda: world.state.phase == "sharing")
    assert world.store.claim(device) is not None
    assert other.core.log(RUN).state.phase == "collecting", "it has not read what follows"
    assert other.devices.assignment(device) is None
