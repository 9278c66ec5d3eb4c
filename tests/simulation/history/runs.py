"""Runs made by the real coordinator for the tests of this folder: rounds of every fate, late devices, scores."""

from __future__ import annotations

from typing import Any

from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import MetricReport
from tests.coordinator.world import World


def score(world: World, run: str = "marks", source: str = "evaluator", **metrics: float) -> None:
    """An evaluator scores the run's newest checkpoint."""
    view = world.coordinator.operators.run(run)
    report = MetricReport(
        version=view.version, digest=view.checkpoint, source=source, score=Score(examples=100, metrics=metrics)
    )
    world.coordinator.operators.report_metrics(run, report)


def play(world: World, run: str = "marks") -> World:
    """Round 1 commits, with a device that is late; round 2 is abandoned; round 3 commits, and a member withdraws."""
    world.play_round(1)
    late = next(number for number in range(world.size) if world.rows[number].device in left_out(world, 1))
    with world.refuses("late"):
        world.send(late, world.body(late, 1), 1)
    score(world, accuracy=0.5, loss=1.25)
    score(world, source="clients", accuracy=0.45)
    score(world, source="clients.p10", accuracy=0.3)
    world.check_in()
    world.report(world.cohort()[0], round=2)
    world.pass_time(61)
    world.check_in()
    cohort = world.cohort()
    world.coordinator.devices.withdraw(world.rows[cohort[0]].device, run, 3, 0, "the battery is low")
    world.settle()
    world.report(*cohort[1:], round=3, metrics={"loss": 0.25})
    score(world, accuracy=0.75, loss=0.75)
    score(world, source="clients", accuracy=0.7)
    score(world, source="clients.p10", accuracy=0.55)
    return world


def left_out(world: World, round: int, run: str = "marks") -> set[str]:
    """Devices of the cohort that do not count."""
    row = world.store.round(run, round)
    assert row is not None
    cohort: Any = row.body["cohort"]
    return set(cohort) - {item.device for item in world.store.contributions(run, round)}


def played(**sections: Any) -> World:
    """Eight devices and the rounds of ``play``; round 4 is open. ``sections``: of the plan."""
    world = World(8)
    world.create(**sections)
    return play(world)
