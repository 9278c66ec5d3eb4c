"""What a run's log asks the store for, and whom a change of the run wakes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from coordinator.engine import events as ev
from coordinator.runtime.core import TASKS
from coordinator.runtime.run_log import RECENT_S
from tests.coordinator.world import World


class Asked:
    """Counts what is asked of a store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._store, name)


def pause(world: World) -> None:
    """At the first replica."""
    world.coordinator.core.log("marks").submit(lambda tx, state, at: ev.Paused(at=at))


def resume(world: World) -> None:
    world.coordinator.core.log("marks").submit(lambda tx, state, at: ev.Resumed(at=at))


def test_a_moment_ago_is_asked_once_by_many_and_a_replicas_change_is_seen_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.replica().core.log("marks")
    asked = Asked(world.store)
    monkeypatch.setattr(log, "_store", asked)
    seen = log.recent()
    world.clock.at += RECENT_S / 4
    pause(world)
    assert [log.recent() for _ in range(3)] == [seen] * 3
    assert asked.calls == {"head": 1}
    world.clock.at += RECENT_S
    assert log.recent().status == "paused"
    resume(world)
    assert log.recent().status != "paused", "the clock stands still: nothing is known of a moment ago"


def test_what_this_replica_has_committed_is_not_asked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.coordinator.core.log("marks")
    asked = Asked(world.store)
    monkeypatch.setattr(log, "_store", asked)
    pause(world)
    world.clock.at += RECENT_S / 4
    assert log.recent().status == "paused"
    assert asked.calls == {"transaction": 1}


def test_threads_that_perform_actions_are_woken_only_where_there_is_one(world: World) -> None:
    signals = world.coordinator.core.signals
    seen = [signals.version(key) for key in TASKS]
    run = signals.version("run:marks")
    world.coordinator.core.hand_out("marks", [])
    assert [signals.version(key) for key in TASKS] == seen
    assert signals.version("run:marks") != run
