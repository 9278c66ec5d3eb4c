"""A score is that of the whole set: each kind of metric gives the same for any batch, and what a bare call gives."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, MulticlassF1Score

from client_sdk.learning import Learner, LearnerFailed, measures
from client_sdk.protocol.devices import Task
from tests.client_sdk.learning.metrics import F1, auc, f1, weighted

COUNT = 600


def sorted_by_label() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.sort((rng.random(COUNT) < 0.1).astype(int))
    return (y + 0.8 * rng.normal(size=COUNT)).astype("f4")[:, None], y


X, Y = sorted_by_label()
MODEL = {"weight": np.array([[-3.0], [3.0]], "f4"), "bias": np.array([2.0, -2.0], "f4")}
OUTPUTS = nn.functional.linear(*(torch.from_numpy(one) for one in (X, MODEL["weight"], MODEL["bias"])))
TARGETS = torch.from_numpy(Y)


class OfDifference:
    """A metric of torchmetrics for one score of two logits, as an author would adapt it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        super().update(torch.sigmoid(outputs[:, 1] - outputs[:, 0]), targets)  # type: ignore[misc]


class AUROC(OfDifference, BinaryAUROC):
    pass


class MicroF1(OfDifference, BinaryF1Score):
    pass


KINDS: dict[str, tuple[Any, float]] = {
    "a function": (f1, float(f1(OUTPUTS, TARGETS))),
    "a function of pairs of examples": (auc, float(auc(OUTPUTS, TARGETS))),
    "a pair": (lambda o, t: ((o.argmax(1) == t)[t == 1].sum(), (t == 1).sum()), None),
    "an object": (F1(), float(f1(OUTPUTS, TARGETS))),
    "torchmetrics, counts": (MulticlassF1Score(2, average="macro"), None),
    "torchmetrics, all scores": (AUROC(), float(auc(OUTPUTS, TARGETS))),
    "torchmetrics, bins": (AUROC(thresholds=50), None),
    "torchmetrics, arithmetic": (MicroF1() + MicroF1(), 2 * float(f1(OUTPUTS, TARGETS))),
}


