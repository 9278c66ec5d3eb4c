"""Two processes of one identity are noticed by their turns; one that was started again is not taken for two."""

from __future__ import annotations

import itertools

import pytest

from client_sdk.protocol.devices import Assignment, CheckIn, Wait
from coordinator.runtime.shared_identities import SHARED, Processes
from tests.coordinator.world import LEARNER, World


@pytest.mark.parametrize(
    ("turns", "two"),
    [
        ("aaaaaaaa", False),
        ("aabbbcccdd", False),  # killed and started again, each time another process
        ("abab", False),  # of a process that was killed one check-in may come late
        ("aababbbccc", False),
        ("ababa", True),
        ("aabbaabbaa", True),
        ("abcabca", True),
    ],
)
def test_processes_that_take_turns_are_two(turns: str, two: bool) -> None:
    found = Processes()
    for at, process in enumerate(turns):
        found = found.then(process, float(at))
    assert found.warning(len(turns)) == (SHARED if two else "")
    assert found.warning(len(turns) + 1000) == "", "one of them was stopped"


def test_who_does_not_say_by_which_process_it_checks_in_is_nobody() -> None:
    found = Processes()
    for at, process in enumerate(("a", "", "a", "", "a", "")):
        found = found.then(process, float(at))
    assert found == Processes("a")


def test_turns_of_long_ago_do_not_count() -> None:
    found = Processes()
    for at, process in enumerate("ababaabab"):
        found = found.then(process, at * 1000.0)
    assert (found.turns, found.before) == (1, ("a",))


def test_what_is_kept_of_a_device_is_bounded() -> None:
    found = Processes()
    for number in range(100):
        found = found.then(f"process {number}", float(number))
    assert found.newest == "process 99"
    assert found.before == tuple(f"process {number}" for number in range(91, 99))
    assert found.stored().keys() == {"newest", "before"}, "no process took a turn"


def test_replicas_that_have_one_process_each_say_it_and_so_does_one_that_starts_later(world: World) -> None:
    """Each replica knew of its own process alone, and nothing after a restart."""
    row, replicas = world.rows[0], (world.coordinator, world.replica())
    answers = []
    for replica, process in itertools.islice(itertools.cycle(zip(replicas, "ab", strict=True)), 6):
        world.clock.at += 20
        message = CheckIn(examples=10, learners={"tests:other": "1"}, process=process)
        answers.append(replica.devices.check_in(row, message)())
    assert [isinstance(answer, Wait) and answer.warning for answer in answers] == ["", "", "", "", SHARED, SHARED]
    for replica in (*replicas, world.replica()):
        view = replica.insight.fleet.device(row.device).device
        assert (view.state, view.warning) == ("unfit", SHARED)
        assert view.unfit.startswith(f"run marks: the plan wants the learner {LEARNER}")
        assert replica.insight.fleet.fleet().shared_identities == [row.device]
    world.clock.at += 1000
    assert world.replica().insight.fleet.device(row.device).device.warning == "", "one of them was stopped"


def test_it_is_said_to_both_and_to_operators(world: World) -> None:
    def asks(number: int, process: str) -> object:
        message = CheckIn(examples=10, learners={LEARNER: "1"}, hold_s=25, process=process)
        answer = world.coordinator.devices.check_in(world.rows[number], message)()
        world.settle()
        return (
            answer
            if isinstance(answer, Assignment)
            else world.coordinator.devices.hold_over(world.rows[number].device, message)
        )

    answers = [asks(0, process) for process in "ababab"]
    assert [isinstance(answer, Wait) and answer.warning for answer in answers] == ["", "", "", "", SHARED, SHARED]
    device = world.rows[0].device
    assert world.coordinator.insight.fleet.device(device).device.warning == SHARED
    assert world.coordinator.operators.run("marks").shared_identities == ()
    for number in range(1, 6):
        asks(number, "only")
    world.pass_time(11)
    assert world.assignment(0) is not None, "it is drawn by the world's seed"
    found = asks(0, "a")
    assert isinstance(found, Assignment)
    assert found.warning == SHARED
    assert world.coordinator.operators.run("marks").shared_identities == (device,)
    assert world.boot().operators.run("marks").shared_identities == (device,)
    assert not any(view.warning for view in world.coordinator.insight.fleet.devices() if view.device != device)


def test_a_process_whose_hold_another_one_ended_is_asked_to_come_back_soon(world: World) -> None:
    """It waited for a minute, in which a short run began and ended with the other process alone."""
    world.coordinator.operators.stop("marks")
    row = world.rows[0]
    first, second = (CheckIn(examples=10, learners={LEARNER: "1"}, process=name) for name in ("first", "second"))
    world.coordinator.devices.check_in(row, first)()
    assert world.coordinator.devices.hold_over(row.device, first).max_s > 1
    world.coordinator.devices.check_in(row, second)()
    assert world.coordinator.devices.hold_over(row.device, first).max_s <= 1
    assert world.coordinator.devices.hold_over(row.device, second).max_s > 1
