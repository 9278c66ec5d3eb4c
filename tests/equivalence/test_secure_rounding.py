"""A secure plan whose devices would use few bits of a lane is refused with numbers that help, or it is said."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from client_sdk.learning import Learner
from client_sdk.secagg.quantize import Quantizer
from coordinator.engine.plan import Plan, require_bits
from coordinator.engine.plan_file import PlanError
from simulation import History, simulate
from simulation.errors import SimulationWarning
from tests.client_sdk.commands.run_cli import quorate
from tests.rotating import in_parts

LEARNER = Learner(
    model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), loss=nn.functional.cross_entropy
)
SIZE = 32


def clients() -> list[tuple[NDArray[Any], NDArray[Any]]]:
    rng = np.random.default_rng(0)
    found = [rng.normal(size=(SIZE, 4)).astype(np.float32) for _ in range(6)]
    return [(x, (x[:, 0] > 0).astype(np.int64)) for x in found]


def plan(aggregation: dict[str, Any] | None = None, **secure: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "name": "bits",
        "task": {"learner": "tests:bits"},
        "cohort": {"select": 6, "goal": 6},
        "aggregation": {"weighting": "examples", "partial": "refuse", **(aggregation or {})},
        "finish": {"rounds": 2},
    }
    return {**whole, "secure": {"max_norm": 2.0, "max_abs": 0.5, "minimum_cohort": 3, **secure}} if secure else whole


def play(asked: dict[str, Any]) -> History:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulationWarning)
        return simulate(asked, LEARNER, clients(), secure="quantized", progress=False)


def step(history: History) -> NDArray[Any]:
    before, after = history.checkpoint(0), history.checkpoint(1)
    return np.concatenate([(after[name] - before[name]).ravel() for name in sorted(before)])


@pytest.mark.parametrize("q", in_parts(range(8, 17), of=2))
def test_a_plan_that_is_begun_learns_or_it_is_said(q: int) -> None:
    """The default cap is 10,000, devices have 32 examples. With the advised cap the step is near the plain one."""
    plain = step(play(plan()))
    if q <= 12:
        advice = rf"Set secure\.weight_cap to what devices usually weigh, such as {SIZE}, or q = 15"
        with pytest.raises(ValueError, match=advice):
            play(plan(q=q))
    history = play(plan(q=q) if q > 12 else plan(q=q, weight_cap=SIZE))
    said = "weight_cap = 10,000: where 6 devices weigh about 32, their mean has" in history.summary()
    assert said == (q in (13, 14))
    if not said:
        assert np.linalg.norm(step(history) - plain) < 0.5 * np.linalg.norm(plain)


@pytest.mark.parametrize(
    ("asked", "usual"),
    [
        (plan(q=16), None),
        (plan(q=4, weight_cap=1000), None),
        (plan(q=2, weight_cap=32), 31.0),
        (plan({"weighting": "equal"}, q=4), None),
        (plan({"weight_cap": 200}, q=8), None),
        (plan(q=4, weight_cap=600), 200.0),
        ({**plan(q=12), "cohort": {"select": 300, "goal": 256}}, None),
        (plan(q=8), 9000.0),
        (plan(q=4, weight_cap=10_000), None),
    ],
)
def test_plans_that_learn_are_begun(asked: dict[str, Any], usual: float | None) -> None:
    """Also those with few bits, where no lower cap would help; and where somebody has set the cap."""
    require_bits(Plan.parse(asked), usual=usual)


@pytest.mark.parametrize(("asked", "usual"), [(plan(q=12), None), (plan(q=8, weight_cap=1000), 20.0)])
def test_plans_that_commit_rounding_are_not(asked: dict[str, Any], usual: float | None) -> None:
    with pytest.raises(PlanError, match=r"secure: q = .* Set secure\.weight_cap"):
        require_bits(Plan.parse(asked), usual=usual)


@pytest.mark.parametrize(("q", "weight"), [(4, 100), (8, 100), (8, 1), (12, 3)])
def test_the_expected_error_is_that_of_lanes(q: int, weight: int) -> None:
    dimension, survivors = 4000, 7
    used = Quantizer(q=q, max_norm=1.0, max_abs=4 / np.sqrt(dimension), weight_cap=100)
    rng = np.random.default_rng(q)
    values = rng.normal(size=(survivors, dimension))
    values = (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)
    total = np.zeros(dimension + used.extra_lanes, np.uint64)
    for number, row in enumerate(values):
        total += used.lanes(row, weight, 24, bytes([number]) * 32).astype(np.uint64)
    mean = used.mean_of(total[:dimension], survivors, survivors * weight)
    found = float(np.linalg.norm(mean - np.clip(values, -used.max_abs, used.max_abs).mean(axis=0)))
    bound = used.rounding_error(dimension, survivors, weight)
    assert bound / 3 <= found <= 1.05 * bound


def test_plan_check_refuses_and_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.toml"
    text = (Path(__file__).parents[2] / "examples" / "mnist-secure.toml").read_text()
    file.write_text(text.replace("[aggregation]", '[aggregation]\nweighting = "examples"'))
    for options, code, words in (
        (["--set", "secure.q=8"], 1, "secure.weight_cap to what devices usually weigh"),
        (
            ["--set", "secure.q=8", "--examples", "9000"],
            0,
            "devices that weigh 9,000 of weight_cap = 10,000 by up to 0.01",
        ),
        (["--set", "secure.q=8", "--examples", "200"], 0, "256 devices weigh about 200, their mean has 6.3 bits"),
        (["--set", "secure.q=8", "--set", "secure.weight_cap=90"], 0, "weigh 90 of weight_cap = 90 by up to 0.0"),
        (["--set", "secure.q=11"], 0, "weights: q = 11 with weight_cap = 10,000"),
        (["--set", "secure.q=3", "--set", "secure.weight_cap=9", "--set", "secure.max_abs=99"], 1, "or lower max_abs"),
    ):
        assert quorate("plan", "check", str(file), *options) == code
        shown = " ".join("".join(capsys.readouterr()).split())
        assert " ".join(words.split()) in shown
