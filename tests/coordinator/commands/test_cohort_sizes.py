"""``quorate plan cohort``: chances and waits against drawn rounds, and what the command says."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from coordinator.commands.cohort_sizes import (
    CHANCE,
    at_least,
    fewest_steps,
    log_normal,
    outcome,
    smallest_select,
    with_steps,
)
from tests.client_sdk.commands.run_cli import quorate


def exactly(n: int, q: float, k: int) -> float:
    return math.fsum(math.comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(("n", "q"), [(1, 0.5), (5, 0.9), (40, 0.3), (300, 0.87), (20, 0.0), (20, 1.0)])
def test_chances_are_the_binomial_s(n: int, q: float) -> None:
    for k in range(n + 2):
        assert at_least(n, q, k) == pytest.approx(exactly(n, q, k), abs=1e-12)


def test_a_large_cohort_is_summed_where_its_terms_are() -> None:
    assert at_least(100_000, 0.5, 50_000) == pytest.approx(0.5, abs=2e-3)
    assert at_least(100_000, 0.5, 60_000) < 1e-12
    assert at_least(100_000, 0.5, 40_000) == pytest.approx(1)


@pytest.mark.parametrize(("goal", "reporting"), [(1, 0.5), (10, 0.9), (256, 0.87), (100, 1.0)])
def test_the_recommended_number_is_the_smallest(goal: int, reporting: float) -> None:
    select = smallest_select(goal, reporting)
    assert select is not None
    assert at_least(select, reporting, goal) >= CHANCE
    assert select == goal or at_least(select - 1, reporting, goal) < CHANCE


def test_a_goal_that_no_plan_can_reach_has_no_number() -> None:
    assert smallest_select(256, 0.001) is None


@pytest.mark.parametrize(("deadline", "goal", "select"), [(120.0, 40, 50), (60.0, 40, 60)])
def test_waits_are_those_of_drawn_rounds(deadline: float, goal: int, select: int) -> None:
    times, dropout = log_normal(40, 0.6), 0.1
    rng = np.random.default_rng(3)
    drawn = rng.choice(times, (20_000, select))
    drawn[rng.random(drawn.shape) < dropout] = np.inf
    waits = np.minimum(np.sort(drawn, axis=1)[:, goal - 1], deadline)
    found = outcome(times, dropout, deadline, goal, select)
    assert found.wait_s == pytest.approx(waits.mean(), rel=0.01)
    assert found.chance == pytest.approx((np.sort(drawn, axis=1)[:, goal - 1] <= deadline).mean(), abs=0.01)
    assert found.beside == pytest.approx(max(0.0, (drawn <= deadline).sum(axis=1).mean() - goal), abs=0.2)


def test_a_log_normal_has_its_median_and_its_sigma() -> None:
    times = log_normal(40, 0.6)
    assert np.median(times) == pytest.approx(40, rel=1e-2)
    assert np.log(times).std() == pytest.approx(0.6, rel=1e-2)
    assert times == sorted(times)


def test_more_steps_make_training_the_larger_part() -> None:
    times = [20.0, 30.0, 40.0]
    steps = fewest_steps(times, 10, 15.0)
    assert steps == 40  # a step takes 1.5 s, and 60 s are four fifths of 75 s
    assert with_steps(times, 10, 15.0, steps) == pytest.approx([35.0, 75.0, 115.0])
    assert fewest_steps(times, 10, 0.0) == 1


def test_the_command_prints_the_lines_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("plan", "cohort", "--median", "40", "--sigma", "0.6", "--deadline", "120", "--goal", "256") == 0
    out = capsys.readouterr().out
    assert "86.9% of the selected devices report within 120 s; half of all take 40 s." in out
    found = tomllib.loads(out.partition("For the plan:\n")[2])
    assert found["cohort"] == {"select": 311, "goal": 256, "collect_s": 120}


def test_a_file_of_times_and_so_many_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "seconds"
    file.write_text("\n".join(str(10 + place) for place in range(40)))
    arguments = (str(file), "--devices", "50", "--steps", "5", "--overhead", "8", "--dropout", "0", "--json")
    assert quorate("plan", "cohort", *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    section = tomllib.loads("\n".join(found["section"]))
    assert section["task"] == {"steps": 8}  # the median is 29.5 s: 4.3 s a step
    assert section["cohort"]["goal"] == 43
    assert section["cohort"]["select"] <= 50
    assert found["reporting"] == pytest.approx(0.95)
    best = next(one for one in found["sizes"] if one["select"] == section["cohort"]["select"])
    assert best["chance"] >= CHANCE


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "Give a file of times, or --median: one of the two."),
        (("--median", "0"), "--median must be above 0, and --sigma from 0 to 10."),
        (("--median", "40", "--sigma", "nan"), "--median must be above 0, and --sigma from 0 to 10."),
        (("--median", "40", "--dropout", "1"), "--dropout is a part from 0 to below 1, not 1."),
        (("--median", "40", "--overhead", "3"), "--overhead needs --steps"),
        (("--median", "40", "--steps", "5", "--overhead", "39"), "--overhead needs --steps"),
        (("--median", "40", "--deadline", "1"), "0% of the selected devices report within 1 s"),
        (("--median", "40", "--goal", "50", "--devices", "50"), "the goal cannot be reached with 99%"),
        (("--median", "40", "--deadline", "nan"), "--deadline must be above 0."),
        (("pyproject.toml",), "pyproject.toml must hold times in seconds above 0, one a line."),
    ],
)
def test_wrong_options_get_one_sentence(
    options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quorate("plan", "cohort", *options) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
