"""Recipes: the plans that the papers mean, equality with what can be computed by hand, and curves that compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, TensorDataset

from client_sdk.learning import Learner, accuracy
from client_sdk.learning.errors import LearnerFailed
from client_sdk.protocol.devices import Score
from client_sdk.update import Update
from coordinator.engine.plan_file import PlanError
from simulation import Behaviour, Clients, Stalled, recipes
from simulation.history import Curve, HistoryError
from simulation.recipes.baselines import moved, pooled


def blobs(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three kinds of points in the plane, [n, 2], that a line can almost tell apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    rng.shuffle(y)
    centres = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.5]])
    return (centres[y] + rng.normal(size=(n, 2))).astype(np.float32), y.astype(np.int64)


class Part:
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y


class Parts:
    """One client with held-out examples."""

    def __init__(self, n: int, seed: int) -> None:
        self.train, self.test = Part(*blobs(n, seed)), Part(*blobs(20, 1000 + seed))


@pytest.fixture(scope="module")
def clients() -> Clients:
    return Clients.of({f"c{k}": Parts(10 + 10 * k, k) for k in range(6)})


TEST = Part(*blobs(300, 77))
LEARNER = Learner(
    model=lambda: nn.Linear(2, 3), loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy}, version="1"
)


def gradient_step(model: dict[str, Any], x: np.ndarray, y: np.ndarray, rate: float) -> dict[str, np.ndarray]:
    """One step along the gradient of the mean loss, in float64."""
    line = nn.Linear(2, 3).double()
    line.load_state_dict({name: torch.from_numpy(np.array(array)).double() for name, array in model.items()})
    nn.functional.cross_entropy(line(torch.from_numpy(x).double()), torch.from_numpy(y)).backward()
    return {name: (p.detach() - rate * p.grad).numpy() for name, p in line.named_parameters() if p.grad is not None}


def test_fedsgd_is_one_gradient_step_on_the_data_of_all_its_clients(clients: Clients):
    history = recipes.fedsgd(LEARNER, clients, rounds=2, per_round=6, learning_rate=0.5, test=TEST)
    x, y = pooled(clients)
    for version in (1, 2):
        by_hand = gradient_step(history.checkpoint(version - 1), x, y, 0.5)
        for name, array in history.checkpoint(version).items():
            np.testing.assert_allclose(array, by_hand[name], atol=2e-6)
    assert [row.counted for row in history.rounds] == [6, 6]


def test_fedavg_does_what_the_plan_of_the_paper_says(clients: Clients):
    history = recipes.fedavg(
        LEARNER,
        clients,
        rounds=8,
        per_round=3,
        epochs=2,
        batch_size=5,
        learning_rate=0.2,
        test=TEST,
        score_clients="all",
    )
    task = history.plan.task
    assert (task.epochs, task.batch_size, task.learning_rate, task.mu) == (2, 5, 0.2, 0.0)
    assert (history.plan.cohort.select, history.plan.cohort.goal, history.plan.cohort.quorum_count) == (3, 3, 1)
    assert len(history) == 8
    assert all(row.counted == 3 for row in history.rounds)
    assert history.final("accuracy") > 0.85 > history.metric("accuracy").values[0]
    assert history.final("accuracy", "clients.p10") <= history.final("accuracy", "clients")


def test_a_target_ends_the_run(clients: Clients):
    history = recipes.fedavg(LEARNER, clients, rounds=50, per_round=6, target=0.8, test=TEST)
    assert history.status == "finished"
    assert len(history) < 50
    assert history.final("accuracy") >= 0.8


def test_a_recipe_says_how_many_steps_and_in_which_way_they_are_made(clients: Clients):
    how = {"rounds": 2, "per_round": 3, "task_steps": 3, "batch_size": 5}
    plain, traced = (recipes.fedavg(LEARNER, clients, **how, steps=steps) for steps in ("exact", "traced"))
    assert (plain.steps, traced.steps) == ("exact", "traced")
    assert [run.plan.task.steps for run in (plain, traced)] == [3, 3]
    for name, array in plain.checkpoint().items():
        np.testing.assert_allclose(traced.checkpoint()[name], array, rtol=1e-5)
    with pytest.raises(ValueError, match="there are no local steps 3"):
        recipes.fedavg(LEARNER, clients, steps=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("give one of them", {"epochs": 2, "task_steps": 3}),
        ("per_round", {"per_round": 60}),
        ("learning_rate", {"learning_rate": -1.0}),
    ],
)
def test_what_makes_no_sense_is_refused(clients: Clients, words: str, arguments: dict[str, Any]):
    with pytest.raises(ValueError, match=words):
        recipes.centralized(LEARNER, clients, test=TEST, rounds=1, **arguments)


@pytest.mark.slow
def test_stragglers_are_dropped_or_count(clients: Clients):
    options = {"rounds": 3, "per_round": 6, "epochs": 4, "batch_size": 2, "stragglers": 0.5, "test": TEST, "seed": 3}
    dropped = recipes.fedprox_with_stragglers(LEARNER, clients, partial="refuse", mu=0.0, **options)
    counted = recipes.fedprox_with_stragglers(LEARNER, clients, partial="full", mu=0.0, **options)
    proximal = recipes.fedprox_with_stragglers(LEARNER, clients, partial="full", mu=1.0, **options)
    assert all(row.counted == 6 for row in counted.rounds)
    assert [(row.counted, row.withdrawn) for row in dropped.rounds] == [(3, 3)] * 3, "an exact share, as in the paper"
    start = counted.checkpoint(0)

    def went(history: Any) -> float:
        return float(sum(np.square(history.checkpoint(1)[name] - start[name]).sum() for name in start))

    assert went(proximal) < went(counted), "the proximal term holds clients near the model"


def test_a_fleet_that_never_reports_never_makes_a_round(clients: Clients):
    with pytest.raises(Stalled):
        recipes.fedavg(LEARNER, clients, rounds=1, per_round=2, behaviour=Behaviour(dropout=1.0))


def test_other_behaviour_stays_beside_the_stragglers(clients: Clients):
    history = recipes.fedprox_with_stragglers(
        LEARNER, clients, rounds=2, per_round=4, stragglers=0.5, behaviour=Behaviour(dropout=0.5), seed=1
    )
    assert sum(row.dropped for row in history.rounds) > 0
    with pytest.raises(ValueError, match="one Behaviour"):
        recipes.fedprox_with_stragglers(LEARNER, clients, rounds=1, behaviour={"a": Behaviour()})


def test_all_three_agree_where_there_is_one_client_and_one_batch():
    """Then federation, one place and one client alone are the same training."""
    one = Clients.of({"only": Parts(30, 5)})
    options: dict[str, Any] = {"rounds": 3, "batch_size": 100, "epochs": 2, "learning_rate": 0.3, "test": TEST}
    federated = recipes.fedavg(LEARNER, one, per_round=1, **options)
    alone, together = recipes.local_only(LEARNER, one, **options), recipes.centralized(LEARNER, one, **options)
    for name in ("accuracy", "loss"):
        np.testing.assert_allclose(alone.metric(name).values, federated.metric(name).values, rtol=1e-5)
        np.testing.assert_allclose(together.metric(name).values, federated.metric(name).values, rtol=1e-5)
    assert federated.metric("loss").values[-1] < federated.metric("loss").values[0]


def test_local_only_scores_each_model_on_its_own_client(clients: Clients):
    made = recipes.local_only(LEARNER, clients, rounds=2, batch_size=5, epochs=3, test=TEST)
    alone = {c: recipes.local_only(LEARNER, {c: clients[c]}, rounds=2, batch_size=5, epochs=3) for c in clients}
    own = [alone[c].final("accuracy", "clients") for c in clients]
    assert made.final("accuracy", "clients") == pytest.approx(np.mean(own))
    assert made.final("accuracy", "clients.p10") == pytest.approx(np.percentile(own, 10))
    assert made.final("accuracy", "evaluator.p10") <= made.final("accuracy")
    assert len(recipes.local_only(LEARNER, clients, rounds=1, train_clients=2).curves) == 6


def test_centralized_takes_the_steps_of_a_federated_round(clients: Clients):
    """60 + ... + 10 examples in batches of 10: 1 to 6 steps, 3.5 in the mean; of two clients 7."""
    seen = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(LEARNER, name)

        def train(self, model: Any, data: Any, task: Any, **rest: Any) -> Any:
            seen.append((task.steps, len(data[0])))
            return LEARNER.train(model, data, task, **rest)

    recipes.centralized(Counting(), clients, test=TEST, rounds=2, per_round=2)
    recipes.centralized(Counting(), clients, test=TEST, rounds=1)
    assert seen == [(7, 210), (7, 210), (21, 210)]


def test_centralized_scores_clients_too(clients: Clients):
    made = recipes.centralized(
        LEARNER, clients, rounds=1, score_clients="all", classes=lambda client: "odd" if client in "c1c3c5" else "even"
    )
    assert {source for source, _ in made.curves} == {"clients", "clients.p10", "clients.p90", "class.odd", "class.even"}


def test_torch_datasets_are_pooled_as_they_are():
    parts = [TensorDataset(*map(torch.from_numpy, blobs(n, n))) for n in (4, 6)]
    together = pooled(Clients.of(parts))
    assert isinstance(together, ConcatDataset)
    assert len(together) == 10
    with pytest.raises(ValueError, match="one place"):
        pooled(Clients.of([parts[0], blobs(3, 0)]))


def test_tensors_that_are_not_sent_stay():
    model = {"w": np.ones(2, np.float16), "count": np.array(3)}

    after = moved(model, Update({"w": np.full(2, 0.5, np.float32)}, examples=1))
    assert after["w"].dtype == np.float16
    assert after["w"].tolist() == [1.5, 1.5]
    assert after["count"] is model["count"]


def test_ctrl_c_leaves_what_there_is(clients: Clients):
    class Stopping:
        rounds = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(LEARNER, name)

        def train(self, *arguments: Any, **rest: Any) -> Any:
            self.rounds += 1
            if self.rounds > 2:
                raise KeyboardInterrupt
            return LEARNER.train(*arguments, **rest)

    made = recipes.centralized(Stopping(), clients, test=TEST, rounds=5, per_round=1)
    assert made.interrupted
    assert made.metric("accuracy").versions.tolist() == [0, 1, 2]


# ------------------------------------------------------------ beside each other


def curve(*points: tuple[int, float]) -> Curve:
    versions, values = zip(*points, strict=True)
    return Curve(np.array(versions), np.array(values))


def test_rounds_to_a_target_are_read_off_the_monotonic_curve():
    accuracy_ = curve((0, 0.1), (10, 0.5), (20, 0.4), (30, 0.9))
    assert recipes.rounds_to(accuracy_, 0.5) == 10
    assert recipes.rounds_to(accuracy_, 0.7) == pytest.approx(25), "from 0.5 at 20, not from 0.4"
    assert recipes.rounds_to(accuracy_, 0.05) == 0
    assert recipes.rounds_to(accuracy_, 0.95) is None
    assert recipes.rounds_to(curve((0, 2.0), (4, 1.0)), 1.5, "lower") == pytest.approx(2)


def test_runs_are_drawn_beside_each_other(clients: Clients, tmp_path: Path):
    runs = {
        "FedAvg": recipes.fedavg(LEARNER, clients, rounds=2, per_round=2, test=TEST),
        "one place": recipes.centralized(LEARNER, clients, rounds=2, per_round=2, test=TEST),
    }
    figure = recipes.draw(runs, title="Two", path=tmp_path / "two.svg")
    assert (tmp_path / "two.svg").stat().st_size > 1000
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["FedAvg", "one place"]
    np.testing.assert_array_equal(lines[0].get_ydata(), runs["FedAvg"].metric("accuracy").values)
    with pytest.raises(HistoryError, match="no metric 'f1'"):
        recipes.draw(runs, "f1")
    with pytest.raises(HistoryError, match="no runs"):
        recipes.draw({})


def test_a_baseline_reads_like_a_history():
    made = recipes.Baseline("x")
    for version, value in enumerate([0.2, 0.9, 0.6]):
        made.scores[version, "evaluator"] = Score(examples=5, metrics={"accuracy": value, "loss": 1 - value})
    assert made.best("accuracy") == (1, 0.9)
    assert made.best("loss") == (1, pytest.approx(0.1))
    assert (made.final("accuracy"), len(made)) == (0.6, 2)
    table = made.to_pandas()
    assert list(table.columns) == ["version", "source", "name", "value", "examples"]
    assert len(table) == 6
    with pytest.raises(HistoryError, match="there is accuracy of evaluator, loss of evaluator"):
        made.metric("accuracy", "clients")


@pytest.mark.parametrize(
    ("recipe", "arguments", "words"),
    [
        ("fedavg", {"per_round": 0}, "per_round=0 must be a whole number, 1 or more"),
        ("fedavg", {"per_round": 7}, "per_round=7 must be from 1 to the 6 clients"),
        ("fedsgd", {"per_round": 7}, "per_round=7 must be from 1 to the 6 clients"),
        ("fedavg", {"epochs": 0}, "task.epochs"),
        ("local_only", {"epochs": 0}, "^epochs=0: "),
        ("local_only", {"batch_size": 0}, "^batch_size=0: Input should be greater than or equal to 1$"),
        ("centralized", {"rounds": 1.5}, "rounds=1.5 must be a whole number"),
        ("centralized", {"learner": nn.Linear(2, 3)}, "a Linear is a torch module"),
        ("local_only", {"learner": nn.Linear(2, 3)}, "a Linear is a torch module"),
        ("centralized", {}, "nothing here would be scored: give test="),
    ],
)
def test_every_recipe_says_in_a_sentence_what_it_will_not_do(
    clients: Clients, recipe: str, arguments: dict[str, Any], words: str
):
    given = {"learner": LEARNER, "clients": clients, "rounds": 1, "progress": False} | arguments
    with pytest.raises((ValueError, PlanError), match=words):
        getattr(recipes, recipe)(**given)


def test_a_recipe_for_fewer_clients_than_a_round_asks_takes_them_all(clients: Clients):
    history = recipes.fedavg(LEARNER, clients, rounds=1, progress=False)
    assert (history.rounds[0].selected, history.rounds[0].counted) == (6, 6)


def test_a_client_that_fails_alone_is_named(clients: Clients):
    def mine(outputs: Any, targets: Any) -> Any:
        if outputs.requires_grad:
            raise KeyError("of the user's own")
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(LearnerFailed, match="of the user's own") as failed:
        recipes.local_only(replace(LEARNER, loss=mine), clients, rounds=1, progress=False)
    assert failed.value.__notes__ == ["The client was 'c0', in round 1."]


def test_clients_without_examples_are_not_trained_alone():
    x, y = blobs(20, 1)
    alone = recipes.local_only(LEARNER, {"empty": (x[:0], y[:0]), "full": (x, y)}, test=TEST, rounds=1, progress=False)
    assert alone.scores[1, "evaluator"].examples == len(TEST.y), "of one model"
    assert repr(alone).startswith("<Baseline local only: 1 round · accuracy 0.")


def test_repro_a_curve_that_ends_early_says_so() -> None:
    """It stopped in the middle of the picture without a word."""

    class Run:
        def __init__(self, rounds: int) -> None:
            self.rounds = rounds

        def metric(self, name: str, source: str = "evaluator") -> Curve:
            return Curve(np.arange(self.rounds + 1), np.linspace(0, 1, self.rounds + 1))

    axes = recipes.draw({"short": Run(3), "long": Run(9)}).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["short (to round 3)", "long"]
    dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in dots] == [([3], [1.0])]
