"""Examples that decide: more than a client has are capped, as by a coordinator; a draw by size needs a choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
