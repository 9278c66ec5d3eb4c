"""Scores over clients and devices are those of all their examples together, in each engine; what cannot be added up is
refused before round 1."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.classification import BinaryAUROC, MulticlassF1Score

from client_sdk.learning import Learner, accuracy
from coordinator.engine.plan import Plan
from quorate import simulate
from tests.client_sdk.learning.metrics import F1, auc, f1, weighted

WEIGHTS = torch.tensor([1.0, 20.0])
SIZES = (3, 40, 9, 28)


class OfDifference(BinaryAUROC):
    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        super().update(torch.sigmoid(outputs[:, 1] - outputs[:, 0]), targets)


def learner(**metrics: Any) -> Learner:
    return Learner(model=lambda: nn.Linear(1, 2), loss=weighted(WEIGHTS), metrics=metrics)


@cache
def clients() -> dict[str, Any]:
    """Sorted by label, so that most clients have one label only."""
    rng = np.random.default_rng(0)
    y = np.sort((rng.random(sum(SIZES)) < 0.3).astype(int))
    x = (y + 0.8 * rng.normal(size=len(y))).astype("f4")[:, None]
    ends = np.cumsum(SIZES)
    parts = [(x[end - size : end], y[end - size : end]) for end, size in zip(ends, SIZES, strict=True)]
    return {f"c{number}": SimpleNamespace(train=part, test=part) for number, part in enumerate(parts)}


def everything() -> tuple[Any, Any]:
    parts = [client.test for client in clients().values()]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def plan(**task: Any) -> dict[str, Any]:
    return {
        "task": {"batch_size": 8, **task},
        "cohort": {"select": 4, "goal": 4},
        "finish": {"rounds": 2},
    }


ADDED = {"own": F1(), "macro": MulticlassF1Score(2), "auroc": OfDifference(thresholds=40)}


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_clients_and_devices_score_what_the_whole_set_scores(engine: Any) -> None:
    mine = learner(**ADDED)
    history = simulate(
        plan(score_held_out=True),
        mine,
        clients(),
        test=everything(),
        score_clients="all",
        engine=engine,
        progress=False,
    )
    for name in ("loss", *ADDED):
        central = history.metric(name).values
        assert history.metric(name, "clients").values == pytest.approx(central, rel=1e-5)
        assert history.metric(name, "devices").values == pytest.approx(central[:2], rel=1e-5)
        whole = mine.evaluate(history.checkpoint(1), everything()).metrics[name]
        assert central[1] == pytest.approx(whole, rel=1e-6)
    if engine == "processes":
        serial = simulate(plan(score_held_out=True), mine, clients(), score_clients="all", progress=False)
        for source in ("clients", "devices", "clients.p10"):
            for name in ("loss", *ADDED):
                assert list(history.metric(name, source).values) == list(serial.metric(name, source).values)


def test_a_function_is_a_mean_over_clients_and_a_client_where_it_is_undefined_is_counted() -> None:
    mine = learner(auc=auc, f1=f1)
    history = simulate(plan(score_held_out=True), mine, clients(), score_clients="all", progress=False)
    first = history.checkpoint(0)
    scores = [mine.evaluate(first, client.test) for client in clients().values()]
    having = [one for one in scores if "auc" in one.metrics]
    assert 0 < len(having) < len(scores)
    mean = sum(one.metrics["auc"] * one.examples for one in having) / sum(one.examples for one in having)
    for source in ("clients", "devices"):
        assert history.metric("auc", source).values[0] == pytest.approx(mean)
        assert history.metric("auc.undefined", source).values[0] == len(scores) - len(having)


def test_a_run_may_finish_by_a_metric_whose_states_devices_send() -> None:
    asked = plan(score_held_out=True) | {
        "finish": {"rounds": 9, "metric": "macro", "source": "devices", "target": 0.0, "better": "higher"}
    }
    history = simulate(asked, learner(**ADDED), clients(), progress=False)
    assert history.status == "finished"
    assert "macro" in history.reason


class Scores:
    """It keeps all scores."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def update(self, outputs: Any, targets: Any) -> None:
        self.kept.append((outputs, targets))

    def merge(self, other: Any) -> None:
        self.kept += other.kept

    def compute(self) -> float:
        return float(len(self.kept))


class Highest:
    """Of a fixed size, and no sum."""

    def __init__(self) -> None:
        self.most = -1e9

    def update(self, outputs: Any, targets: Any) -> None:
        self.most = max(self.most, float(outputs.max()))

    def merge(self, other: Any) -> None:
        self.most = max(self.most, other.most)

    def compute(self) -> float:
        return self.most


class Lonely(F1):
    merge = None  # type: ignore[assignment]


class Growing:
    """Its tensor grows with the data."""

    def __init__(self) -> None:
        self.kept = torch.zeros(0)

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.kept = torch.cat([self.kept, outputs.flatten()])

    def merge(self, other: Any) -> None:
        self.kept = torch.cat([self.kept, other.kept])

    def compute(self) -> float:
        return float(self.kept.mean())


@pytest.mark.parametrize("task", [{"score_held_out": True}, {}])
@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (
            OfDifference(),
            r"keeps every score and label: give it bins of a fixed number \(of torchmetrics: thresholds=100",
        ),
        (OfDifference(thresholds=300), "have 1200 numbers, and a device sends 1024 at most: give them fewer bins"),
        (Scores(), "its state kept grows with the data: keep counts in bins"),
        (Lonely(), r"has no merge\(other\)"),
        (Highest(), r"m cannot be added up.*which its merge\(other\) adds.* counts in bins"),
        (Growing(), r"m cannot be added up.*which its merge\(other\) adds.* counts in bins"),
    ],
)
def test_a_state_that_does_not_add_up_is_refused_for_clients_before_round_1(metric: Any, words: str, task: Any) -> None:
    scored = {} if task else {"score_clients": "all"}
    with pytest.raises(ValueError, match=words):
        simulate(plan(**task), learner(m=metric), clients(), progress=False, **scored)
    alone = simulate(plan(), learner(m=metric), clients(), test=everything(), progress=False)
    assert len(alone.metric("m").values) == 3, "it is fine on a test set"


def test_positions_that_count_weigh_more_than_examples() -> None:
    """Accuracy over sequences of which clients have more and less that count."""
    rng = np.random.default_rng(1)

    def part(size: int, ignored: int) -> Any:
        y = rng.integers(0, 3, (size, 4))
        y[:, :ignored] = -100
        return rng.normal(size=(size, 4, 2)).astype("f4"), y

    class Transposed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).movedim(-1, 1)

    mine = Learner(model=lambda: Transposed(2, 3), loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy})
    parts = [part(9, 0), part(5, 3), part(12, 2)]
    whole = tuple(np.concatenate([one[side] for one in parts]) for side in (0, 1))
    asked = Plan.parse(
        {
            "name": "p",
            "task": {"learner": "t:t", "score_held_out": True},
            "cohort": {"select": 3, "goal": 3},
            "finish": {"rounds": 1},
        }
    )
    data = [SimpleNamespace(train=one, test=one) for one in parts]
    history = simulate(asked, mine, data, test=whole, score_clients="all", progress=False)
    for name in ("loss", "accuracy"):
        central = history.metric(name).values
        assert history.metric(name, "clients").values == pytest.approx(central, rel=1e-5)
        assert history.metric(name, "devices").values == pytest.approx(central[:1], rel=1e-5)
