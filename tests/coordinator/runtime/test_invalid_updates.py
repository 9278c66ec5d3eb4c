"""An invalid update ends its device's part in the round: final, durable, counted once, the same answer each time."""

from __future__ import annotations

import pytest

from client_sdk.protocol.operators import Funnel
from client_sdk.protocol.problems import ProblemError
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


def invalid(world: World, number: int) -> str:
    """The device sends an update that is not valid. Returns the reason that it gets."""
    with pytest.raises(ProblemError) as refused:
        world.send(number, world.body(number)[:-1])
    assert refused.value.kind == "invalid-update"
    world.settle()
    return str(refused.value)


def test_the_device_has_left_the_round_and_gets_the_same_answer_for_any_update(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    device = world.rows[number].device
    why = invalid(world, number)
    assert why
    assert invalid(world, number) == why
    with world.refuses("invalid-update", "."):
        world.report(number)
    assert world.check_in(number) == [None], "it has no assignment and waits for the next round"
    outcome = world.coordinator.devices.outcome(device, "marks", 1)
    assert (outcome.result, outcome.reason) == ("refused", why)
    world.coordinator.devices.withdraw(device, "marks", 1, 0, "its update was refused")
    assert world.refusals() == [(number, "invalid-update")]
    view = world.coordinator.operators.round("marks", 1)
    assert view.funnel == Funnel(waiting=8, selected=4, training=1, refused=1)
    assert view.departures == f"1 update was refused: {why}"
    kinds = [row.kind for row in world.store.events("marks", 0)]
    assert kinds.count("UpdateRefused") == 1


def test_repro_an_invalid_update_deletes_no_blob_of_others(world: World) -> None:
    """The digest of refused bytes was recorded, and what it names was deleted with the round: a device that sent the
    checkpoint as its update had it deleted."""
    world.check_in()
    first, *others = world.cohort()
    line = [row.digest for row in world.store.checkpoints("marks")]
    with world.blobs.open(line[0]) as file, world.refuses("invalid-update", "."):
        world.send(first, file.read())
    assert [row.digest for row in world.store.refusals("marks", 1)] == line
    for number in others:
        world.report(number)
    world.settle()
    assert world.coordinator.operators.run("marks").version == 1
    assert world.blobs.has(line[0])


def test_a_replica_and_a_restart_know_it(make_world: MakeWorld) -> None:
    world = make_world()
    world.create()
    world.check_in()
    first, second, *_ = world.cohort()
    stale = world.replica()
    why = invalid(world, first)
    for coordinator in (stale, world.boot()):
        world.coordinator = coordinator
        with pytest.raises(ProblemError, match=r".") as refused:
            world.send(first, world.body(first))
        assert (refused.value.kind, str(refused.value)) == ("invalid-update", why)
    world.report(second)
    assert world.coordinator.operators.round("marks", 1).funnel.refused == 1


def test_the_round_closes_when_nobody_else_can_report(world: World) -> None:
    world.check_in()
    first, second, *bad = world.cohort()
    world.report(first, second)
    for number in bad:
        invalid(world, number)
    world.require({1: [first, second]})
    view = world.coordinator.operators.round("marks", 1)
    assert (view.status, view.funnel.reported, view.funnel.refused, view.funnel.dropped) == ("committed", 2, 2, 0)


def test_the_round_is_abandoned_when_the_quorum_is_out_of_reach(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    world.coordinator.devices.withdraw(world.rows[first].device, "marks", 1, 0, "the loss is NaN")
    why = [invalid(world, number) for number in (second, third)]
    view = world.coordinator.operators.round("marks", 1)
    gone = "1 of 4 devices withdrew and the updates of 2 of 4 devices were refused"
    assert view.reason == f"{gone}; 1 are left and the quorum is 2"
    assert view.departures == f"1 device withdrew: the loss is NaN. 2 updates were refused: {why[0]}"
    assert invalid(world, second) == why[0], "also after the end of the round"
    assert world.refusals() == [(second, "invalid-update"), (third, "invalid-update")]


def test_an_invalid_update_beside_one_that_counts_changes_nothing(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    world.report(first)
    with world.refuses("duplicate"):
        world.send(first, world.body(first)[:-1])
    world.report(second, third)
    world.require({1: [first, second, third]})
    assert world.coordinator.operators.round("marks", 1).funnel.refused == 0


def test_text_of_a_device_in_the_reason_is_one_short_line_without_control_characters(world: World) -> None:
    world.check_in()
    for number in world.cohort()[:2]:
        device = world.rows[number].device
        world.coordinator.devices.withdraw(device, "marks", 1, 0, "red\x1b[31m\nalert\u202e" + "x" * 400)
    shown = world.coordinator.operators.round("marks", 1).departures
    assert shown.startswith("2 devices withdrew: red\\x1b[31m alert\\u202exxx")
    assert shown.isprintable()
    assert len(shown) < 300
