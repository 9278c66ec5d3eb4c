"""Scores: weighted by examples whatever the batches, in eval mode, with clear words for what is no score."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import DataError, Diverged, Learner, LearnerFailed, NoExamples, accuracy

WHO = {"device": "d7", "round": 3}


def by_hand(learner, start, data):
    module = learner.load(start).eval()
    outputs = module(torch.from_numpy(data[0])).detach()
    y = torch.from_numpy(data[1])
    right = float((outputs.argmax(1) == y).sum()) / len(y)
    return {"loss": float(nn.functional.cross_entropy(outputs, y)), "accuracy": right}


@pytest.mark.parametrize("batch", [1, 8, 20, 21, 500])
def test_an_uneven_last_batch_weighs_what_it_holds(learner, data, batch):
    start = learner.initial(0)
    score = learner.evaluate(start, data, batch=batch)
    assert score.examples == 21
    assert score.metrics == pytest.approx(by_hand(learner, start, data), rel=1e-6)


def test_layers_are_in_eval_mode_and_no_gradients_are_kept(data):
    modes = []

    class Watched(nn.Linear):
        def forward(self, x):
            modes.append((self.training, torch.is_grad_enabled()))
            return super().forward(x)

    learner = Learner(
        model=lambda: nn.Sequential(Watched(6, 3), nn.BatchNorm1d(3), nn.Dropout()), loss=nn.functional.cross_entropy
    )
    start = learner.initial(0)
    assert learner.evaluate(start, data, batch=1).metrics == pytest.approx(
        learner.evaluate(start, data, batch=21).metrics
    )
    assert set(modes) == {(False, False)}


def test_the_received_checkpoint_is_scored_before_training(learner, data, task):
    start = learner.initial(0)
    asked = task(epochs=3, score_held_out=True)
    x, y = data
    device_data = SimpleNamespace(train=SimpleNamespace(x=x[:15], y=y[:15]), test=SimpleNamespace(x=x[15:], y=y[15:]))
    update = learner.train(start, device_data, asked, **WHO)
    assert update.examples == 15
    assert update.held_out == learner.evaluate(start, (x[15:], y[15:]))
    assert learner.train(start, device_data.train, asked, held_out=(x[15:], y[15:]), **WHO).held_out == update.held_out
    assert learner.train(start, device_data, task(), **WHO).held_out is None
    assert learner.train(start, device_data.train, asked, **WHO).held_out is None
    assert learner.train(start, device_data.train, asked, held_out=(x[:0], y[:0]), **WHO).held_out is None
    same = learner.train(start, device_data, task(epochs=3), **WHO).delta
    assert all(np.array_equal(same[n], update.delta[n]) for n in same)


def test_an_evaluator_takes_the_held_out_part(learner, data):
    x, y = data
    start = learner.initial(0)
    parts = SimpleNamespace(train=None, test=SimpleNamespace(x=x[:4], y=y[:4]))
    assert learner.evaluate(start, parts) == learner.evaluate(start, (x[:4], y[:4]))


def test_metrics_on_training_batches_are_there_when_asked_for(data, task):
    def model() -> nn.Module:
        return nn.Linear(6, 3)

    asked = Learner(
        model=model, loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy}, training_metrics=True
    )
    update = asked.train(asked.initial(0), data, task(learning_rate=1e-12), **WHO)
    assert update.metrics == pytest.approx(by_hand(asked, asked.initial(0), data), rel=1e-5)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda outputs, targets: outputs, r"rank gave a tensor of shape \[21, 3\]"),
        (lambda outputs, targets: None, "rank gave a NoneType"),
        (lambda outputs, targets: {}["a"], "on examples 0 to 20 of the held-out data: KeyError: 'a'"),
    ],
)
def test_what_a_metric_may_not_do(learner, data, metric, words):
    wrong = Learner(model=learner.model, loss=learner.loss, metrics={"rank": metric})
    with pytest.raises(LearnerFailed, match=words):
        wrong.evaluate(wrong.initial(0), data)


def test_a_python_number_is_a_fine_metric(learner, data):
    mine = Learner(model=learner.model, loss=learner.loss, metrics={"half": lambda outputs, targets: 0.5})
    assert mine.evaluate(mine.initial(0), data).metrics["half"] == 0.5


def test_a_score_that_is_not_finite_is_refused(learner, data):
    start = learner.initial(0)
    start["0.weight"][:] = np.nan
    with pytest.raises(Diverged, match="The model's loss on the held-out data is nan"):
        learner.evaluate(start, data)


def test_no_examples_no_score(learner, data):
    with pytest.raises(NoExamples, match="The held-out data holds no example"):
        learner.evaluate(learner.initial(0), (data[0][:0], data[1][:0]))
    with pytest.raises(ValueError, match="batch must be at least 1"):
        learner.evaluate(learner.initial(0), data, batch=0)
    with pytest.raises(DataError):
        learner.evaluate(learner.initial(0), None)


def undefined_on_one_label(outputs, targets):
    """Recall of class 2, which has no value where no example has that label."""
    positive = targets == 2
    return (outputs.argmax(1)[positive] == 2).float().mean()


def test_repro_a_metric_without_a_value_is_left_out_and_blames_no_weights(data, task):
    """It was ``The model's recall on the held-out data is nan: its weights or the data are not finite``."""
    learner = Learner(
        model=lambda: nn.Linear(6, 3),
        loss=nn.functional.cross_entropy,
        metrics={"recall": undefined_on_one_label},
        training_metrics=True,
    )
    start, (x, y) = learner.initial(0), data
    without = (x[y != 2], y[y != 2])
    assert set(learner.evaluate(start, data).metrics) == {"loss", "recall"}
    lacking = learner.evaluate(start, without).metrics
    assert set(lacking) == {"loss", "recall.undefined"}
    assert lacking["recall.undefined"] == 1
    assert set(learner.train(start, without, task(), **WHO).metrics) == {"loss"}
