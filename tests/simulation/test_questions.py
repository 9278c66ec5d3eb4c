"""Each question on a tiny fleet: its answer has the sign that it must have, and the same setting gives the same."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from simulation import Behaviour, simulate
from simulation.cli import app
from simulation.questions import QUESTIONS, Answer, Setting, ask
from simulation.questions.measures import Measured, device_hours, spent_s
from simulation.questions.setting import BEHAVIOUR, CLASSES, Softmax, class_of, data_of, fleet
from simulation.virtual.behaviour import Conduct, Habits, Phase
from tests.rotating import on_day

pytestmark = pytest.mark.slow
TINY = Setting(devices=400, goal=24, rounds=4, target=None, seeds=1)


@cache
def answer(name: str) -> Answer:
    return ask(name, TINY)


def runs(name: str) -> list[Measured]:
    return [one for (one,) in answer(name).arms.values()]


@on_day(1, of=2)
def test_over_selection_shortens_rounds_and_costs_device_hours() -> None:
    """With as many as are needed a round lasts until its deadline, since some drop out."""
    assert list(answer("over-selection").arms) == ["24 of 24", "24 of 25", "24 of 28", "24 of 33"]
    found = runs("over-selection")
    assert found[0].round_s == 600.0
    assert found[0].round_s > found[2].round_s > found[3].round_s
    assert found[0].wasted < found[2].wasted < found[3].wasted
    assert found[0].counted < found[3].counted == 24


@on_day(0, of=2)
def test_a_high_quorum_at_an_early_deadline_abandons_rounds() -> None:
    found = dict(zip(answer("deadline").arms, runs("deadline"), strict=True))
    assert found["2 min, quorum 90%"].abandoned > found["2 min, quorum 50%"].abandoned
    assert found["2 min, quorum 50%"].counted < found["10 min, quorum 50%"].counted
    assert found["2 min, quorum 50%"].round_s < found["10 min, quorum 50%"].round_s
    assert found["2 min, quorum 90%"].wasted > found["2 min, quorum 50%"].wasted


def test_partial_work_is_more_reports() -> None:
    dropped, seen, full = runs("partial")
    assert dropped.counted < seen.counted == full.counted
    assert dropped.wasted > seen.wasted
    assert seen.accuracy != full.accuracy


@on_day(1, of=2)
def test_old_phones_are_never_heard_where_the_first_ones_close_a_round() -> None:
    first, everybody, partial, whole = runs("never-heard")

    def heard(run: Measured, name: str) -> float:
        return run.classes[name].counted / run.classes[name].selected

    assert heard(first, "old") < heard(first, "new")
    assert heard(whole, "old") < heard(partial, "old")
    assert heard(first, "old") < heard(everybody, "old")
    assert all(run.classes[name].accuracy for run in (first, whole) for name in CLASSES)


@on_day(0, of=2)
def test_more_epochs_move_fewer_bytes_a_point() -> None:
    found = runs("cost")
    assert found[0].down_mb / found[0].points > found[3].down_mb / found[3].points
    assert found[0].device_hours < found[3].device_hours


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_has_a_page_and_a_picture(name: str, tmp_path: Path) -> None:
    one = answer(name)
    page = one.page("a.svg")
    assert page.startswith(f"## {QUESTIONS[name].title}\n")
    assert "](a.svg)" in page
    for arm in one.arms:
        assert f"| {arm} | " in page
    one.draw(tmp_path / "a.svg")
    one.draw(tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_target_that_is_not_reached_is_said() -> None:
    found = ask("over-selection", Setting(devices=100, goal=4, rounds=1, target=0.999, seeds=1))
    assert "No run reached an accuracy of 0.999" in found.page("a.svg")
    assert "| not reached |" in found.page("a.svg")


def test_a_target_of_the_untrained_model_is_refused() -> None:
    with pytest.raises(ValueError, match="before round 1: give a higher target"):
        ask("cost", replace(TINY, target=0.05))


def test_the_same_setting_gives_the_same_answer() -> None:
    small = Setting(devices=100, goal=6, rounds=2, target=None, seeds=2)
    one, again = ask("over-selection", small), ask("over-selection", small)
    assert one.arms == again.arms
    first, second = one.arms["6 of 7"]
    assert first != second, "another fleet"


@pytest.mark.parametrize(("phase", "seconds"), [("fetch", 1.0), ("train", 2.0 + 5.0), ("send", 2.0 + 10.0 + 2.0)])
def test_who_vanishes_has_spent_half_of_its_phase(phase: Phase, seconds: float) -> None:
    conduct = Conduct(step_s=1.0, fetch_s=2.0, send_s=4.0, vanishes=True, share=1.0, phase=phase)
    assert spent_s(conduct, 10.0) == seconds


def test_who_stays_spends_all_of_it_and_others_until_they_are_gone() -> None:
    stays = {"step_s": 1.0, "fetch_s": 2.0, "send_s": 4.0, "vanishes": False, "share": 1.0}
    assert spent_s(Conduct(**stays), 10.0) == 16.0
    assert spent_s(Conduct(**stays, charge_s=3.0), 10.0) == 5.0
    assert spent_s(Conduct(**stays, available_s=7.0), 10.0) == 7.0


def test_device_hours_of_an_ideal_round_are_those_on_paper() -> None:
    """Nobody is slow, vanishes or comes late: hours of all devices are those of the updates."""
    clients = fleet(replace(TINY, devices=6), data_of(0).train, 0)
    plan = {
        "name": "ideal",
        "task": {"batch_size": 20, "epochs": 3},
        "cohort": {"select": 6, "goal": 6},
        "finish": {"rounds": 2},
    }
    own = Behaviour(step_s=36.0, network_s=18.0)
    history = simulate(plan, Softmax(), clients, behaviour=own, progress=False)
    whole, used = device_hours(history, clients, Habits(own, lambda device: "", 0))
    steps = sum(3 * math.ceil(clients.examples(name) / 20) for name in clients)
    assert whole == used == pytest.approx(2 * (steps * 36.0 + 6 * 18.0) / 3600)


def test_old_phones_have_other_labels_than_new_ones() -> None:
    clients = fleet(TINY, data_of(0).train, 0)
    held = {name: set[int]() for name in CLASSES}
    for number in range(90):
        labels = clients.holdings.labels(number)
        assert labels is not None
        held[class_of(clients.id(number))] |= set(np.unique(labels).tolist())
    assert held["new"] == set(range(7))
    assert held["old"] == set(range(3, 10))
    assert BEHAVIOUR.speed_sigma == 0.6


def test_the_command_writes_a_page_and_a_picture(tmp_path: Path) -> None:
    tiny = ["--goal", "6", "--devices", "60", "--rounds", "2", "--seeds", "1", "--json", "--quiet"]
    done = CliRunner().invoke(app, ["ask", "partial", "--out", str(tmp_path), *tiny])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert list(found["runs"]) == ["dropped", "by examples seen", "in full"]
    assert Path(found["page"]).read_text("utf-8").startswith("## Partial work")
    assert Path(found["picture"]).read_text("utf-8").startswith("<?xml")
    refused = CliRunner().invoke(app, ["ask", "why", "--out", str(tmp_path)])
    assert refused.exit_code == 1
