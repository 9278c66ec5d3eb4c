"""Participation lists every client, also those that never counted, and says where lateness is concentrated."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import Behaviour, History, simulate
from tests.simulation.test_treatment import INIT, client, learner

CLIENTS = {f"c{number:02}": client(4, 0.5) for number in range(20)}
KINDS = {name: "slow" if number % 4 == 0 else "fast" for number, name in enumerate(CLIENTS)}
FLEET = {"slow": Behaviour(step_s=9.0), "fast": Behaviour(step_s=0.5)}
PLAN = {"name": "heard", "cohort": {"select": 12, "goal": 8, "quorum": 0.5}, "finish": {"rounds": 12}}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, Path]:
    folder = tmp_path_factory.mktemp("heard") / "run"
    return simulate(PLAN, learner, CLIENTS, init=INIT, behaviour=FLEET, classes=KINDS, folder=folder), folder


def test_every_client_is_listed_with_its_class_and_what_became_of_it(played: tuple[History, Path]) -> None:
    history, _ = played
    found = {one.device: one for one in history.participants}
    assert list(found) == list(CLIENTS)
    assert {name: one.device_class for name, one in found.items()} == KINDS
    for one in found.values():
        assert one.selected == one.reported + one.late + one.dropped + one.withdrawn + one.refused
    assert {one.device: one.counted for one in found.values()} == dict(history.participation)
    rounds = [row for row in history.rounds if row.status != "open"]
    for name in ("selected", "reported", "late", "dropped"):
        assert sum(getattr(one, name) for one in found.values()) == sum(getattr(row, name) for row in rounds), name
    never = {name for name, one in found.items() if not one.counted}
    assert {KINDS[name] for name in never} == {"slow"}
    late = [one for one in found.values() if one.late]
    assert late
    assert all(one.speed_s == 11.0 for one in late if not one.counted), "a late device has a speed too"
    assert {one.speed_s for name, one in found.items() if KINDS[name] == "fast"} == {2.5}


def test_the_frame_and_the_folder_have_them_all(played: tuple[History, Path]) -> None:
    history, folder = played
    frame = history.to_pandas("participation")
    assert list(frame["device"]) == list(CLIENTS)
    assert {"class", "selected", "reported", "counted", "late", "speed_s"} <= set(frame.columns)
    with History.open(folder) as opened:
        assert opened.participants == history.participants


def test_a_client_that_never_arrived_is_in_it_too() -> None:
    plan = {"name": "few", "cohort": {"select": 2, "goal": 2}, "finish": {"rounds": 1}}
    history = simulate(plan, learner, CLIENTS, init=INIT)
    assert len(history.participants) == len(history.participation) == len(history.to_pandas("participation")) == 20
    assert sum(one.selected for one in history.participants) == 2


def test_the_summary_says_that_lateness_is_concentrated(played: tuple[History, Path]) -> None:
    history, _ = played
    assert "Lateness is concentrated: " in history.summary()
    assert "by class: slow " in history.summary()
    even = simulate(PLAN, learner, CLIENTS, init=INIT, behaviour=Behaviour(dropout=0.2))
    assert "Lateness" not in even.summary()
