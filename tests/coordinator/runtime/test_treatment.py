"""What was done to the updates of a round is counted when they are counted: the same after a crash, on a replica, from
rows and from the log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Work
from client_sdk.protocol.operators import Treatment
from coordinator.commands.tables import rounds_table
from coordinator.runtime import views
from coordinator.store.port import RoundRow
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.runtime.test_invalid_updates import invalid
from tests.coordinator.world import World

CUT = Work(steps=1, steps_planned=4, epochs=0.25, examples_seen=3, complete=False)


def begun(make_world: MakeWorld, **aggregation: Any) -> World:
    world = make_world()
    world.create(aggregation=aggregation)
    world.check_in()
    return world


def send(world: World, number: int, value: float = 0.5, **more: Any) -> None:
    delta = {"marks": np.full(world.size, value, np.float32)}
    world.send(number, world.body(number, delta=delta, **more))
    world.settle()


def treatment(world: World, round: int = 1) -> Treatment:
    found = world.coordinator.operators.round("marks", round).treatment
    assert found is not None
    return found


def test_each_kind_is_counted_while_the_round_is_open_and_after_a_crash(make_world: MakeWorld) -> None:
    world = begun(make_world, clip_norm=1.0, weight_cap=20)
    first, second, third, _ = world.cohort()
    send(world, first, value=0.25)  # of norm 0.7
    assert treatment(world) == Treatment()
    send(world, second, value=0.5, examples=30)
    assert treatment(world) == Treatment(clipped=1, capped=1)
    world.boot()
    assert treatment(world) == Treatment(clipped=1, capped=1), "the log has it"
    send(world, third, value=-4.0, work=CUT)
    expected = Treatment(clipped=2, capped=1, partial=1)
    assert world.coordinator.operators.round("marks", 1).status == "committed"
    assert treatment(world) == expected
    world.boot()
    assert treatment(world) == expected
    (line,) = [row[-1] for row in rounds_table(world.coordinator.operators.rounds("marks")).rows if row[0] == 1]
    assert line == "; ".join(expected.words(3))
    assert "2 of 3 updates scaled down to clip_norm" in str(line)


def test_a_device_that_claims_more_than_its_registration_is_capped(make_world: MakeWorld) -> None:
    world = begun(make_world)
    send(world, world.cohort()[0], examples=1001)
    assert treatment(world) == Treatment(capped=1)


def test_sizes_that_do_not_weigh_are_not_capped(make_world: MakeWorld) -> None:
    world = begun(make_world, weighting="equal", weight_cap=20)
    send(world, world.cohort()[0], examples=1001)
    assert treatment(world) == Treatment()


@pytest.mark.parametrize(("value", "error"), [(2.0**-24, 2.0**-9), (3e-10, 0.0), (1e-6, 0.0), (0.0, 0.0)])
def test_rounding_is_said_where_it_matters(make_world: MakeWorld, value: float, error: float) -> None:
    world = begun(make_world)
    send(world, world.cohort()[0], value=value)
    assert treatment(world).rounding == pytest.approx(error, abs=1e-4)


def test_a_sum_of_zero_is_said(make_world: MakeWorld) -> None:
    world = begun(make_world)
    for number, value in zip(world.cohort(), (1.0, -1.0, 0.0), strict=False):
        send(world, number, value=value)
    assert treatment(world) == Treatment(zero_sum=True)
    world.boot()
    assert treatment(world) == Treatment(zero_sum=True)


def test_a_second_update_of_a_device_is_counted(make_world: MakeWorld) -> None:
    world = begun(make_world)
    first = world.cohort()[0]
    world.report(first)
    for loss in (8.0, 8.0, 9.0):
        with world.refuses("duplicate", "."):
            world.send(first, world.body(first, metrics={"loss": loss}))
    assert treatment(world) == Treatment(duplicates=2)
    assert treatment(world).words(1) == ["2 second updates of a device, which may be two"]


def test_refusals_are_counted_by_reason(make_world: MakeWorld) -> None:
    world = begun(make_world)
    first, second, *_ = world.cohort()
    reason = invalid(world, first)
    assert invalid(world, second) == reason
    assert treatment(world).refused == {reason: 2}


def test_of_secure_rounds_nothing_is_told_that_depends_on_data() -> None:
    body: dict[str, object] = {"treatment": {"clipped": 3}, "partial": 1, "zero_sum": True}
    times: dict[str, Any] = {"opened_at": 1.0, "collecting_at": None, "closed_at": 2.0}
    row = RoundRow(run="marks", round=1, attempt=0, kind="secure", status="committed", reason="", body=body, **times)
    found = views.round_view(World().store, row, None).treatment
    unknown = dict.fromkeys(("clipped", "capped", "partial", "statistics_cut", "rounding", "refused"))
    assert found == Treatment(**unknown, zero_sum=True)
    assert found is not None
    assert found.words(5) == ["the sum of the updates was zero"]
    body["rounding"] = 0.75  # of the opened sum
    found = views.round_view(World().store, row, None).treatment
    assert found is not None
    assert found.rounding == 0.75
    assert found.words(5)[0].startswith("rounding is about 0.75 of the step")


def test_who_withdraws_or_sends_what_is_not_valid_is_not_late_for_weights_of_1_over_p(make_world: MakeWorld) -> None:
    world = begun(make_world, inverse_participation=4, weight_cap=100)
    first, second, third, fourth = world.cohort()
    invalid(world, third)
    world.coordinator.devices.withdraw(world.rows[fourth].device, "marks", 1, 0, "the battery is low")
    world.report(first, second)
    names = {number: world.rows[number].device for number in (first, second)}
    assert world.coordinator.core.state("marks").participation == {names[first]: (1, 1), names[second]: (1, 1)}
    world.boot()
    assert world.coordinator.core.state("marks").participation == {names[first]: (1, 1), names[second]: (1, 1)}
