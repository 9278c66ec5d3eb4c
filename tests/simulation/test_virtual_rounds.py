"""Rounds in virtual time: who is busy, who is late, what a deadline means; and that a run which was stopped goes on as
if it had not been."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.learning.errors import OutOfTime
from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.datafolder import DATABASE_FILE
from simulation import Behaviour, History, simulate
from simulation.virtual import simulation as virtual
from simulation.virtual.behaviour import Conduct, work_done
from simulation.virtual.simulation import garbage_frozen

pytestmark = pytest.mark.whole

FLEET = Behaviour(dropout=0.1, stragglers=0.3, speed_sigma=1.5, jitter_sigma=0.3, step_s=0.5)


class Stepping:
    """A learner that asks its deadline before each step, as ``Learner`` does."""

    def initial(self, seed: int) -> Tensors:
        return {"w": np.zeros(2, np.float32)}

    def train(self, model: Tensors, data: Any, task: Task, *, deadline: Any, **_: Any) -> Update:
        x, _ = data
        planned, steps, w = len(x), 0, model["w"].copy()
        while steps < planned and deadline() > 0:
            w += 0.1 * (x[steps] - w)
            steps += 1
        work = Work(steps=steps, steps_planned=planned, examples_seen=steps, complete=steps == planned)
        return Update({"w": w - model["w"]}, len(x), work=work)


def clients(count: int, sizes: tuple[int, ...] = (2, 5, 9)) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    held = {}
    for number in range(count):
        size = sizes[number % len(sizes)]
        held[f"c{number:02d}"] = (rng.standard_normal((size, 2)).astype(np.float32), np.zeros(size, np.int64))
    return held


def plan(rounds: int = 6, **more: Any) -> dict[str, Any]:
    cohort = {"select": 8, "goal": 5, "quorum": 0.6, "collect_s": 60.0, **more.pop("cohort", {})}
    task = {"batch_size": 1, **more.pop("task", {})}
    return {"name": "test", "task": task, "cohort": cohort, "finish": {"rounds": rounds}, **more}


def happened_in(history: History) -> list[tuple[Any, ...]]:
    """All that is known of the rounds that have ended, with times since the run began."""
    began = history.rounds[0].opened_at
    return [
        (one.digest, one.selected, one.reported, one.late, one.dropped, one.withdrawn, one.opened_at - began)
        for one in history.rounds
        if one.status != "open"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cohort",
    [
        {},
        {"pool": 12},
        {"select": 14, "goal": 14, "quorum": 0.3, "select_s": 4.0, "collect_s": 9.0},
        {"choose": "by_examples", "pool": 9, "min_examples": 3},
    ],
    ids=lambda cohort: ",".join(cohort) or "late devices",
)
def test_repro_resumed_run_knows_who_was_busy(cohort: dict[str, Any], tmp_path: Path) -> None:
    """Devices that trained on when their round had closed were free after a resume, and busy without one."""
    asked: dict[str, Any] = {"behaviour": FLEET, "progress": False}
    wanted = plan(cohort=cohort, aggregation={"weighting": "equal"})
    whole = simulate(wanted, Stepping(), clients(14), **asked)
    for _ in range(12):
        part = simulate(wanted, Stepping(), clients(14), folder=tmp_path, rounds=1, **asked)
        if part.status == "finished":
            break
    assert happened_in(part) == happened_in(whole)
    assert sum(found.late + found.dropped for found in whole.rounds) > 0


def test_same_rounds_whenever_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are counted from now; sums of seconds round alike at any hour."""
    found = []
    for now in (1.7e9, 1.7e9 + 0.1234567, 1.7e9 + 0.7654321):
        monkeypatch.setattr(virtual.time, "time", lambda now=now: now)
        cohort = {"collect_s": 7.3}
        found.append(
            happened_in(simulate(plan(cohort=cohort), Stepping(), clients(14), behaviour=FLEET, progress=False))
        )
    assert found[0] == found[1] == found[2]


def test_repro_devices_that_get_free_fill_the_pool() -> None:
    """Nobody got free while the cohort was selected: every other round waited a minute, for fewer devices."""
    history = simulate(plan(8), Stepping(), clients(10), progress=False)
    assert [found.selected for found in history.rounds[:8]] == [8] * 8
    assert all(found.seconds is not None and found.seconds < 10 for found in history.rounds[:8])
    slow = simulate(plan(8), Stepping(), clients(9, (2, 2, 20)), behaviour=Behaviour(step_s=1.0), progress=False)
    assert {found.selected for found in slow.rounds[:8]} == {8}
    assert max(found.seconds or 0 for found in slow.rounds) > 10


@pytest.mark.slow
def test_repro_withdrawals_close_a_round_while_updates_are_on_their_way() -> None:
    """``_collect`` went on with a round that a withdrawal had closed, and asked for an update that never was."""
    cohort = {"select": 12, "goal": 3, "quorum": 0.9, "collect_s": 4.0}
    wanted = plan(4, cohort=cohort, aggregation={"partial": "refuse"})
    for seed in range(12):
        history = simulate(wanted, Stepping(), clients(12), behaviour=FLEET, seed=seed, rounds=12, progress=False)
        assert all(found.counted <= 3 for found in history.rounds)


