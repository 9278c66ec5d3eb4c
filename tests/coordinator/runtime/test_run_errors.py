"""One run that cannot be handled stops neither the deadlines of the others nor their recovery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from client_sdk.protocol.problems import ProblemError
from coordinator.commands import tables
from coordinator.runtime import core, sweeping
from coordinator.runtime.coordinator import Task
from coordinator.service.observe import Meters
from coordinator.store.port import StoreError
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


class DrivenWorld(World):
    """Actions that fail stay undone, as the driver leaves them until later."""

    def settle(self) -> None:
        perform = self.coordinator.perform

        def patient(task: Task) -> None:
            with suppress(ValueError, StoreError):
                perform(task)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.coordinator, "perform", patient)
            super().settle()


@pytest.fixture
def world() -> World:
    """Two runs: *first* is made unreadable by the tests, *second* has a deadline to handle."""
    made = DrivenWorld(8)
    made.create(name="first")
    made.create(name="second")
    return made


def spoil(world: World, run: str = "first") -> None:
    """Somebody of a newer version has written an event that this one does not know."""
    with world.store.transaction(run) as tx:
        tx.append(run, [(world.clock.at, "Blessed", {})])


def missed_by(world: World, run: str) -> int:
    """How often the deadline of its selection was handled."""
    return world.coordinator.operators.round(run, 1).missed


def test_the_deadlines_of_other_runs_are_handled(world: World, caplog: pytest.LogCaptureFixture) -> None:
    spoil(world)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            world.pass_time(11)
    assert missed_by(world, "second") == 3
    noted = [record for record in caplog.records if "first" in record.getMessage()]
    assert len(noted) == 1, "logged once, with the run's name"
    assert "second" not in world.coordinator.core.process.run_errors.all()


def selected(world: World) -> tuple[str, str]:
    """(the run whose cohort all devices are, the other one)."""
    world.check_in()
    runs = ["first", "second"]
    runs.sort(key=lambda run: world.coordinator.operators.run(run).phase)
    assert world.coordinator.operators.run(runs[0]).phase == "collecting"
    return runs[0], runs[1]


def report(world: World, run: str, *devices: int) -> None:
    for device in devices:
        world.send(device, world.body(device, run=run), run=run)


def test_other_runs_are_recovered(world: World) -> None:
    run, other = selected(world)
    cohort = [number for number in world.cohort() if (found := world.assignment(number)) and found.run == run]
    spoil(world, other)
    world.boot()
    assert "Blessed" in world.coordinator.core.process.run_errors.of(other)
    report(world, run, *cohort[:3])
    assert world.coordinator.operators.run(run).version == 1


def test_status_shows_the_run_that_is_not_handled(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(world)
    world.pass_time(1)
    views = {view.run: view for view in world.coordinator.operators.runs()}
    assert "Blessed" in views["first"].trouble
    assert not views["second"].trouble
    tables.print_runs([*views.values()], as_json=False)
    tables.print_run(views["first"])
    shown = capsys.readouterr().out
    assert "not handled" in shown
    assert world.coordinator.healthy()["run_errors"] == {"first": views["first"].trouble}


def test_a_run_that_is_readable_again_is_handled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.coordinator.core.log("first")
    catch_up, failing = log.catch_up, [True]

    def flaky() -> Any:
        if failing[0]:
            raise StoreError("the database was locked")
        return catch_up()

    monkeypatch.setattr(log, "catch_up", flaky)
    world.pass_time(11)
    assert world.coordinator.core.process.run_errors.all() == {"first": "StoreError: the database was locked"}
    assert missed_by(world, "second") == 1
    failing[0] = False
    world.pass_time(1)
    assert world.coordinator.core.process.run_errors.all() == {}
    assert missed_by(world, "first") == 1


def test_a_run_that_could_not_be_recovered_is_recovered_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator dies with a commit that nobody performs; at the next start the database is locked for a while."""
    run, _ = selected(world)
    cohort = [number for number in world.cohort() if (found := world.assignment(number)) and found.run == run]
    report(world, run, *cohort[:2])
    with monkeypatch.context() as patch:
        patch.setattr(world, "settle", lambda: None)
        report(world, run, cohort[2])
    assert world.coordinator.operators.run(run).phase == "committing"
    find = core.Core.log

    def locked(self: core.Core, name: str) -> Any:
        if name == run:
            raise StoreError("the database was locked")
        return find(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(core.Core, "log", locked)
        patch.setattr(core.Core, "require_extensions", lambda self: None)
        world.boot()
    assert world.coordinator.core.process.run_errors.of(run)
    world.pass_time(31)
    assert world.coordinator.operators.run(run).version == 1
    assert world.coordinator.core.process.run_errors.all() == {}


def test_nothing_is_swept_where_a_log_cannot_be_read(world: World) -> None:
    stray = world.blobs.put(b"nobody names this")
    assert sweeping.sweep(world.coordinator.core) == 1
    stray = world.blobs.put(b"nobody names this")
    spoil(world)
    world.boot()
    assert sweeping.sweep(world.coordinator.core) == 0
    assert world.blobs.has(stray)


def test_operators_read_a_run_that_is_not_handled(world: World) -> None:
    """Its rows are shown; what would change it is refused with the reason."""
    world.pass_time(11)
    operators, before = world.coordinator.operators, world.coordinator.operators.rounds("first")
    spoil(world)
    assert "Blessed" in operators.run("first").trouble
    shown = operators.rounds("first")
    assert [view.round for view in shown] == [view.round for view in before]
    assert operators.round("first", 1).missed == before[0].missed == 1
    with pytest.raises(ProblemError, match="no round 99"):
        operators.round("first", 99)
    assert operators.events("first")[-1].kind == "Blessed"
    assert operators.checkpoints("first")
    assert operators.metrics("first") == []
    change: tuple[Callable[[], object], ...] = (
        lambda: operators.pause("first"),
        lambda: operators.resume("first"),
        lambda: operators.stop("first"),
        lambda: operators.advance("first", "me"),
    )
    for attempt in change:
        with pytest.raises(ProblemError, match=r"cannot handle run first: ValueError: .*Blessed") as refused:
            attempt()
        assert refused.value.kind == "conflict"


def test_meters_count_the_rounds_of_a_run_that_is_not_handled(world: World) -> None:
    world.pass_time(11)
    for run in ("first", "second"):
        world.coordinator.operators.stop(run)
    spoil(world)
    text = Meters(world.coordinator).text().decode()
    assert 'quorate_rounds_total{kind="federated",outcome="abandoned"} 2.0' in text


def test_meters_count_selections_that_found_too_few_devices(make_world: MakeWorld) -> None:
    """An unchanged failure is one row, so its repetitions were in no meter."""
    world = make_world(4)
    world.create()
    meters = Meters(world.coordinator)

    def missed() -> float:
        (line,) = [
            one for one in meters.text().decode().splitlines() if one.startswith("quorate_missed_selections_total")
        ]
        return float(line.split()[-1])

    assert missed() == 0
    for found in (1, 2):
        world.pass_time(10)
        assert missed() == found, "of the round under way"
    assert world.play_round(1)
    assert missed() == 2
    world.pass_time(10)
    assert missed() == 3
    assert Meters(world.replica()).text().count(b"quorate_missed_selections_total 3.0") == 1
