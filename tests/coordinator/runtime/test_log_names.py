"""Lines of the log that no request writes name what they are about too: the run, the round, the device."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.blobs import DiskFull
from coordinator.engine import effects as fx
from coordinator.folding.aggregator import Aggregator
from coordinator.runtime import driver as drivers
from coordinator.runtime import log_context
from tests.coordinator.runtime.test_driver import RunningClock, check_in, driven, report, until, version
from tests.coordinator.runtime.test_run_errors import DrivenWorld, spoil
from tests.coordinator.world import World


class Lines(logging.Handler):
    """Each line with the names that the log of a server adds to it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(dict(log_context.merge(None, "", {"event": record.getMessage()})))

    def about(self, words: str) -> list[dict[str, Any]]:
        """What lines with these words are about."""
        found = [line for line in self.lines if words in line["event"]]
        return [{name: value for name, value in line.items() if name != "event"} for line in found]


@pytest.fixture
def log() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger("quorate").addHandler(handler)
    yield handler
    logging.getLogger("quorate").removeHandler(handler)


@pytest.mark.parametrize("error", [DiskFull("the disk is full"), ValueError("a bug")])
def test_an_action_that_fails(log: Lines, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Also where the line is written by what the action calls."""
    monkeypatch.setattr(drivers, "_RETRY_S", 0.05)
    monkeypatch.setattr(drivers, "_IDLE_S", 0.02)
    world = World(4, clock=RunningClock())
    fold, failed = Aggregator.fold, []

    def failing(self: Aggregator, round: int, contribution: fx.Contribution, small: Any) -> None:
        if not failed:
            failed.append(contribution.device)
            logging.getLogger("quorate.deep").warning("inside the action")
            raise error
        fold(self, round, contribution, small)

    monkeypatch.setattr(Aggregator, "fold", failing)
    world.create(cohort={"select_s": 3600, "collect_s": 3600})
    with driven(world.coordinator):
        check_in(world, 0, 1, 2, 3)
        until(lambda: len(world.cohort()) == 4, "the draw")
        report(world, 0)
        until(lambda: bool(log.about("will try again")), "the failure")
        report(world, 1, 2)
        until(lambda: version(world) == 1, "the commit")
    about = {"run": "marks", "round": 1, "device": world.rows[0].device}
    machine = isinstance(error, DiskFull)
    assert log.about("will try again") == [about]
    assert log.about("inside the action") == [about]
    assert log.about("could not store data") == ([about] if machine else [])
    assert log_context.names() == {}


def test_a_run_that_cannot_be_handled(log: Lines) -> None:
    world = DrivenWorld(4)
    world.create(name="first")
    world.create(name="second")
    spoil(world)
    world.pass_time(11)
    assert log.about("cannot be handled; other runs go on") == [{"run": "first"}]


def test_names_inside_others_end_with_their_block() -> None:
    with log_context.about(run="a", round=1):
        with log_context.about(device="d-1", round=2):
            assert log_context.names() == {"run": "a", "round": 2, "device": "d-1"}
        assert log_context.names() == {"run": "a", "round": 1}
    assert log_context.names() == {}
