"""A history says what was done to updates, the same from each engine and from the folder."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from client_sdk.protocol.devices import Work
from client_sdk.update import Update
from coordinator.store import MemoryStore
from simulation import Behaviour, History, simulate
from simulation.errors import SimulationWarning
from simulation.history import tables

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
        "secure": {"max_norm": 4.0, "max_abs": 4.0, "minimum_cohort": 3, "q": 12},
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


class Stopping:
    """A learner that stops at its deadline."""

    def train(self, model: Any, data: Any, task: Any, *, deadline: Any, **_: Any) -> Update:
        count = len(data[0])
        done = next(step for step in range(count + 1) if step == count or deadline() < 0)
        work = Work(steps=done, steps_planned=count, examples_seen=done, complete=done == count)
        return Update({"w": np.ones(2, np.float32)}, examples=count, work=work)


def test_work_that_was_cut_short_is_counted(tmp_path: Path) -> None:
    """This count was tested at 0 only."""
    plan = {**PLAN, "task": {"batch_size": 1}, "cohort": {"select": 3, "goal": 3, "quorum": 0.6, "collect_s": 8.0}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulationWarning)
        simulate(plan, Stopping(), CLIENTS, init=INIT, behaviour=Behaviour(step_s=1.0), folder=tmp_path / "run")
    with History.open(tmp_path / "run") as history:
        assert [row.partial for row in history.rounds] == [2, 2]
        assert history.to_pandas("rounds")["partial"].tolist() == [2, 2]
        assert "4 of 6 updates of work cut short by a deadline (partial): rounds 1, 2" in history.summary()


def test_statistics_that_were_cut_or_raised_are_counted() -> None:
    def drifts(model: Any, data: Any, task: Any) -> Update:
        return Update({"w": np.ones(2, np.float32), "var": np.full(2, data[0][0, 0], np.float32)}, examples=5)

    plan = {**PLAN, "aggregation": {"statistics_range": 1.0}}
    clients = {"a": client(5, -3.0), "b": client(5, -0.5), "c": client(5, -0.5)}
    history = simulate(
        plan, drifts, clients, init={**INIT, "var": np.ones(2, np.float32)}, statistics={"var": "non-negative"}
    )
    row, frame = history.rounds[-1], history.to_pandas("rounds")
    assert row.statistics_cut == frame["statistics_cut"].iloc[-1] == 1
    assert row.raised == frame["raised"].iloc[-1] == 2
    assert "updates with statistics cut to statistics_range" in history.summary()
    assert "values of statistics would have been below 0" in history.summary()


class Shown(SimpleNamespace):
    """What is shown of a history."""

    def __len__(self) -> int:
        return 2


def test_what_only_devices_of_others_do_is_in_the_frame_and_said() -> None:
    """A missed selection, a second update and a refusal: clients of a simulation hold back what would be refused."""
    history = simulate(PLAN, learner, CLIENTS, init=INIT)
    first, second = history.rounds
    rounds = (first, replace(second, missed=1, duplicates=3, refused_for={"NaN in w": 2}))
    shown = Shown(
        **{
            name: getattr(history, name)
            for name in ("plan", "status", "interrupted", "reason", "steps", "steps_reason")
        }
    )
    shown.rounds, shown.unmasked, shown.deterministic = rounds, False, True
    assert "2 of 2 rounds committed, 1 selections found too few clients" in tables.standing(shown)  # type: ignore[arg-type]
    (_, done), refused = tables.treatment_of(shown)  # type: ignore[arg-type]
    assert dict(done)["3 second updates of a device, which may be two"] == "round 2"
    assert refused == ("Updates that were refused:", [("NaN in w", "2 in round 2")])
    shown.created_at = history.created_at
    frame = tables.frame(shown, MemoryStore(), "rounds")  # type: ignore[arg-type]
    assert [frame[name].tolist() for name in ("missed", "duplicates", "refused_for")] == [
        [0, 1],
        [0, 3],
        ["", "2 x NaN in w"],
    ]
