"""What is counted: examples up to those that a client has, as by a coordinator; a draw by size needs a choice; devices
whose metric has no value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from client_sdk.data import Data, Examples
from client_sdk.learning import Learner
from client_sdk.update import Update
from simulation.history import History
from simulation.simulator.simulate import simulate

SIZES = (1, 2, 3)
CLIENTS = {f"c{size}": (np.full((size, 1), float(size), np.float32), np.zeros(size, np.int64)) for size in SIZES}


def boastful(model: Any, data: Any, task: Any) -> Update:
    """Moves w to the mean of x, and reports a hundred examples."""
    x, _ = data
    return Update({"w": x.mean(axis=0) - model["w"]}, examples=100)


def simulated(**options: Any) -> History:
    plan = {"cohort": {"select": 3, "goal": 3}, "finish": {"rounds": 2}}
    history: History = simulate(plan, boastful, CLIENTS, init={"w": np.zeros(1, np.float32)}, progress=False, **options)
    return history


@pytest.mark.parametrize("options", [{}, {"engine": "processes", "workers": 2}], ids=["serial", "processes"])
def test_more_examples_than_the_client_has_are_capped(options: dict[str, Any]) -> None:
    history = simulated(**options)
    assert [view.status for view in history.rounds] == ["committed", "committed"]
    assert history.checkpoint()["w"] == pytest.approx([sum(n * n for n in SIZES) / sum(SIZES)])


def test_a_draw_by_examples_needs_more_clients_than_it_selects() -> None:
    plan = {
        "cohort": {"select": 3, "goal": 3, "pool": 6, "choose": "by_examples"},
        "aggregation": {"weighting": "equal"},
        "finish": {"rounds": 2},
    }
    with pytest.raises(ValueError, match="selects 3 of 3 clients: all of them"):
        simulate(plan, boastful, CLIENTS, init={"w": np.zeros(1, np.float32)}, progress=False)


def of_positive_examples(outputs: Any, targets: Any) -> float:
    """The accuracy on examples of label 1, which has no value where there are none."""
    positive = targets == 1
    return float((outputs.argmax(1)[positive] == 1).float().mean())


def test_devices_whose_metric_has_no_value_are_counted() -> None:
    """One of three devices holds out no positive example, and then none does."""
    learner = Learner(
        model=lambda: nn.Linear(1, 2), loss=nn.functional.cross_entropy, metrics={"recall": of_positive_examples}
    )

    def client(*held_out: int) -> Any:
        x, y = np.ones((4, 1), np.float32), np.array([0, 1, 0, 1])
        return Data(Examples(x, y), Examples(np.ones((len(held_out), 1), np.float32), np.array(held_out)))

    plan = {"cohort": {"select": 3, "goal": 3}, "finish": {"rounds": 1}, "task": {"score_held_out": True}}
    for clients, recall, lacking in (
        ({"a": client(1, 0), "b": client(1), "c": client(0, 0)}, True, 1.0),
        ({"a": client(0, 0), "b": client(0), "c": client(0, 0)}, False, 3.0),
    ):
        history = simulate(plan, learner, clients, progress=False)
        found = {name: line.values[0] for (source, name), line in history.curves.items() if source == "devices"}
        assert found["recall.undefined"] == lacking
        assert set(found) == {"loss", "recall.undefined"} | ({"recall"} if recall else set())
        if recall:
            assert 0 <= found["recall"] <= 1


@pytest.mark.parametrize("finish", [{"rounds": 3}, {"rounds": 9, "metric": "loss", "target": 9.9, "better": "lower"}])
def test_devices_that_are_slower_than_the_last_round_are_late_not_dropped(finish: dict[str, Any]) -> None:
    """Also where a score ends the run. In deployment they send their updates after the end of the run."""
    learner = Learner(model=lambda: nn.Linear(1, 2), loss=nn.functional.cross_entropy)
    clients = {f"c{n}": (np.ones((n, 1), np.float32), np.zeros(n, np.int64)) for n in range(20, 80, 10)}
    plan = {"cohort": {"select": 5, "goal": 3}, "finish": finish}
    history = simulate(plan, learner, clients, test=clients["c20"], progress=False)
    assert [(one.late, one.dropped) for one in history.rounds] == [(2, 0)] * len(history.rounds)
    assert history.status == "finished"
