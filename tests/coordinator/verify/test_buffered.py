"""``verify`` of buffered runs: clean histories, doctored rows, and logs that the engine would never write."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.store import open_store
from coordinator.store.port import ClaimRow, EventRow
from coordinator.verify.buffered import InFlight
from coordinator.verify.logged_round import LoggedRound
from tests.coordinator.engine.story import plan
from tests.coordinator.runtime.test_buffered import PLAN
from tests.coordinator.verify.history import doctored, violations
from tests.coordinator.world import World

COHORT = {"select": 300, "goal": 2, "quorum": 0.85, "select_s": 60, "collect_s": 60}


def play(folder: Path, **sections: Any) -> None:
    """Round 1: 2 and 0 count, 1 and 3 train on. Round 2: 1 counts one version behind, and 0; 3 is too stale. Round 3 is
    open: 2 trains since round 2, 3 and 1 since this round, and 3 has reported."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    world = World(5, store=store, blobs=FileBlobs(folder / BLOBS_FOLDER))
    world.create(**{**PLAN, "finish": {"rounds": 20}, **sections})

    def comes(*numbers: int) -> None:
        for number in numbers:
            world.clock.at += 1
            world.check_in(number)

    comes(0, 1, 2, 3)
    world.coordinator.devices.started(world.rows[1].device, "marks", 1, 0)()
    world.report(2, round=1)
    world.coordinator.devices.started(world.rows[3].device, "marks", 1, 0)()
    world.report(0, round=1)
    comes(0, 2)
    world.report(1, round=1, examples=21)
    world.report(0, round=2)
    with world.refuses("late", "more than most_stale"):
        world.report(3, round=1)
    comes(3, 1)
    world.report(3, round=3)
    world.coordinator.devices.withdraw(world.rows[1].device, "marks", 3, 0, "the battery is low")
    world.settle()
    store.close()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buffered")
    play(folder)
    return folder


def test_an_honest_history_is_clean(history: Path) -> None:
    assert violations(history) == []


def test_a_strategy_that_combines_is_folded_again_with_the_staleness_of_its_updates(tmp_path: Path) -> None:
    play(tmp_path, strategy={"name": "fednova"})
    assert violations(tmp_path) == []
    with doctored(tmp_path) as doctor:
        doctor.sql("UPDATE events SET body = json_set(body, '$.steps', 90) WHERE body LIKE '%\"examples\":21,%'")
    assert ("10", 2) in {(wrong.invariant, wrong.round) for wrong in violations(tmp_path)}


DOCTORINGS: dict[str, tuple[str, str, int]] = {
    "weight-without-staleness": ("3", "UPDATE contributions SET weight = 21 * 64 WHERE weight = 21 * 32", 2),
    "an-update-in-another-round": ("3", "UPDATE contributions SET round = 3 WHERE weight = 21 * 32", 2),
    "an-assignment-gone": ("claims", "DELETE FROM claims WHERE round = 2", 2),
    "an-assignment-of-another-round": ("claims", "UPDATE claims SET round = 3 WHERE round = 2", 3),
    "an-assignment-that-lasts": ("deadline", "UPDATE claims SET until = until + 9 WHERE round = 2", 2),
    "staleness-of-the-row": ("4", "UPDATE rounds SET body = json_set(body, '$.staleness[0]', 2) WHERE round = 2", 2),
    "who-was-drawn-when": ("4", "UPDATE rounds SET body = json_remove(body, '$.since') WHERE round = 2", 2),
    "a-list-of-who-waited": ("4", "UPDATE rounds SET body = json_set(body, '$.pools[0]', 'a') WHERE round = 1", 1),
    "a-refusal-gone-wrong": ("3", "UPDATE refusals SET reason = '' WHERE kind = 'late'", 1),
    "a-base-gone": ("2", "DELETE FROM checkpoints WHERE version = 1", 2),
    "goal-of-the-plan": ("plan", "UPDATE runs SET plan = json_set(plan, '$.buffered.most_stale', 0)", 3),
    "an-admission": (
        "draw",
        (
            "UPDATE events SET body = json_set(body, '$.cohort', json((SELECT json_extract(body, '$.cohort') "
            "FROM events WHERE kind = 'Drawn' ORDER BY seq LIMIT 1))) "
            "WHERE seq = (SELECT max(seq) FROM events WHERE kind = 'Drawn')"
        ),
        3,
    ),
}


