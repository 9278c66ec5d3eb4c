"""Which checkpoints of a simulation without a folder stay on the disk, and what the history says of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Score, Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.engine.plan import Finish
from simulation import History, simulate
from simulation.history import HistoryError
from simulation.simulator.simulate import Retained, newest_to_keep


class Walking:
    """Moves its one weight by 1 a round. The accuracy is best at 3."""

    def initial(self, seed: int) -> Tensors:
        return {"w": np.zeros(1, np.float32)}

    def train(self, model: Tensors, data: Any, task: Task, **_: Any) -> Update:
        return Update({"w": np.ones(1, np.float32)}, len(data[0]))

    def evaluate(self, model: Tensors, data: Any) -> Score:
        return Score(examples=1, metrics={"accuracy": -abs(float(model["w"][0]) - 3.0)})


CLIENTS = [(np.zeros((2, 1), np.float32), np.zeros(2, np.int64))] * 3
PLAN: dict[str, Any] = {"cohort": {"select": 3, "goal": 3, "collect_s": 60}, "finish": {"rounds": 9}}


def played(**options: Any) -> History:
    return simulate(PLAN, Walking(), CLIENTS, test=CLIENTS[0], progress=False, **options)


def files(history: History) -> int:
    blobs: Any = history._blobs
    names = {view.digest for view in history.checkpoints.values()}
    return sum(path.name in names for path in Path(blobs.folder).rglob("*"))


def test_repro_the_first_the_best_and_the_newest_checkpoints_stay() -> None:
    """Every checkpoint stayed in the temporary folder: ten thousand rounds of a large model fill a disk."""
    history = played(keep_checkpoints=2)
    assert len(history.checkpoints) == 10
    assert files(history) == 4
    assert [float(history.checkpoint(version)["w"][0]) for version in (0, 3, 8, 9)] == [0, 3, 8, 9]
    assert history.best("accuracy") == (3, 0.0)
    with pytest.raises(HistoryError, match=r"version 5 of run simulation are not stored any more: .*keep_checkpoints"):
        history.checkpoint(5)


def test_a_run_without_all_checkpoints_cannot_become_a_coordinators(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"cannot be saved, since its older checkpoints .*keep_checkpoints=.all."):
        played(keep_checkpoints=1).save(tmp_path / "a")
    assert History.open(played(keep_checkpoints="all").save(tmp_path / "b")).checkpoint(5)["w"][0] == 5


def test_small_models_stay_and_a_folder_keeps_all(tmp_path: Path) -> None:
    assert files(played()) == 10
    assert files(played(folder=tmp_path)) == 10
    assert [newest_to_keep(None, False, size) for size in (2**20, 2**27, 2**31)] == [1024, 8, 2]
    with pytest.raises(ValueError, match="keep_checkpoints=3 is for a simulation without folder="):
        played(folder=tmp_path, keep_checkpoints=3)
    with pytest.raises(ValueError, match="keep_checkpoints=0 must be a whole number, 1 or more"):
        played(keep_checkpoints=0)


def test_the_best_is_by_the_metric_that_the_plan_watches() -> None:
    finish = Finish(metric="error", source="clients", better="lower", target=0.0)
    retained = Retained(1, finish)

    def added(name: str, error: float) -> set[str]:
        scores = {"clients": Score(examples=1, metrics={"error": error}), "evaluator": Score(examples=1, metrics={})}
        return retained.added(name, scores)

    assert [added(name, error) for name, error in (("a", 9), ("b", 2), ("c", 5), ("d", 1), ("e", 3))] == [
        set(), set(), set(), {"b", "c"}, set(),
    ]  # fmt: skip
    assert retained.added("d", {}) == {"e"}, "a checkpoint with the digest of a retained one"