def test_nobody_trains_in_vain_after_a_withdrawal() -> None:
    """What was handed over before it counts, so the goal is reached by the fifth update."""
    trained = []

    class Withdrawing(Stepping):
        def train(self, model: Tensors, data: Any, task: Task, **more: Any) -> Update:
            trained.append(len(data[0]))
            if len(data[0]) == 3:
                raise OutOfTime("There is no time for a step.")
            return super().train(model, data, task, **more)

    held = clients(8, (1, 2, 3, 4, 5, 6, 7, 8))
    history = simulate(plan(1), Withdrawing(), held, behaviour=Behaviour(step_s=1.0), progress=False)
    assert [(found.reported, found.withdrawn) for found in history.rounds[:1]] == [(5, 1)]
    assert trained == [1, 2, 3, 4, 5, 6]


def test_repro_devices_too_small_for_the_plan_make_no_cohort_smaller() -> None:
    """Who is not eligible took a place among the arrivals, and nobody else came in its stead."""
    held = clients(60, (1, 1, 1, 1, 6))
    history = simulate(plan(5, cohort={"min_examples": 2}), Stepping(), held, progress=False)
    assert [found.selected for found in history.rounds[:5]] == [8] * 5
    assert all((found.seconds or 0) < 10 for found in history.rounds)


@pytest.mark.parametrize("step_s", [0.5, 1.0, 14.5, 0.1])
def test_repro_work_that_fits_to_the_second_is_there_before_the_deadline(step_s: float) -> None:
    """A device that stops for the deadline must report before it, or all that cannot finish are late for ever."""
    held = {f"c{number}": (np.ones((700, 2), np.float32), np.zeros(700)) for number in range(8)}
    behaviour = Behaviour(step_s=step_s, network_s=2.0)
    history = simulate(plan(2), Stepping(), held, behaviour=behaviour, progress=False)
    assert [found.reported for found in history.rounds[:2]] == [5, 5]
    steps, seconds = work_done(
        Conduct(step_s=step_s, fetch_s=1.0, send_s=1.0, vanishes=False, share=1.0), 700, 60.0, None
    )
    assert steps == round(58 / step_s) - 1
    assert 58 - step_s <= seconds < 58


def test_repro_stragglers_are_not_the_first_to_report() -> None:
    """Less work was less time, so the rounds of a plan that selects more than it needs were made by stragglers."""
    half = Conduct(step_s=1.0, fetch_s=1.0, send_s=1.0, vanishes=False, share=0.5)
    assert work_done(half, 10, 60.0, None) == (5, 10.0)
    assert work_done(half, 10, 60.0, 4.0) == (2, 4.0)
    whole = simulate(plan(4), Stepping(), clients(10, (8,)), progress=False)
    slowed = simulate(plan(4), Stepping(), clients(10, (8,)), behaviour=Behaviour(stragglers=0.5), progress=False)
    assert [found.seconds for found in slowed.rounds[:4]] == pytest.approx(
        [found.seconds for found in whole.rounds[:4]]
    )


def test_repro_plan_that_insists_on_a_version_is_simulated() -> None:
    """The learner that is handed over is the one that the plan means."""
    wanted = plan(1, task={"learner_version": "3.1"})
    assert len(simulate(wanted, Stepping(), clients(10), rounds=1, progress=False)) == 1


def test_repro_who_reports_first_of_equally_fast_devices_is_drawn() -> None:
    """It was the client with the lowest number, in every round: of an ideal fleet half of each cohort never counted."""
    wanted = plan(120, cohort={"select": 8, "goal": 4, "quorum": 0.5})
    history = simulate(wanted, Stepping(), clients(16, (2,)), progress=False)
    counted = np.array([history.participation.get(name, 0) for name in clients(16)])
    assert counted.sum() == 480
    chi_square = float(((counted - 30.0) ** 2 / 30.0).sum())
    assert chi_square < 40  # 15 degrees of freedom, and draws without replacement: 0.05 % above 40


def test_order_of_clients_with_everybody_selected_changes_nothing() -> None:
    held = clients(6)
    asked = plan(3, cohort={"select": 6, "goal": 4})
    turned = dict(reversed(held.items()))
    assert happened_in(simulate(asked, Stepping(), held, progress=False)) == happened_in(
        simulate(asked, Stepping(), turned, progress=False)
    )


def test_a_run_of_an_older_version_goes_on_with_its_own_weights(tmp_path: Path) -> None:
    """Its log names no unit: updates weigh whole examples, in the engine that trains and in the coordinator."""
    wanted = plan(3, aggregation={"partial": "examples_seen"})
    asked: dict[str, Any] = {"behaviour": Behaviour(stragglers=0.8), "folder": tmp_path, "progress": False}
    first = simulate(wanted, Stepping(), clients(10), rounds=1, **asked)
    assert first.rounds[0].weight > 1024
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:
        database.execute("UPDATE events SET body = '{}' WHERE kind = 'Created'")
        database.execute("UPDATE runs SET snapshot = NULL, snapshot_seq = 0")
        database.commit()
    history = simulate(wanted, Stepping(), clients(10), **asked)
    assert history.status == "finished"
    assert all(5 <= found.weight <= 5 * 9 for found in history.rounds[1:])


def test_objects_from_before_a_simulation_are_not_scanned_for_garbage_until_the_last_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simulation.virtual.simulation._frozen_by_user", False)
    gc.unfreeze()  # what tests/conftest.py and a search for schedules have frozen in this process
    before = gc.get_threshold()
    with garbage_frozen():
        with garbage_frozen():
            assert gc.get_freeze_count() > 0
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
    gc.freeze()
    try:
        for _ in range(2):
            with garbage_frozen():
                pass
            assert gc.get_freeze_count() > 0, "what the user has frozen stays frozen"
    finally:
        gc.freeze()
