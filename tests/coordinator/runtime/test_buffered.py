"""Buffered rounds of a coordinator: assignments that outlive rounds, outcomes, and death at any point."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Assignment, Receipt
from coordinator.store import MemoryStore
from coordinator.verify import verify
from tests.coordinator.runtime.test_recovery import Play
from tests.rotating import in_parts

GOAL, MOST_STALE = 2, 1
PLAN: dict[str, Any] = {
    "cohort": {"select": 300, "goal": GOAL, "quorum": 0.85, "select_s": 60, "collect_s": 60},
    "buffered": {"concurrency": 3, "most_stale": MOST_STALE, "staleness": [64, 32]},
    "finish": {"rounds": 3},
    "retention": {"rounds": 10},
}
EXAMPLES = (8, 16, 24, 40)


class Buffering(Play):
    """Four devices, three places, two reports a commit. Device 3 is slow: its version gets too old."""

    def create(self) -> None:
        if not self.world.coordinator.operators.runs():
            self.world.create(**PLAN)
        self.world.settle()

    def report(self, number: int, since: int) -> None:  # type: ignore[override]
        body = self.world.body(number, since, examples=EXAMPLES[number])

        def send() -> None:
            receipt = self.world.send(number, body, since)
            assert self.receipts.setdefault((number, since), receipt) == receipt, "the same receipt, always"

        self.again(send)

    def comes(self, *numbers: int) -> None:
        for number in numbers:
            self.again(functools.partial(self.world.check_in, number))

    def play(self) -> Buffering:
        self.again(self.create)
        self.comes(0, 1, 2, 3)
        self.report(2, 1)
        self.report(0, 1)
        self.again(self.world.settle)
        self.comes(0, 2)
        self.report(1, 1)
        self.report(0, 2)
        self.again(self.world.settle)
        self.late(3, 1)
        self.comes(3)
        self.report(2, 2)
        self.report(3, 3)
        self.again(self.world.settle)
        return self

    def assignment(self, number: int) -> Assignment:
        found = self.world.assignment(number)
        assert found is not None
        return found


@functools.cache
def undisturbed() -> tuple[dict[str, object], int]:
    play = Buffering(MemoryStore()).play()
    return play.story(), len(play.points.names)


def test_the_undisturbed_story_is_the_one_that_was_meant() -> None:
    play = Buffering(MemoryStore()).play()
    story, world = play.story(), play.world
    assert story["end"][:3] == ("finished", "reached 3 rounds", "idle")  # type: ignore[index]
    assert [(number, status) for number, status, _ in story["rounds"]] == [  # type: ignore[attr-defined]
        (1, "committed"),
        (2, "committed"),
        (3, "committed"),
    ]
    weights = {number: dict(counted) for number, counted in story["counted"].items()}  # type: ignore[attr-defined]
    assert weights[1] == {0: 8 * 64, 2: 24 * 64}
    assert weights[2] == {0: 8 * 64, 1: 16 * 32}
    assert weights[3] == {2: 24 * 32, 3: 40 * 64}
    assert story["refused"] == {1: [(3, "late")], 2: [], 3: [], 4: []}
    marks = np.zeros(world.size)
    for counted, lanes in ((weights[1], (1, 1)), (weights[2], (2, 1)), (weights[3], (2, 3))):
        for (number, weight), since in zip(sorted(counted.items()), lanes, strict=True):
            marks[number] += 2.0**since * weight / sum(counted.values())
    assert world.checkpoint()["marks"] == pytest.approx(marks, abs=1e-6)
    assert not list(verify(world.store, world.blobs)), "nothing against it"


def test_an_assignment_outlives_its_rounds_and_names_the_version_that_it_began_with() -> None:
    play = Buffering(MemoryStore())
    play.create()
    world = play.world
    play.comes(0, 1, 2, 3)
    assert world.cohort() == [0, 1, 2], "three places"
    first = play.assignment(1)
    play.report(2, 1)
    assert world.cohort() == [0, 1, 3], "who waited took the place that was free"
    play.report(0, 1)
    kept = play.assignment(1)
    assert (kept.round, kept.checkpoint) == (1, first.checkpoint)
    assert (kept.checkpoint.version, world.coordinator.operators.run("marks").version) == (0, 1)
    play.comes(0)
    assert (play.assignment(0).round, play.assignment(0).checkpoint.version) == (2, 1)
    assert world.blobs.has(kept.checkpoint.digest), "an old version is there for who may still fetch it"
    world.boot()
    assert play.assignment(1).changed(report_within_s=0) == kept.changed(report_within_s=0)


def test_the_outcome_of_a_report_names_the_version_that_it_went_into() -> None:
    play = Buffering(MemoryStore()).play()
    world = play.world
    outcome = world.coordinator.devices.outcome
    ids = [row.device for row in world.rows]
    assert (outcome(ids[1], "marks", 1).result, outcome(ids[1], "marks", 1).version) == ("counted", 2)
    assert (outcome(ids[2], "marks", 1).version, outcome(ids[2], "marks", 2).version) == (1, 3)
    late = outcome(ids[3], "marks", 1)
    assert late.result == "refused"
    assert "more than most_stale = 1 versions behind version 2" in late.reason
    again: Receipt = world.send(1, world.body(1, 1, examples=EXAMPLES[1]), 1)
    assert again == play.receipts[1, 1], "after the run too"


def test_the_outcome_of_who_trains_on_is_pending_until_its_time_is_up() -> None:
    play = Buffering(MemoryStore())
    play.create()
    world = play.world
    play.comes(0, 1, 2)
    play.report(0, 1)
    play.report(2, 1)
    device = world.rows[1].device
    assert world.coordinator.devices.outcome(device, "marks", 1).result == "pending"
    world.pass_time(61)
    assert world.assignment(1) is None
    assert world.coordinator.devices.outcome(device, "marks", 1).result == "dropped"
    with world.refuses("late", "its time was up"):
        world.send(1, world.body(1, 1), 1)


PARTS = 8


@pytest.mark.parametrize("part", in_parts(range(PARTS), of=2))
def test_dead_at_any_point_the_run_commits_to_the_same_bits(part: int) -> None:
    story, points = undisturbed()
    for point in range(1 + part, points + 1, PARTS):
        play = Buffering(MemoryStore(), point).play()
        assert len(play.crashes) == 1
        assert play.story() == story, play.crashes


def test_lanes_and_participation_follow_a_device_through_its_rounds() -> None:
    play = Buffering(MemoryStore())
    play.create()
    world = play.world
    ids = [row.device for row in world.rows]
    play.comes(0, 1, 2)
    world.clock.at += 5
    play.report(0, 1)
    play.report(2, 1)
    insight = world.coordinator.insight
    first = {one.device: one for one in insight.lanes.of_round("marks", 1).lanes}
    assert {device: one.end for device, one in first.items()} == {
        ids[0]: "reported",
        ids[1]: "waiting",
        ids[2]: "reported",
    }
    assert "it reports to a later one" in first[ids[1]].reason
    shown = insight.participation.of_run("marks", "", 9, fleet=False)
    assert {one.device: one.selected for one in shown.page} == {ids[0]: 1, ids[2]: 1}, "who trains has no end yet"
    world.clock.at += 5
    play.report(1, 1)
    (lane,) = insight.lanes.of_round("marks", 2).lanes
    assert (lane.device, lane.end, lane.reported_at) == (ids[1], "reported", world.clock.at)
    play.comes(2)
    play.report(2, 2)
    shown = insight.participation.of_run("marks", "", 9, fleet=False)
    told = {one.device: (one.selected, one.reported, one.counted, one.speed_s) for one in shown.page}
    assert told == {ids[0]: (1, 1, 1, 5.0), ids[1]: (1, 1, 1, 10.0), ids[2]: (2, 2, 2, 2.5)}
    view = world.coordinator.operators.round("marks", 2)
    assert (view.kind, view.funnel.selected, view.funnel.reported, view.funnel.dropped) == ("buffered", 2, 2, 0)


def test_a_run_in_which_nobody_trains_says_why() -> None:
    play = Buffering(MemoryStore())
    play.create()
    world = play.world

    def stalled() -> str:
        return world.coordinator.operators.run("marks").stalled

    world.pass_time(6)
    assert stalled() == "0 eligible devices wait; a round needs at least 1"
    play.comes(0)
    assert stalled() == ""
    play.report(0, 1)
    play.comes(0)
    assert world.cohort() == []
    assert stalled() == "nobody trains, and who waits has had its turn in this round: it needs 1 more reports"
    play.comes(1)
    assert stalled() == ""
