"""A coordinator that dies at any moment and starts again: the run commits to the same bits, each device counts once.

The same four rounds are played once for every point at which something becomes durable, with the process dead just
before or just after it. A peer without an answer sends its request again, as real devices and operators do.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from client_sdk.protocol.devices import Receipt
from client_sdk.protocol.problems import ProblemError
from coordinator.engine import events, rounds
from coordinator.engine import state as states
from coordinator.engine.plan import Plan
from coordinator.runtime.run_log import RunLog
from coordinator.store import MemoryStore, Store
from tests.coordinator import databases
from tests.coordinator.runtime.fragile import Crash, FragileBlobs, FragileStore, Points
from tests.coordinator.world import World
from tests.rotating import in_parts

R = TypeVar("R")
BODIES = {(number, round_number): 1 + 7 * number + round_number for number in range(4) for round_number in range(1, 5)}
"""Examples of each device in each round: all different, so that a wrong set or weight gives other bits."""


class Play:
    """Four devices play four rounds: closed at the goal, at its deadline, abandoned, and the last of the run."""

    def __init__(self, store: Store, *fatal: int, **aggregation: Any) -> None:
        self.aggregation = aggregation
        self.points = Points(*fatal)
        self.world = World(4, store=FragileStore(store, self.points), blobs=FragileBlobs(self.points))  # type: ignore[arg-type]
        self.crashes: list[str] = []
        self.receipts: dict[tuple[int, int], Receipt] = {}
        self.points.armed = True

    def again(self, happening: Callable[[], R]) -> R:
        """Until it is answered: after each crash a new coordinator starts on what is durable."""
        while True:
            try:
                return happening()
            except Crash as crash:
                self.crashes.append(str(crash))
                self.boot()

    def boot(self) -> None:
        while True:
            try:
                self.world.boot()
            except Crash as crash:
                self.crashes.append(str(crash))
            else:
                return

    def create(self) -> None:
        if not self.world.coordinator.operators.runs():
            self.world.create(
                finish={"rounds": 3},
                cohort={"select": 4, "goal": 3, "quorum": 0.6},
                aggregation=self.aggregation,
            )
        self.world.settle()

    def report(self, number: int, round_number: int) -> None:
        body = self.world.body(number, round_number, examples=BODIES[number, round_number])

        def send() -> None:
            receipt = self.world.send(number, body, round_number)
            assert self.receipts.setdefault((number, round_number), receipt) == receipt, "the same receipt, always"

        self.again(send)

    def late(self, number: int, round_number: int) -> None:
        def send() -> str:
            try:
                self.world.send(number, self.world.body(number, round_number), round_number)
            except ProblemError as refusal:
                return refusal.kind
            return "accepted"

        assert self.again(send) == "late"

    def everyone_checks_in(self) -> None:
        for number in range(4):
            self.again(functools.partial(self.world.check_in, number))

    def play(self) -> Play:
        world = self.world
        self.again(self.create)
        self.everyone_checks_in()
        device = world.rows[3].device
        self.again(lambda: world.coordinator.devices.started(device, "marks", 1, 0)())
        for number in (2, 0, 1):
            self.report(number, 1)
        self.late(3, 1)

        self.everyone_checks_in()
        self.again(lambda: world.coordinator.devices.withdraw(device, "marks", 2, 0, "moved"))
        self.report(1, 2)
        self.report(0, 2)
        self.again(lambda: world.pass_time(0 if world.coordinator.operators.run("marks").round > 2 else 60))

        self.everyone_checks_in()
        self.report(3, 3)
        self.again(lambda: world.pass_time(0 if world.coordinator.operators.run("marks").round > 3 else 60))

        self.everyone_checks_in()
        for number in (3, 1, 2):
            self.report(number, 4)
        self.again(world.settle)
        return self

    def story(self) -> dict[str, object]:
        """All that must not depend on where the process died."""
        world = self.world
        view = world.coordinator.operators.run("marks")
        given_back = sum(row.kind == "Recovered" for row in world.store.events("marks", 0))
        return {
            "line": [
                (row.version, row.digest, row.parent_version, row.round, row.named_tensors)
                for row in world.store.checkpoints("marks")
            ],
            "counted": {
                number: [(world.index(row.device), row.weight) for row in world.store.contributions("marks", number)]
                for number in range(1, 5)
            },
            "refused": {number: world.refusals(number) for number in range(1, 5)},
            "rounds": [(row.round, row.status, row.reason) for row in world.store.rounds("marks")],
            "end": (view.status, view.reason, view.phase, view.seq - given_back),
            "claims": world.store.claims(),
            "receipts": {key: receipt.weight for key, receipt in self.receipts.items()},
            "blobs": sorted(world.blobs.digests()),
        }


@functools.cache
def undisturbed() -> tuple[dict[str, object], int]:
    """The story without a crash, and how many points it passes."""
    play = Play(MemoryStore()).play()
    return play.story(), len(play.points.names)


def test_the_undisturbed_story_is_the_one_that_was_meant() -> None:
    story, points = undisturbed()
    assert [(number, status) for number, status, _ in story["rounds"]] == [  # type: ignore[attr-defined]
        (1, "committed"),
        (2, "committed"),
        (3, "abandoned"),
        (4, "committed"),
    ]
    assert story["refused"] == {1: [(3, "late")], 2: [], 3: [(3, "abandoned")], 4: []}
    assert story["counted"] == {
        1: sorted_by_device([(0, 2), (1, 9), (2, 16)]),
        2: sorted_by_device([(0, 3), (1, 10)]),
        3: [],
        4: sorted_by_device([(1, 12), (2, 19), (3, 26)]),
    }
    assert story["end"][:3] == ("finished", "reached 3 rounds", "idle")  # type: ignore[index]
    assert len(story["blobs"]) == 4 + 1, (
        "four checkpoints and one list of who waited, equal in all rounds; no raw update"
    )  # type: ignore[arg-type]
    assert points > 100


def sorted_by_device(weights: list[tuple[int, int]]) -> list[tuple[int, int]]:
    rows = World(4).rows
    return sorted(weights, key=lambda item: rows[item[0]].device)


PARTS = 12


@pytest.mark.parametrize("part", in_parts(range(PARTS), of=2))
def test_dead_at_any_point_the_run_commits_to_the_same_bits(part: int) -> None:
    story, points = undisturbed()
    for point in range(1 + part, points + 1, PARTS):
        play = Play(MemoryStore(), point).play()
        assert len(play.crashes) == 1
        assert play.story() == story, play.crashes


@pytest.mark.slow
def test_dead_at_any_point_on_sqlite() -> None:
    story, points = undisturbed()
    for point in range(3, points + 1, 11):
        with databases.in_memory() as store:
            play = Play(store, point).play()
            assert len(play.crashes) == 1
            assert play.story() == story, play.crashes


@pytest.mark.slow
def test_dying_again_while_it_recovers() -> None:
    story, points = undisturbed()
    for point, later in itertools.product(range(5, points, 17), (1, 2, 3)):
        play = Play(MemoryStore(), point, point + later).play()
        assert len(play.crashes) == 2
        assert play.story() == story, play.crashes


# ---------------------------------------------------------------- what a restart finds


def test_a_restart_before_each_report_changes_nothing() -> None:
    digests = []
    for boots in (False, True):
        twin = World(8)
        twin.create()
        for number in (1, 2):
            twin.check_in()
            cohort = twin.cohort()
            for device in cohort[:3]:
                if boots:
                    twin.boot()
                twin.report(device, round=number)
        digests.append(twin.coordinator.operators.run("marks").checkpoint)
    assert digests[0] == digests[1]


def test_a_restart_gives_the_same_assignments(world: World) -> None:
    world.check_in()
    cohort = {number: world.assignment(number) for number in world.cohort()}
    world.boot()
    assert {number: world.assignment(number) for number in world.cohort()} == cohort


def test_a_restart_keeps_who_waits_in_the_pool(world: World) -> None:
    world.check_in(0, 1)
    world.boot()
    world.check_in(2, 3)
    assert world.cohort() == [0, 1, 2, 3]


def test_a_deadline_that_passed_while_the_coordinator_was_down_is_kept_at_once(world: World) -> None:
    world.check_in()
    counted = world.cohort()[:2]
    world.report(*counted)
    world.clock.at += 10_000
    world.boot()
    world.settle()
    world.require({1: counted})


def test_the_state_is_the_fold_of_the_log_from_any_snapshot(world: World) -> None:
    for number in (1, 2):
        world.play_round(number)
    world.check_in()
    world.report(world.cohort()[0], round=3)
    row = world.store.run("marks")
    assert row is not None
    assert row.snapshot is not None
    assert 0 < row.snapshot_seq < row.seq
    known = world.coordinator.core.log("marks").state
    folded = []
    for snapshot, seq in ((row.snapshot, row.snapshot_seq), (None, 0)):
        start: dict[str, Any] = {"snapshot": snapshot, "snapshot_seq": seq}
        log = RunLog(dataclasses.replace(row, **start), world.store, world.clock, lambda run, actions: None)
        folded.append(log.catch_up())
    assert folded == [known, known]
    assert rounds.pending(folded[0]) == rounds.pending(known)


def test_a_snapshot_is_the_fold_of_exactly_the_events_up_to_its_number(world: World) -> None:
    """One event more or less, and a reopened log would fold an event twice, or never."""
    tags = []
    for number in (1, 2, 3):
        world.play_round(number)
        row = world.store.run("marks")
        assert row is not None
        assert row.snapshot is not None
        state = rounds.begin(row.run, Plan.parse(row.plan), row.init)
        before: dict[str, object] = {}
        for logged in world.store.events("marks", 0):
            if logged.seq > row.snapshot_seq:
                break
            before = states.to_json(state)
            state, _ = rounds.step(state, events.from_json(logged.kind, logged.at, logged.body))
        assert states.to_json(state) == row.snapshot
        assert before != row.snapshot
        tags.append(row.snapshot_seq)
    assert tags == sorted(set(tags))


def test_repro_a_run_whose_first_event_was_lost_begins_at_the_next_start() -> None:
    """The run's row is one transaction and its first event another: dead in between, it never opened a round."""
    store = MemoryStore()
    points = Points()
    world = World(4, store=FragileStore(store, points))  # type: ignore[arg-type]
    points.armed, points.fatal = True, (2,)
    with pytest.raises(Crash, match="after a transaction is durable"):
        world.create()
    assert [(row.run, row.seq) for row in store.runs()] == [("marks", 0)]
    world.boot()
    assert world.coordinator.operators.run("marks").phase == "selecting"
    world.boot()
    assert world.coordinator.operators.run("marks").round == 1, "only once"