@pytest.mark.parametrize("name", DOCTORINGS)
def test_a_doctoring_is_named_with_its_round(history: Path, name: str, tmp_path: Path) -> None:
    invariant, statement, number = DOCTORINGS[name]
    folder = Path(shutil.copytree(history, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.sql(statement)
    found = violations(folder)
    assert (invariant, number) in {(wrong.invariant, wrong.round) for wrong in found}, found


# ---------------------------------------------------------------- the account by itself


class Log:
    """Events of a run with two reports a commit, two places, and reports of one version back at most."""

    def __init__(self) -> None:
        self.plan = plan(cohort=COHORT, buffered={"concurrency": 2, "most_stale": 1})
        assert self.plan.buffered is not None
        self.places = InFlight(self.plan, self.plan.buffered)
        self.rounds: dict[int, LoggedRound] = {}
        self.at, self.seq = 100.0, 0
        self.says("Created", weight_unit=64)

    def says(self, kind: str, **body: Any) -> list[str]:
        self.seq += 1
        row = EventRow(run="story", seq=self.seq, at=self.at, kind=kind, body=body, link="")
        logged = self.rounds.setdefault(body.get("round", 0), LoggedRound())
        logged.add(row, self.plan)
        return [f"{one.invariant}: {one.what}" for one in self.places.add(row, logged)]

    def drawn(self, number: int, *devices: str, waiting: int | None = None) -> list[str]:
        cohort = [[device, 10] for device in devices]
        return self.says("Drawn", round=number, cohort=cohort, waiting=waiting or len(devices), pool="p")

    def reported(self, number: int, device: str, since: int) -> list[str]:
        work = {"examples": 10, "steps": 4, "steps_planned": 4, "complete": True, "treated": {}}
        return self.says(
            "Reported", round=number, attempt=since, device=device, digest=f"{device}{since}", bytes=1, **work
        )

    def committed(self, number: int) -> list[str]:
        return self.says("Committed", round=number, digest=f"v{number}", bytes=1)


def test_an_honest_log_has_nothing_against_it_and_its_numbers() -> None:
    log = Log()
    assert log.drawn(1, "a", "b") == []
    assert log.reported(1, "a", 1) == []
    assert log.drawn(1, "c") == []
    assert log.reported(1, "b", 1) == []
    assert log.committed(1) == []
    assert log.drawn(2, "a") == []
    assert log.reported(2, "c", 1) == []
    assert log.reported(2, "a", 2) == []
    log.places.complete(log.rounds, {1, 2})
    assert (log.rounds[2].since, log.rounds[2].cohort) == ({"c": 1}, {"a", "c"})
    assert (log.rounds[2].staleness, log.rounds[2].weights) == ({"c": 1, "a": 0}, {"c": 450, "a": 640})


def test_draws_take_whom_they_can_and_no_more() -> None:
    log = Log()
    assert "3 devices were drawn, when 2 places were free" in log.drawn(1, "a", "b", "c")[0]
    log = Log()
    assert "1 devices were drawn, when 2 places were free and 5 waited" in log.drawn(1, "a", waiting=5)[0]
    assert "a had a place" in " ".join(log.drawn(1, "a"))
    log.says("Withdrew", round=1, attempt=1, device="a", reason="moved")
    assert log.drawn(1, "a") == [], "it may come again"
    log.reported(1, "a", 1)
    assert "had its turn in this round" in " ".join(log.drawn(1, "a"))


def test_a_report_needs_a_place_of_that_round_and_a_version_that_is_not_too_old() -> None:
    log = Log()
    log.drawn(1, "a", "b")
    assert "has no place" in log.reported(1, "x", 1)[0]
    assert "has a place since round 1" in log.says("Started", round=1, attempt=3, device="b")[0]
    log.reported(1, "a", 1)
    assert "it has 1 reports, and the goal is 2" in log.committed(1)[0]
    log.committed(2)
    assert "has no place" in log.reported(3, "b", 1)[0], "the second commit ended it"


def test_a_commit_has_exactly_the_goal() -> None:
    log = Log()
    log.drawn(1, "a", "b")
    log.reported(1, "a", 1)
    log.reported(1, "b", 1)
    log.drawn(1, "c", "d")
    assert "it is the report 3 of its round, and the goal is 2" in log.reported(1, "c", 1)[0]
    assert "it has 3 reports" in log.committed(1)[0]


def test_a_tick_needs_a_place_whose_time_is_up() -> None:
    log = Log()
    log.drawn(1, "a")
    log.at += 59
    assert log.says("Tick") == ["deadline: event 3, Tick: no place had its time up"]
    log.at += 1
    assert log.says("Tick") == []
    assert "has no place" in log.reported(1, "a", 1)[0]


def test_assignments_are_the_places() -> None:
    log = Log()
    log.drawn(1, "a", "b")
    row = ClaimRow(device="a", run="story", round=1, attempt=0, until=160.0)
    other = ClaimRow(device="x", run="story", round=1, attempt=0, until=160.0)
    assert [one.what for one in log.places.claims([row, other], is_open=True)] == [
        "b was selected, and has no assignment",
        "x has an assignment, and no place by the log",
    ]
    (found,) = log.places.claims([row], is_open=False)
    assert found.what == "a has an assignment, and no place by the log"


def test_a_pause_and_a_stop_end_all_places_with_their_round() -> None:
    for ending in ("Paused", "Stopped"):
        log = Log()
        log.drawn(1, "a", "b")
        log.says(ending)
        if ending == "Paused":
            log.says("CommitFailed", round=1, reason="not finite")
        assert "has no place" in log.reported(2, "a", 1)[0]


def test_reports_after_their_time_are_named_once_the_time_was_ignored_for_minutes() -> None:
    log = Log()
    found: list[list[str]] = []
    for number in range(1, 4):
        log.drawn(number, "a", "b")
        log.at += 90
        found += [log.reported(number, "a", number), log.reported(number, "b", number)]
        log.committed(number)
    assert [len(one) for one in found] == [0, 0, 0, 0, 1, 0]
    assert "came 30 s after its time, and not as the first one" in found[4][0]