def learner(metric: Any, loss: Any = nn.functional.cross_entropy, **options: Any) -> Learner:
    return Learner(model=lambda: nn.Linear(1, 2), loss=loss, metrics={"m": metric}, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_metric_is_that_of_the_whole_set(kind: str) -> None:
    metric, wanted = KINDS[kind]
    scores = [learner(metric).evaluate(MODEL, (X, Y), batch=batch) for batch in (COUNT, 512, 37, 1)]
    for score in scores:
        assert score.metrics == pytest.approx(scores[0].metrics, rel=1e-5)
        assert score.states == scores[0].states
        assert wanted is None or score.metrics["m"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_measured_in_training_over_all_batches(kind: str) -> None:
    """At a learning rate that moves nothing, training sees what a score sees."""
    metric, _ = KINDS[kind]
    one = learner(metric, training_metrics=True)
    task = Task(learner="t:t", batch_size=40, learning_rate=1e-12)
    update = one.train(MODEL, (X, Y), task, device="d", round=1)
    assert update.metrics == pytest.approx(one.evaluate(MODEL, (X, Y)).metrics, rel=1e-4)


WEIGHTS = torch.tensor([1.0, 20.0])


@pytest.mark.parametrize(
    "loss",
    [
        weighted(WEIGHTS),
        lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, weight=WEIGHTS),
        nn.CrossEntropyLoss(weight=WEIGHTS),
    ],
)
def test_a_loss_with_class_weights_is_that_of_the_whole_set(loss: Any) -> None:
    wanted = float(nn.functional.cross_entropy(OUTPUTS, TARGETS, weight=WEIGHTS))
    for batch in (COUNT, 512, 37):
        assert learner(f1, loss).evaluate(MODEL, (X, Y), batch=batch).metrics["loss"] == pytest.approx(wanted, rel=1e-5)


def test_labels_that_the_loss_ignores_weigh_nothing_and_may_fill_a_batch() -> None:
    y = Y.copy()
    y[:300] = -100
    wanted = float(nn.functional.cross_entropy(OUTPUTS, torch.from_numpy(y)))
    score = learner(f1).evaluate(MODEL, (X, y), batch=100)
    assert score.metrics["loss"] == pytest.approx(wanted, rel=1e-6)
    assert score.weights == {"loss": 300.0}


def test_a_pair_trains_as_the_mean_that_it_stands_for() -> None:
    def mean(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, weight=WEIGHTS)

    task = Task(learner="t:t", batch_size=64, epochs=2, learning_rate=0.1)
    one, other = (
        learner(f1, loss).train(MODEL, (X, Y), task, device="d", round=1) for loss in (mean, weighted(WEIGHTS))
    )
    for name, delta in one.delta.items():
        np.testing.assert_allclose(other.delta[name], delta, rtol=1e-4, atol=1e-7)


def test_a_batch_of_weight_zero_moves_nothing() -> None:
    def masked(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counted = (targets == 1).float()
        return (nn.functional.cross_entropy(outputs, targets, reduction="none") * counted).sum(), counted.sum()

    task = Task(learner="t:t", batch_size=30, learning_rate=0.1)
    update = learner(f1, masked).train(MODEL, (X[Y == 0], Y[Y == 0]), task, device="d", round=1)
    assert not any(delta.any() for delta in update.delta.values())
    assert update.metrics["loss"] == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_outputs_are_scored_as_float32(dtype: torch.dtype) -> None:
    one = Learner(
        model=lambda: nn.Linear(1, 2).to(dtype), loss=nn.functional.cross_entropy, metrics={"f1": f1, "object": F1()}
    )
    start = one.initial(0)
    with torch.no_grad():
        outputs = one.load(start)(torch.from_numpy(X).to(dtype)).float()
    wanted = {"loss": float(nn.functional.cross_entropy(outputs, TARGETS)), "f1": float(f1(outputs, TARGETS))}
    for batch in (COUNT, 100):
        found = one.evaluate(start, (X, Y), batch=batch).metrics
        assert found == pytest.approx(wanted | {"object": wanted["f1"]}, rel=1e-5)


Named = namedtuple("Named", ["logits", "hidden"])


class Structured(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return Named(super().forward(x), {"seen": x})


class Reusing(nn.Linear):
    """It returns the same memory for each batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        if not hasattr(self, "memory"):
            self.memory = torch.empty(COUNT, 2)
        self.memory[: len(found)] = found
        return self.memory[: len(found)]


@pytest.mark.parametrize("model", [Structured, Reusing])
def test_outputs_of_any_structure_are_put_together(model: Any) -> None:
    def of(function: Any) -> Any:
        return lambda outputs, targets: function(getattr(outputs, "logits", outputs), targets)

    one = Learner(model=lambda: model(1, 2), loss=of(nn.functional.cross_entropy), metrics={"f1": of(f1)})
    found = [one.evaluate(MODEL, (X, Y), batch=batch).metrics for batch in (COUNT, 50)]
    assert found[1] == pytest.approx(found[0], rel=1e-5)


class Growing(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[:, None].expand(-1, len(x), -1)


def test_outputs_that_make_no_batch_are_refused() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs[:, 0], targets)

    one = Learner(model=lambda: Growing(1, 2), loss=loss)
    with pytest.raises(LearnerFailed, match=r"\(sum, weight\) of a batch"):
        one.evaluate(MODEL, (X, Y), batch=512)


def test_outputs_too_large_to_be_kept_are_refused_where_a_function_needs_all(monkeypatch: Any) -> None:
    whole = learner(AUROC(thresholds=50)).evaluate(MODEL, (X, Y))
    monkeypatch.setattr(measures, "MOST_BYTES", 4096)
    with pytest.raises(LearnerFailed, match=r"m is a function of the outputs of all examples.*\(sum, weight\)"):
        learner(f1).evaluate(MODEL, (X, Y), batch=100)
    found = learner(AUROC(thresholds=50)).evaluate(MODEL, (X, Y), batch=100)
    assert (found.states, found.metrics) == (whole.states, pytest.approx(whole.metrics))
    assert set(Learner(model=lambda: nn.Linear(1, 2), loss=nn.functional.cross_entropy).evaluate(MODEL, (X, Y)).metrics)


def test_what_ranks_of_a_group_measured_is_that_of_all_their_examples_or_refused(monkeypatch: Any) -> None:
    def rank(metric: Any, part: slice) -> measures.Measurement:
        found = measures.Measurement({"m": metric})
        for start in range(part.start, part.stop, 50):
            found.update(OUTPUTS[start : start + 50], TARGETS[start : start + 50], 50)
        return found

    halves = slice(0, 300), slice(300, COUNT)
    monkeypatch.setattr(measures, "MOST_BYTES", 16 * 300)
    for metric, error in ((F1(), ""), (f1, "m is a function of the outputs of all examples")):
        ranks = [rank(metric, half) for half in halves]
        parts = [one.exported() for one in ranks]
        if error:
            with pytest.raises(LearnerFailed, match=error):
                ranks[0].absorbed(parts)
        else:
            assert ranks[0].absorbed(parts).results()["m"].value == pytest.approx(float(f1(OUTPUTS, TARGETS)))
    monkeypatch.setattr(measures, "MOST_BYTES", 16 * 299)
    with pytest.raises(LearnerFailed, match="in a group, the outputs and targets on which a rank computes m"):
        rank(F1(), halves[0]).exported()


def test_sums_and_weights_of_ranks_are_added() -> None:
    y = TARGETS.clone()
    y[:100] = -100
    for targets, weight in ((TARGETS, None), (y, float(COUNT - 100))):
        ranks = []
        for part in (slice(0, 300), slice(300, COUNT)):
            ranks.append(measures.Measurement({"loss": nn.functional.cross_entropy, "m": f1}))
            ranks[-1].update(OUTPUTS[part], targets[part], len(targets[part]))
        wanted = float(nn.functional.cross_entropy(OUTPUTS, targets))
        found = ranks[1].absorbed([one.exported() for one in ranks]).results()
        assert (found["loss"].value, found["loss"].weight) == (pytest.approx(wanted), weight)
    alone = ranks[1].absorbed([ranks[1].exported()]).results()
    assert alone["m"].value == pytest.approx(float(f1(OUTPUTS[300:], TARGETS[300:])))


def test_a_mean_of_nothing_is_undefined_and_a_function_is_called_once_more_than_on_a_batch() -> None:
    sizes: list[int] = []

    def counting(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        sizes.append(len(targets))
        return 1.0

    found = measures.Measurement({"loss": nn.functional.cross_entropy, "m": counting})
    for _ in range(3):
        found.update(OUTPUTS[:10], torch.full((10,), -100), 10)
    results = found.results()
    assert np.isnan(results["loss"].value)
    assert (results["loss"].weight, results["m"].weight) == (0.0, None)
    assert sizes == [10, 30]


def test_a_learners_own_object_is_never_updated() -> None:
    mine, theirs = F1(), MulticlassF1Score(2)
    one = Learner(
        model=lambda: nn.Linear(1, 2), loss=nn.functional.cross_entropy, metrics={"mine": mine, "theirs": theirs}
    )
    first = one.evaluate(MODEL, (X, Y))
    assert one.evaluate(MODEL, (X, Y)) == first
    assert (mine.right, theirs.update_count) == (0, 0)
    theirs.update(OUTPUTS, TARGETS)
    assert one.evaluate(MODEL, (X, Y)) == first, "it starts at zero, whatever its author did with it"


def test_a_collection_is_a_learners_metrics() -> None:
    metrics = torchmetrics.MetricCollection([MulticlassF1Score(2), torchmetrics.classification.MulticlassAccuracy(2)])
    one = Learner(model=lambda: nn.Linear(1, 2), loss=nn.functional.cross_entropy, metrics=metrics)  # type: ignore[arg-type]
    assert set(one.evaluate(MODEL, (X, Y)).metrics) == {"loss", "MulticlassF1Score", "MulticlassAccuracy"}
    with pytest.raises(TypeError, match="of several: give it as the learner's metrics"):
        learner(metrics)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (MulticlassF1Score(2, average="none"), r"m gave a tensor of shape \[2\]"),
        (lambda o, t: (1.0, 2.0, 3.0), "m gave 3 values"),
        (lambda o, t: (1.0, -1.0), "m gave the weight -1"),
        (lambda o, t: (1.0, float("inf")), "m gave the weight inf"),
        (lambda o, t: {"a": 1.0}, "m gave a dict: it must give one number"),
        (lambda o, t: (o.sum(), 1.0) if len(o) == 512 else o.sum(), "no pair for another"),
        (BinaryF1Score(), "on all examples of the held-out data: "),
    ],
)
def test_what_a_metric_may_not_give(metric: Any, words: str) -> None:
    with pytest.raises(LearnerFailed, match=words):
        learner(metric).evaluate(MODEL, (X, Y))


@pytest.mark.parametrize(("metric", "words"), [(F1, "is the class F1: give an object"), (3, "not a int")])
def test_what_is_no_metric(metric: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        learner(metric)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (Y > 0, "The targets are bool: where they are labels of classes, use integers"),
        (Y.astype("f4"), "The targets are float32: where they are labels of classes, use integers"),
        (Y + 1, "labels go from 1 to 2 and the model has 2 outputs: use integers from 0 to 1"),
        (Y - 7, "labels go from -7 to -"),
        (Y.astype(str), "no array of numbers.*: where they are labels, use integers"),
    ],
)
def test_wrong_labels_are_named(y: Any, words: str) -> None:
    one, task = learner(f1), Task(learner="t:t")
    for use in (lambda: one.evaluate(MODEL, (X, y)), lambda: one.train(MODEL, (X, y), task)):
        with pytest.raises(Exception, match=words):
            use()


def recall(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    found = outputs[:, 1] > outputs[:, 0]
    return int((found & (targets == 1)).sum()) / int((targets == 1).sum())


def one_kind(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    if len(set(targets.tolist())) < 2:
        raise ValueError("only one class is present")
    return recall(outputs, targets)


@pytest.mark.parametrize("function", [recall, one_kind])
def test_a_function_that_fails_on_the_first_batch_is_that_of_the_whole_set(function: Any) -> None:
    order = np.argsort(Y, kind="stable")
    assert not Y[order][:64].any(), "the first batch has one label"
    whole = learner(function).evaluate(MODEL, (X, Y), batch=len(Y)).metrics["m"]
    for batch in (64, len(Y)):
        assert learner(function).evaluate(MODEL, (X[order], Y[order]), batch=batch).metrics["m"] == whole
    with pytest.raises(LearnerFailed, match="on all examples of the held-out data: ValueError: only one class"):
        learner(one_kind).evaluate(MODEL, (X, Y * 0))


class Recall:
    def __init__(self) -> None:
        self.found = self.positive = 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.found += int(((outputs[:, 1] > outputs[:, 0]) & (targets == 1)).sum())
        self.positive += int((targets == 1).sum())

    def merge(self, other: Recall) -> None:
        self.found, self.positive = self.found + other.found, self.positive + other.positive

    def compute(self) -> float:
        return self.found / self.positive


def test_a_metric_that_divides_by_zero_has_no_value_there_and_its_states_add_up() -> None:
    for one in (recall, Recall()):
        mine = learner(one)
        score = mine.evaluate(MODEL, (X, Y * 0))
        assert score.metrics.keys() == {"loss", "m.undefined"}
    other, whole = (mine.evaluate(MODEL, (X, y)) for y in (Y, Y))
    total = [sum(numbers) for numbers in zip(score.states["m"], other.states["m"], strict=True)]
    assert mine.computed("m", total) == whole.metrics["m"]
    assert np.isnan(mine.computed("m", score.states["m"]))
