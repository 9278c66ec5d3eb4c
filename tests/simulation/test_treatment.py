"""A history says what was done to updates, the same from each engine and from the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from client_sdk.update import Update
from simulation import History, simulate

PLAN: dict[str, Any] = {
    "name": "treated",
    "cohort": {"select": 3, "goal": 3},
    "aggregation": {"weight_cap": 10, "clip_norm": 1.0},
    "finish": {"rounds": 2},
}
INIT = {"w": np.zeros(2, np.float32)}


def learner(model: Any, data: Any, task: Any) -> Update:
    return Update({"w": np.full(2, data[0][0, 0], np.float32)}, examples=len(data[0]))


def client(count: int, value: float) -> tuple[Any, Any]:
    return np.full((count, 1), value, np.float32), np.zeros(count)


CLIENTS = {"small": client(5, 0.5), "edge": client(10, 0.25), "large": client(11, 2.0)}


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_counts_of_a_simulation(engine: Literal["serial", "processes"], tmp_path: Path) -> None:
    history = simulate(PLAN, learner, CLIENTS, init=INIT, engine=engine, folder=tmp_path / "run")
    for found in (history, History.open(tmp_path / "run")):
        assert [(row.clipped, row.capped, row.partial, row.rounding) for row in found.rounds] == [(1, 1, 0, 0.0)] * 2
        text = found.summary()
        assert "2 of 6 updates scaled down to clip_norm: rounds 1, 2" in text
        assert "2 of 6 updates weighed less than their examples, by weight_cap or their registration" in text
        frame = found.to_pandas("rounds")
        assert frame["capped"].tolist() == [1, 1]
        assert frame["refused_for"].tolist() == ["", ""]
        assert "scaled down to clip_norm" in found._repr_html_()


def test_a_run_to_which_nothing_was_done_says_nothing() -> None:
    history = simulate({**PLAN, "aggregation": {}}, learner, CLIENTS, init=INIT)
    assert "done to updates" not in history.summary()


def test_small_and_zero_sums_are_said() -> None:
    tiny = {"one": client(5, 3e-10), "two": client(5, 3e-10), "three": client(5, 3e-10)}
    assert "rounding" not in simulate({**PLAN, "aggregation": {}}, learner, tiny, init=INIT).summary()
    tiny = dict.fromkeys(tiny, client(5, 2.0**-24))
    said = simulate({**PLAN, "aggregation": {}}, learner, tiny, init=INIT).summary()
    assert "rounding errors up to " in said
    nothing = {name: client(5, 0.0) for name in CLIENTS}
    history = simulate({**PLAN, "aggregation": {}}, learner, nothing, init=INIT)
    assert [row.zero_sum for row in history.rounds] == [True, True]
    assert "the sum of the updates was zero: rounds 1, 2" in history.summary()


@pytest.mark.parametrize(("size", "said"), [(1e-2, False), (1e-3, True), (1e-4, True)])
def test_a_secure_step_that_is_mostly_rounding_is_said(size: float, said: bool) -> None:
    values = np.random.default_rng(0).normal(size=(6, 256)) * size

    def noise(model: Any, data: Any, task: Any) -> Update:
        return Update({"w": values[int(data[0][0, 0])]}, examples=5)

    plan = {
        "cohort": {"select": 6, "goal": 6},
        "aggregation": {"partial": "refuse"},
        "secure": {"max_norm": 4.0, "max_abs": 4.0, "minimum_cohort": 3, "weight_cap": 5, "q": 12},
        "finish": {"rounds": 1},
    }
    clients = {f"c{number}": client(5, number) for number in range(6)}
    history = simulate(plan, noise, clients, init={"w": np.zeros(256, np.float32)}, secure="quantized")
    error = float(np.linalg.norm(history.checkpoint()["w"] - values.mean(axis=0)))
    share = error / float(np.linalg.norm(history.checkpoint()["w"]))
    (row,) = history.rounds
    assert (share >= 0.3) == said
    assert ("of the step: lower max_abs and max_norm" in history.summary()) == said
    if said:
        assert row.rounding is not None
        assert row.rounding == pytest.approx(min(share, 1.0), abs=0.15)
    else:
        assert row.rounding is None


@pytest.mark.parametrize(
    ("codec", "value", "said"), [("float16@1", 3e-7, True), ("float16@1", 5e-6, True), ("float16@1", 1e-4, False)]
)
def test_small_updates_in_float16_are_said(codec: str, value: float, said: bool) -> None:
    tiny = dict.fromkeys(CLIENTS, client(5, value))
    history = simulate({**PLAN, "aggregation": {}, "task": {"codec": codec}}, learner, tiny, init=INIT)
    error = float(abs(history.checkpoint(1)["w"][0] - np.float32(value)) / value)
    assert (error > 1e-3) == said
    for row in history.rounds:
        assert row.rounding is not None
        assert (row.rounding >= error) == said
    assert ("rounding errors up to" in history.summary()) == said
