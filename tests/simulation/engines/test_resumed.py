"""A resumed run whose learner forgets what the run depends on is refused; one that forgets nothing goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quorate import Update, simulate
from simulation.engines import EngineName
from simulation.errors import SimulationError, SimulationWarning
from simulation.history import History

SECURE = {"max_norm": 10.0, "max_abs": 1.0, "minimum_cohort": 4, "reserve": 0}


def update(value: float) -> Update:
    return Update({"w": np.full(3, value, np.float32)}, examples=5)


@dataclass
class WarmsUp:
    """Uses what it keeps from its fourth training of a client on, as a momentum with a warm-up does: the check of a
    call's first three rounds sees nothing."""

    @dataclass
    class Controls:
        own: dict[str, int] = field(default_factory=dict)

    controls: Controls = field(default_factory=Controls)

    def train(self, model: Any, data: Any, task: Any, *, device: str, **more: Any) -> Update:
        self.controls.own[device] = calls = self.controls.own.get(device, 0) + 1
        return update(0.25 if calls > 3 else 0.5)


class Caches(WarmsUp):
    """Remembers what it can compute again."""

    @staticmethod
    @lru_cache
    def value(round: int) -> float:
        return 1.0 / (1 + round)

    def train(self, model: Any, data: Any, task: Any, *, round: int, **more: Any) -> Update:  # type: ignore[override]
        return update(self.value(round))


def run(folder: Path | None, learner: Any, rounds: int | None, engine: EngineName = "serial", **more: Any) -> Any:
    data = [(np.ones((5, 1), np.float32), np.zeros(5, np.float32))] * 4
    plan: dict[str, Any] = {"cohort": {"select": 4, "goal": 4}, "finish": {"rounds": 10}}
    if "secure" in more:
        plan |= {"secure": SECURE, "aggregation": {"weighting": "examples", "partial": "refuse"}}
    workers: dict[str, Any] = {"workers": 1} if engine == "processes" else {}
    init = {"w": np.zeros(3, np.float32)}
    options = {"init": init, "progress": False, "folder": folder, "rounds": rounds, **workers, **more}
    return simulate(plan, learner, data, engine=engine, **options)


@pytest.mark.parametrize(
    "how", [{}, {"engine": "processes"}, {"secure": "quantized"}, {"secure": "masked"}], ids=lambda how: str(how)
)
def test_a_resume_that_would_forget_state_is_refused_and_the_run_stays_as_it_was(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    run(tmp_path, WarmsUp(), 5, **how)
    with pytest.raises(
        SimulationError,
        match=r"client 'client-\d' was trained again as in round 5 of an earlier call.* gave other bits",
    ):
        run(tmp_path, WarmsUp(), 5, **how)
    assert len(History.open(tmp_path)) == 5


def test_what_the_training_changed_is_named(tmp_path: Path) -> None:
    counts = {"calls": 0}

    def late(model: Any, data: Any, task: Any) -> Update:
        counts["calls"] += 1
        return update(0.25 if counts["calls"] > 12 else 0.5)

    run(tmp_path, late, 4)
    counts["calls"] = 0
    with pytest.raises(SimulationError, match="it changed the variable 'counts' of the function around late"):
        run(tmp_path, late, 1)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_cache_passes_and_gives_the_bits_of_one_call(tmp_path: Path, engine: EngineName) -> None:
    for rounds in (4, 1, None):
        resumed = run(tmp_path, Caches(), rounds, engine)
    assert len(resumed) == 10
    assert resumed.deterministic
    assert resumed.checkpoint()["w"].tobytes() == run(None, Caches(), None, engine).checkpoint()["w"].tobytes()


def test_what_is_declared_is_not_compared_and_the_history_shows_it_for_ever(tmp_path: Path) -> None:
    run(tmp_path, WarmsUp(), 5)
    declared = WarmsUp()
    declared.deterministic = False  # type: ignore[attr-defined]
    history = run(tmp_path, declared, 2)
    assert len(history) == 7
    for one in (history, History.open(tmp_path)):
        assert not one.deterministic
        assert "not deterministic" in one.summary()


@pytest.mark.parametrize("left", [b"", b"{}", b"[1]", None])
def test_a_note_that_is_gone_or_broken_is_said_and_stops_nothing(tmp_path: Path, left: bytes | None) -> None:
    run(tmp_path, Caches(), 2)
    [path] = tmp_path.glob("*.noted.json")
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with pytest.warns(SimulationWarning, match="not checked: the folder notes no training of this run"):
        assert len(run(tmp_path, Caches(), 1)) == 3
    assert json.loads(path.read_text())["job"]["round"] == 3


def test_other_data_of_a_client_is_seen_too(tmp_path: Path) -> None:
    shift = 0.0

    def learner(model: Any, data: Any, task: Any) -> Update:
        return update(float(data[0].sum()) + shift)

    run(tmp_path, learner, 1)
    shift = 1.0
    with pytest.raises(SimulationError, match="or it, the client's data or a library is not what it was then"):
        run(tmp_path, learner, 1)
