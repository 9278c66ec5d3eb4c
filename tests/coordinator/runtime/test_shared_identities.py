"""Two processes of one identity are noticed by their turns; one that was started again is not taken for two."""

from __future__ import annotations

import pytest

from client_sdk.protocol.devices import Assignment, CheckIn, Wait
from coordinator.runtime.shared_identities import SHARED, SharedIdentities
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
    shared = SharedIdentities()
    for at, process in enumerate(turns):
        shared.note("d1", process, float(at))
    assert shared.warning("d1", len(turns)) == (SHARED if two else "")
    assert shared.warning("d2", len(turns)) == ""
    assert shared.warning("d1", len(turns) + 1000) == "", "one of them was stopped"


def test_it_is_said_to_both_and_to_operators(world: World) -> None:
    def asks(number: int, process: str) -> object:
        message = CheckIn(examples=10, learners={LEARNER: "1"}, hold_s=25, process=process)
        answer = world.coordinator.devices.check_in(world.rows[number], message)
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
    assert not any(view.warning for view in world.coordinator.insight.fleet.devices() if view.device != device)


def test_a_process_whose_hold_another_one_ended_is_asked_to_come_back_soon(world: World) -> None:
    """It waited for a minute, in which a short run began and ended with the other process alone."""
    world.coordinator.operators.stop("marks")
    row = world.rows[0]
    first, second = (CheckIn(examples=10, learners={LEARNER: "1"}, process=name) for name in ("first", "second"))
    world.coordinator.devices.check_in(row, first)
    assert world.coordinator.devices.hold_over(row.device, first).max_s > 1
    world.coordinator.devices.check_in(row, second)
    assert world.coordinator.devices.hold_over(row.device, first).max_s <= 1
    assert world.coordinator.devices.hold_over(row.device, second).max_s > 1
