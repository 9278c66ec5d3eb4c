"""A learner or labels that no client can train with end a simulation at once, in a sentence that names the fix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from client_sdk.learning import Learner, accuracy
from client_sdk.protocol.devices import Score
from quorate import Update, simulate
from simulation.errors import ClientFailed, SimulationError

X = np.random.default_rng(0).normal(size=(40, 3)).astype("f4")
Y = np.arange(40) % 4
PLAN = {"cohort": {"select": 2, "goal": 2}, "finish": {"rounds": 1}}
FIRST = {"w": np.zeros(2, "f4")}


def run(learner: Any, y: Any = Y, **options: Any) -> Any:
    return simulate(PLAN, learner, [(X, y)] * 2, progress=False, **options)


def net(**options: Any) -> Learner:
    defaults: dict[str, Any] = {"loss": nn.functional.cross_entropy, "metrics": {"accuracy": accuracy}}
    return Learner(model=lambda: nn.Linear(3, 4), **(defaults | options))


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize(
    ("y", "words"), [(Y.astype("f4"), "float32"), (Y.astype(str), "numpy.str_"), (Y + 1, "from 1 to 4"), (Y - 1, "-1")]
)
def test_wrong_labels_are_a_sentence_without_a_traceback(y: Any, words: str, engine: Any) -> None:
    with pytest.raises(ClientFailed) as failed:
        run(net(), y, engine=engine)
    assert words in str(failed.value)
    assert "use integers" in str(failed.value)
    assert "Traceback" not in str(failed.value)
    with pytest.raises(SimulationError, match="use integers") as unscored:
        run(net(), test=(X, y))
    assert "Traceback" not in str(unscored.value)


def test_a_traceback_has_the_users_own_lines_alone() -> None:
    def mine(outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(ClientFailed) as failed:
        run(net(loss=mine), Y + 1)
    words = str(failed.value)
    assert "in mine\n" in words
    assert words.count('  File "') == 1


def giving(**fields: Any) -> Any:
    def train(model: Any, data: Any, task: Any) -> Update:
        return Update(**{"delta": {"w": np.ones(2, "f4")}, "examples": 3, **fields})

    return train


@pytest.mark.parametrize(
    ("learner", "words"),
    [
        (giving(metrics={"F1 score": 0.5}), "a metric cannot be called 'F1 score': up to 64 letters, digits and"),
        (giving(metrics={f"m{number}": 1.0 for number in range(65)}), "at most 64 metrics, not 65"),
        (giving(metrics={"x": float("inf")}), "'x' is inf, not a finite number"),
        (giving(metrics={"x": "0.5"}), "'x' is 0.5, not a finite number"),
        (giving(metrics={3: 0.5}), "cannot be called 3"),
        (giving(examples=-1), "examples must be a whole number from 0 up"),
        (giving(examples=2**40), "the update's report cannot be made: 'examples'"),
        (giving(delta={"v": np.ones(2, "f4")}), "lacks 'w' and has unexpected 'v'"),
    ],
)
def test_an_update_that_no_round_can_count_ends_the_run_at_once(learner: Any, words: str) -> None:
    """It was 25 abandoned rounds."""
    with pytest.raises(ClientFailed, match="client 'client-0' failed in round 1") as failed:
        run(learner, init=FIRST)
    assert words in str(failed.value)


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "the delta of 'w': the values hold NaN or infinity"),
        (-np.inf, "the delta of 'w': the values hold NaN or infinity"),
        (1e9, "the delta of 'w': a value of magnitude 1e+09 is above 65536"),
        (1e300, "the delta of 'w': a value of magnitude 1e+300 overflows"),
    ],
)
@pytest.mark.parametrize("goal", [1, 2])
def test_values_that_no_sum_takes_end_the_run_in_the_first_round_without_another_update(
    value: float, words: str, engine: Any, goal: int
) -> None:
    """It was 25 abandoned rounds, and no word of the tensor."""
    learner = giving(delta={"v": np.ones(3, "f4"), "w": np.array([0, value])})
    plan = {"cohort": {"select": goal, "goal": goal}, "finish": {"rounds": 4}}
    first = FIRST | {"v": np.zeros(3, "f4")}
    with pytest.raises(ClientFailed, match=r"client 'client-\d' failed in round 1") as failed:
        simulate(plan, learner, [(X, Y)] * goal, init=first, engine=engine, progress=False)
    assert words in str(failed.value)
    assert failed.value.history is not None
    assert len(failed.value.history) == 0


def test_the_same_client_that_is_always_first_ends_the_run_soon() -> None:
    """The one with the fewest examples has trained before the others, whose values are as bad."""
    clients = [(X[:size] * np.float32(1e5), Y[:size]) for size in (8, 16, 32, 40)]
    normal = Learner(model=lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)), loss=nn.functional.cross_entropy)
    plan = PLAN | {"cohort": {"select": 4, "goal": 4}, "task": {"batch_size": 8}}
    with pytest.raises(ClientFailed, match=r"failed in round 5: .*running_var.*above 65536"):
        simulate(plan, normal, clients, progress=False)


def test_bad_values_of_one_client_are_counted_and_the_others_go_on() -> None:
    class Broken:
        def train(self, model: Any, data: Any, task: Any, *, device: str, **more: Any) -> Update:
            return giving(delta={"w": np.full(2, np.nan if device == "client-1" else 1.0)})(model, data, task)

    plan = {"cohort": {"select": 3, "goal": 3, "quorum": 0.6}, "finish": {"rounds": 2}}
    history = simulate(plan, Broken(), [(X, Y)] * 3, init=FIRST, progress=False)
    assert [(one.counted, one.withdrawn) for one in history.rounds] == [(2, 1)] * 2
    assert [one.device for one in history.withdrawals] == ["client-1"] * 2
    assert "the delta of 'w': the values hold NaN" in history.summary()


def test_a_loss_that_becomes_infinite_everywhere_ends_the_run_in_the_first_round() -> None:
    with pytest.raises(ClientFailed, match=r"failed in round 1: .* is inf.*\(2 have trained\)"):
        simulate(PLAN, net(), [(X * np.float32(1e38), Y)] * 2, progress=False)


def test_metrics_of_torch_and_numpy_are_numbers_and_what_has_no_value_is_left_out() -> None:
    import torch

    metrics = {"a": torch.tensor(0.25), "b": np.float32(0.5), "auc": float("nan"), "c": torch.tensor(float("nan"))}
    history = run(giving(metrics=metrics), init=FIRST)
    assert history.rounds[0].metrics == {"a": 0.25, "b": 0.5}


def test_a_learner_is_told_whose_examples_it_scores() -> None:
    told: list[str] = []

    class Mine:
        def train(self, model: Any, data: Any, task: Any, **options: Any) -> Update:
            return giving()(model, data, task)

        def evaluate(self, model: Any, data: Any, *, device: str = "?") -> Score:
            told.append(device)
            return Score(examples=1, metrics={"x": 1.0})

    class Short(Mine):
        def evaluate(self, model: Any, data: Any) -> Score:  # type: ignore[override]
            return Score(examples=1, metrics={"x": 1.0})

    class Wide(Mine):
        def evaluate(self, *arguments: Any, **options: Any) -> Score:
            return super().evaluate(*arguments, **options)

    clients = {name: type("Data", (), {"train": (X, Y), "test": (X, Y)})() for name in "ab"}
    for learner in (Mine(), Short(), Wide()):
        simulate(PLAN, learner, clients, test=(X, Y), score_clients="all", init=FIRST, progress=False)
    assert told == ["", "a", "b"] * 4
