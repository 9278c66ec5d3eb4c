"""A step size that changes from step to step: every optimizer against its paper in numpy, and whole trainings against
a loop of numpy. A constant rate cannot tell a rate inside the momentum from one outside of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Learner
from coordinator.datacenter.optimizers import make_optimizer, set_learning_rate
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import GlobalOrder, train
from tests.coordinator.datacenter.models import examples, plain

pytestmark = pytest.mark.datacenter

STEPS = 20
SCHEDULE: dict[str, Any] = {"steps": STEPS, "learning_rate": 0.4, "warmup_steps": 6, "decay": "cosine"}
Array = Any


class SGD:
    """v <- m v + (g + d w); w <- w - lr v: SGD with heavy-ball momentum as torch has it."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.v: Array = 0.0

    def moved(self, w: Array, g: Array, lr: float, t: int) -> Array:
        self.v = self.recipe.momentum * self.v + (g + self.recipe.weight_decay * w)
        return w - lr * self.v


class LARS(SGD):
    """Algorithm 1 of arXiv:1708.03888: the rate of a step stays with what that step adds."""

    def moved(self, w: Array, g: Array, lr: float, t: int) -> Array:
        decay = self.recipe.weight_decay if w.ndim > 1 else 0.0
        local: Array = 1.0
        if w.ndim > 1:
            norm = np.linalg.norm(w)
            local = self.recipe.trust_coefficient * norm / (np.linalg.norm(g) + decay * norm)
        self.v = self.recipe.momentum * self.v + lr * local * (g + decay * w)
        return w - self.v


class LAMB:
    """Algorithm 2 of arXiv:1904.00962, phi the identity."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.m: Array = 0.0
        self.v: Array = 0.0

    def moved(self, w: Array, g: Array, lr: float, t: int) -> Array:
        b1, b2, eps = self.recipe.momentum, 0.999, 1e-6
        self.m, self.v = b1 * self.m + (1 - b1) * g, b2 * self.v + (1 - b2) * g * g
        r = (self.m / (1 - b1**t)) / (np.sqrt(self.v / (1 - b2**t)) + eps)
        if w.ndim == 1:
            return w - lr * r
        r = r + self.recipe.weight_decay * w
        return w - lr * np.linalg.norm(w) / np.linalg.norm(r) * r


REFERENCES: dict[str, type[SGD | LAMB]] = {"sgd": SGD, "lars": LARS, "lamb": LAMB}


@pytest.mark.parametrize("name", REFERENCES)
def test_an_optimizer_is_its_papers_under_warm_up_and_decay(name: str) -> None:
    recipe = Recipe(optimizer=name, weight_decay=0.05, trust_coefficient=0.02, **SCHEDULE)
    rng = np.random.default_rng(4)
    params = [nn.Parameter(torch.from_numpy(rng.normal(size=shape))) for shape in ((4, 3), (4,))]
    optimizer = make_optimizer(recipe, plain(), params)
    expected = [(weight.detach().numpy().copy(), REFERENCES[name](recipe)) for weight in params]
    for step in range(STEPS):
        rate = recipe.learning_rate_at(step)
        set_learning_rate(optimizer, rate)
        for place, weight in enumerate(params):
            gradient = rng.normal(size=weight.shape)
            weight.grad = torch.from_numpy(gradient.copy())
            values, reference = expected[place]
            expected[place] = (reference.moved(values, gradient, rate, step + 1), reference)
        optimizer.step()
        for weight, (values, _) in zip(params, expected, strict=True):
            assert np.abs(weight.detach().numpy() - values).max() < 1e-13 * max(1.0, np.abs(values).max()), step


@pytest.mark.parametrize("name", REFERENCES)
def test_a_training_is_a_loop_of_numpy(name: str) -> None:
    """Softmax regression, 2 epochs and a half: the order of each epoch, the rate of each step, the optimizer."""
    recipe = Recipe(optimizer=name, weight_decay=0.01, trust_coefficient=0.02, batch_size=6, seed=3, **SCHEDULE)
    learner = Learner(model=lambda: nn.Linear(6, 3).double(), loss=nn.functional.cross_entropy)
    first = learner.initial(1)
    trained, _ = train(learner, first, examples(), recipe)
    x, y = examples()
    model, moves = dict(first), {key: REFERENCES[name](recipe) for key in first}
    order = GlobalOrder(len(x), recipe.batch_size, recipe.seed)
    for step in range(STEPS):
        rows = order.at(step).numpy()
        logits = x[rows] @ model["weight"].T + model["bias"]
        chances = np.exp(logits - logits.max(1, keepdims=True))
        error = (chances / chances.sum(1, keepdims=True) - np.eye(3)[y[rows]]) / len(rows)
        rate = recipe.learning_rate_at(step)
        for key, gradient in (("weight", error.T @ x[rows]), ("bias", error.sum(0))):
            model[key] = moves[key].moved(model[key], gradient, rate, step + 1)
    for key, values in model.items():
        assert np.abs(trained[key] - values).max() < 1e-10
        assert np.abs(values - first[key]).max() > 1e-3


def test_lars_moves_a_layer_of_zeros_too() -> None:
    weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    weight.grad = torch.ones(2, 2, dtype=torch.float64)
    make_optimizer(Recipe(steps=1, optimizer="lars", learning_rate=0.5), plain(), [weight]).step()
    assert torch.equal(weight.detach(), torch.full((2, 2), -0.5, dtype=torch.float64))


def test_every_epoch_has_another_order_of_the_same_examples() -> None:
    order = GlobalOrder(50, 12, 7)
    epochs = [[int(row) for step in range(5) for row in order.at(5 * epoch + step)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
