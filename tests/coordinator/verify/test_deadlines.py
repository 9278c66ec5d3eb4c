"""An engine with a wrong deadline writes a log that replays without a deviation. The account of deadlines that
``verify`` makes of the plan's times and the log's names it all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.state import RunState
from coordinator.verify import verify
from tests.coordinator.runtime.test_workers import Center
from tests.coordinator.served import SECTION, Phone, Served
from tests.coordinator.world import World

STEP = rounds.step


@dataclass(frozen=True)
class Shifted:
    """A ``step`` in which a phase ends at another time. ``by_s``: so much later."""

    phase: str
    by_s: float

    def __call__(self, state: RunState, event: ev.Event) -> rounds.Step:
        following, effects = STEP(state, event)
        now, before = following.round, state.round
        same = before is not None and now is not None and (before.phase, before.deadline) == (now.phase, now.deadline)
        if now is None or now.phase != self.phase or now.deadline is None or same:
            return following, effects
        later = [replace(one, until=one.until + self.by_s) if isinstance(one, fx.Claim) else one for one in effects]
        return following.with_round(replace(now, deadline=now.deadline + self.by_s)), later


def closed_at_quorum(state: RunState, event: ev.Event) -> rounds.Step:
    """A round does not wait for its goal."""
    following, effects = STEP(state, event)
    current = following.round
    if current is not None and current.deadline is not None and current.count("reported") >= 2:
        following, more = STEP(following, ev.Tick(at=current.deadline))
        effects = [*effects, *more]
    return following, effects


def ignores_time(state: RunState, event: ev.Event) -> rounds.Step:
    return (state, []) if isinstance(event, ev.Tick) else STEP(state, event)


def lease_is_taken_from_its_worker(state: RunState, event: ev.Event) -> rounds.Step:
    if isinstance(event, ev.Leased) and state.phase == "training":
        state, _ = STEP(state, ev.Tick(at=state.current.deadline or event.at))
    return STEP(state, event)


def found(world: World) -> set[tuple[str, int, str]]:
    return {(wrong.invariant, wrong.round, wrong.what) for wrong in verify(world.store)}


def two_of_four_report() -> World:
    world = World(6)
    world.create()
    world.check_in()
    world.report(*world.cohort()[:2])
    return world


def ends_at(seconds: float) -> Callable[[], World]:
    def play() -> World:
        world = two_of_four_report()
        world.pass_time(seconds)
        return world

    return play


def open_round() -> World:
    world = World(6)
    world.create()
    world.check_in()
    return world


def goes_on_for_minutes() -> World:
    """Devices report one, two and three minutes after the deadline, and nothing ends the round."""
    world = World(6)
    world.create(cohort={"select": 6, "goal": 6, "collect_s": 60})
    world.check_in()
    for device in world.cohort()[:3]:
        world.pass_time(65)
        world.report(device)
    return world


def few_wait(seconds: float) -> Callable[[], World]:
    def play() -> World:
        world = World(6)
        world.create()
        world.check_in(0, 1)
        world.pass_time(seconds)
        return world

    return play


def datacenter(seconds: float) -> Callable[[], World]:
    """The worker says nothing for so long, before another one asks."""

    def play() -> World:
        center = Center(6)
        center.fall_back()
        center.poll(center.worker(), "i1", installation="here")
        center.pass_time(seconds)
        center.poll(center.worker("other"), "i2", installation="there")
        return center

    return play


def another_worker_asks() -> World:
    center = Center(6)
    center.fall_back()
    center.poll(center.worker(), "i1", installation="here")
    other = center.worker("other").worker
    lease = partial(ev.Leased, round=2, attempt=2, fence=2, worker=other, instance="i2", waiting=0)
    center.coordinator.core.submit("marks", lambda at: lease(at=at))
    return center


def exchange(seconds: float, **secure: Any) -> Callable[[], World]:
    """One of six devices sends no masked vector, and is not waited for longer than this."""

    def play() -> World:
        world = Served()
        cohort = {"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60}
        world.secure_run(cohort=cohort, secure={**SECTION, **secure})
        world.phones[2].stops = "mask"
        world.begin()
        for _ in range(3):
            world.play()
            world.pass_time(seconds)
        world.close()
        return world

    return play


def by_a_replica_that_is_behind() -> World:
    """The clock of the replica that takes the last share is behind, and then nobody sends a masked vector."""
    world = Served()
    world.secure_run(cohort={"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60})
    for phone in world.phones:
        phone.stops = "mask"
    world.begin()
    last, turn = world.phones[-1], world.turn

    def turned(phone: Phone) -> bool:
        behind_s = 3 if phone is last and world.state.phase == "sharing" else 0
        world.clock.at -= behind_s
        try:
            return turn(phone)
        finally:
            world.clock.at += behind_s

    world.turn = turned  # type: ignore[method-assign]
    world.play()
    assert world.state.phase == "masking"
    world.pass_time(18)
    assert world.state.current.attempt == 1 or world.state.phase != "masking"
    world.close()
    return world


CASES: dict[str, tuple[Any, Callable[[], World], str]] = {
    "collecting-ends-early": (Shifted("collecting", -30), ends_at(31), "the time was not over"),
    "collecting-ends-late": (Shifted("collecting", 4), open_round, "its plan gives it 60 s"),
    "collecting-goes-on": (ignores_time, goes_on_for_minutes, "after the deadline"),
    "closed-at-quorum": (closed_at_quorum, two_of_four_report, "it was closed before its deadline"),
    "selecting-ends-early": (Shifted("selecting", -6), few_wait(5), "from a pool that was not full"),
    "selecting-ends-late": (Shifted("selecting", 4), few_wait(0), "and the plan gives 10 s"),
    "lease-ends-early": (Shifted("training", -20), datacenter(21), "the time was not over"),
    "lease-is-taken": (lease_is_taken_from_its_worker, another_worker_asks, "took the lease"),
    "exchange-ends-early": (Shifted("masking", -10), exchange(11), "the time was not over"),
    "exchange-goes-on-early": (Shifted("masking", -3), exchange(3, quiet_s=None), "the time was not over"),
}
"""An engine with a wrong deadline, what happens, and what is said of it."""


@pytest.mark.parametrize("case", CASES)
def test_an_engine_with_a_wrong_deadline_is_named(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, play, what = CASES[case]
    monkeypatch.setattr(rounds, "step", wrong)
    named = found(play())
    assert {invariant for invariant, _, _ in named} == {"deadline"}, named
    assert any(what in text for _, _, text in named), named


@pytest.mark.parametrize(
    "play",
    [
        ends_at(61),
        open_round,
        two_of_four_report,
        few_wait(11),
        few_wait(0),
        datacenter(41),
        datacenter(1),
        exchange(21),
        exchange(6, quiet_s=None),
        by_a_replica_that_is_behind,
    ],
)
def test_the_right_engine_is_not(play: Callable[[], World]) -> None:
    assert found(play()) == set()


def test_one_update_after_the_deadline_is_no_violation() -> None:
    """A coordinator that was away takes what comes before it looks at its clock."""
    world = two_of_four_report()
    number = world.cohort()[0]
    world.clock.at += 3600
    world.coordinator.tick = lambda: None
    world.report(number)
    assert found(world) == set()
