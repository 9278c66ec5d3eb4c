"""What people hand to ``simulate`` at first: lists of pairs, modules where weights are meant, metrics that fail.
Each works, or is answered by a sentence that says the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Learner, accuracy
from simulation import Behaviour, History, SimulationError, Stalled, partition, recipes, simulate
from simulation.history import HistoryError

torch.set_num_threads(1)
PLAN = {"task": {"batch_size": 10}, "cohort": {"select": 2, "goal": 2}, "finish": {"rounds": 1}}
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)
PAIRS = [(torch.from_numpy(row), int(label)) for row, label in zip(X, Y, strict=True)]


def net(**changes: Any) -> Learner:
    named = {"model": lambda: nn.Linear(4, 2), "loss": nn.functional.cross_entropy, "metrics": {"accuracy": accuracy}}
    return Learner(**{**named, **changes})


def test_lists_of_pairs_train_and_score_like_the_arrays_that_they_came_from() -> None:
    pairs = simulate(PLAN, net(), {"a": PAIRS[:30], "b": PAIRS[30:]}, test=PAIRS, progress=False)
    arrays = simulate(PLAN, net(), {"a": (X[:30], Y[:30]), "b": (X[30:], Y[30:])}, test=(X, Y), progress=False)
    assert pairs.checkpoints[1].digest == arrays.checkpoints[1].digest
    assert pairs.final("accuracy") == arrays.final("accuracy")
    alone = recipes.centralized(net(), {"a": PAIRS[:30], "b": PAIRS[30:]}, test=PAIRS, rounds=1, progress=False)
    assert alone.final("accuracy") > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"init": nn.Linear(4, 2)}, r"a Linear is none: give its state_dict\(\)"),
        ({"init": 7}, "init is a dict of arrays, a state_dict.. or a safetensors file; a int is none$"),
        ({"only": "client-0", "round": 1.5}, "round=1.5 must be a whole number, 1 or more"),
        ({"only": "client-0", "round": 0}, "round=0 must be a whole number, 1 or more"),
        (
            {"clients": torch.utils.data.TensorDataset(torch.from_numpy(X))},
            r"partition\(dataset, 100\) makes clients of",
        ),
        (
            {"plan": {**PLAN, "task": {"codec": "morse@1"}}},
            "the run cannot begin: there is no codec 'morse@1'; there are",
        ),
        ({"score_clients": 1}, r"partition\(..., held_out=0.2\), or --held-out 0.2, makes some"),
    ],
)
def test_errors_for_wrong_arguments_name_the_fix(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"clients": partition((X, Y), 3, by="iid"), "progress": False} | change
    with pytest.raises(ValueError, match=words):
        simulate(**{"plan": PLAN, "learner": net(), **arguments})


@pytest.mark.parametrize(
    ("finish", "words"),
    [
        (
            {"metric": "f1"},
            "looks at f1 of 'evaluator', and the first model's scores are: accuracy of clients, .*evaluator",
        ),
        ({"metric": "accuracy", "source": "class.phone"}, "looks at accuracy of 'class.phone'"),
    ],
)
def test_an_end_that_no_score_can_bring_is_refused_before_the_first_round(
    finish: dict[str, Any], words: str, tmp_path: Path
) -> None:
    plan = PLAN | {"finish": {"rounds": 9, "target": 0.9} | finish}
    clients = partition((X, Y), 3, held_out=0.2)
    with pytest.raises(ValueError, match=words):
        simulate(plan, net(), clients, test=(X, Y), score_clients="all", folder=tmp_path, progress=False)
    with pytest.raises(HistoryError, match="no run"):
        History.open(tmp_path)


@pytest.mark.parametrize("change", [{"dropout": "often"}, {"step_s": None}, {"stragglers": True}, {"network_s": [1]}])
def test_a_behaviour_that_is_no_number_is_refused_in_a_sentence(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        Behaviour(**change)


def test_a_metric_that_fails_on_the_test_data_shows_the_users_own_traceback() -> None:
    def mine(outputs: Any, targets: Any) -> float:
        raise KeyError("of the user's own")

    with pytest.raises(SimulationError) as failed:
        simulate(PLAN, net(metrics={"mine": mine}), partition((X, Y), 3), test=(X, Y), progress=False)
    words = str(failed.value)
    assert words.startswith("the model could not be scored on the test data: ")
    assert "in mine\n    raise KeyError" in words
    assert "direct cause" not in words, "the user's own, and nothing of ours"
    with pytest.raises(SimulationError, match=r"not a Tensor.$"):
        simulate(PLAN, net(), partition((X, Y), 3), test=torch.from_numpy(X), progress=False)


def test_a_run_that_stalls_says_why_devices_withdrew() -> None:
    """One client's updates are fine, and they are too few."""
    clients = {f"client-{number}": (X * (1e30 if number else 1), Y) for number in range(3)}
    with pytest.raises(Stalled, match=r"withdrew.*\(client-[12]: The loss .* try a smaller learning rate") as stalled:
        simulate({**PLAN, "cohort": {"select": 3, "goal": 3}}, net(), clients, progress=False)
    history = stalled.value.history
    assert history is not None
    assert history.interrupted, "nobody goes on with it"
    assert {one.round for one in history.withdrawals} >= set(range(1, 26))
