"""The numbers of large-batch training: step sizes step by step, and one step of LARS and LAMB as the papers have it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from client_sdk.learning import Learner, LearnerFailed, PlainSGD
from client_sdk.protocol.devices import Task
from coordinator.datacenter.optimizers import Lamb, make_optimizer, set_learning_rate
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train
from tests.coordinator.datacenter import models

pytestmark = pytest.mark.datacenter


def weights() -> tuple[nn.Parameter, nn.Parameter]:
    """A matrix and a bias in float64, with gradients."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for shape in ((4, 3), (4,)):
        weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        weight.grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        found.append(weight)
    return found[0], found[1]


def numbers(weight: nn.Parameter) -> tuple[np.ndarray, np.ndarray]:
    assert weight.grad is not None
    return weight.detach().numpy().copy(), weight.grad.numpy().copy()


def lamb_by_hand(x, g, m, v, t, lr, decay, b1=0.9, b2=0.999, eps=1e-6):
    """Algorithm 2 of arXiv:1904.00962, phi the identity."""
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    r = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    if x.ndim > 1:
        r = r + decay * x
        return x - lr * np.linalg.norm(x) / np.linalg.norm(r) * r, m, v
    return x - lr * r, m, v


def test_lamb_is_the_papers() -> None:
    pair = weights()
    state = [(*numbers(weight)[:1], 0.0, 0.0) for weight in pair]
    optimizer = Lamb(pair, lr=0.02, weight_decay=0.1)
    for t in (1, 2, 3):
        for place, weight in enumerate(pair):
            x, m, v = state[place]
            state[place] = lamb_by_hand(x, numbers(weight)[1], m, v, t, 0.02, 0.1)
        optimizer.step()
        for weight in pair:
            assert weight.grad is not None
            weight.grad = weight.grad.flip(0) * (1 + t)
    for place, weight in enumerate(pair):
        assert np.abs(weight.detach().numpy() - state[place][0]).max() < 1e-15


def test_lamb_moves_a_layer_of_zeros_too() -> None:
    weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    weight.grad = torch.ones(2, 2, dtype=torch.float64)
    Lamb([weight], lr=0.5).step()
    assert torch.allclose(weight.detach(), torch.full((2, 2), -0.5, dtype=torch.float64), atol=1e-5)


def test_lars_is_the_papers() -> None:
    """You et al. 2017, arXiv:1708.03888, algorithm 1: lambda = eta ||w|| / (||g|| + beta ||w||);
    v <- m v + gamma lambda (g + beta w); w <- w - v. Without the layer's factor and decay for biases."""
    pair = weights()
    recipe = Recipe(steps=1, optimizer="lars", learning_rate=0.5, weight_decay=0.01, trust_coefficient=0.02)
    expected = []
    for weight in pair:
        w, g = numbers(weight)
        if w.ndim > 1:
            scale = 0.02 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.01 * np.linalg.norm(w))
            first = 0.5 * scale * (g + 0.01 * w)
            later = w - first
            scale = 0.02 * np.linalg.norm(later) / (np.linalg.norm(g) + 0.01 * np.linalg.norm(later))
            expected.append(later - (0.9 * first + 0.5 * scale * (g + 0.01 * later)))
        else:
            expected.append(w - 0.5 * g - 0.5 * 1.9 * g)
    optimizer = make_optimizer(recipe, models.plain(), list(pair))
    kept = [weight.grad.clone() for weight in pair if weight.grad is not None]
    for _ in range(2):
        for weight, gradient in zip(pair, kept, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    for weight, wanted in zip(pair, expected, strict=True):
        assert np.abs(weight.detach().numpy() - wanted).max() < 1e-15


def test_the_linear_rule_and_its_warm_up() -> None:
    """Batch 1,024 is 4 x 256: from 0.1 to 0.4 in five equal parts."""
    recipe = Recipe(steps=10, batch_size=1024, learning_rate=0.1, linear_scaling=True, warmup_steps=5)
    assert [recipe.learning_rate_at(step) for step in range(7)] == pytest.approx(
        [0.16, 0.22, 0.28, 0.34, 0.4, 0.4, 0.4]
    )


def test_a_warm_up_without_scaling_begins_at_nothing() -> None:
    recipe = Recipe(steps=8, learning_rate=0.4, warmup_steps=4, decay="linear")
    found = [recipe.learning_rate_at(step) for step in range(8)]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.3, 0.2, 0.1])


def test_a_cosine_falls_to_nothing() -> None:
    recipe = Recipe(steps=4, learning_rate=0.4, decay="cosine")
    assert [recipe.learning_rate_at(step) for step in (0, 1, 2, 4)] == pytest.approx([0.4, 0.3414213562, 0.2, 0.0])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": 3, "warmup_steps": 4}, "the warm-up has 4 steps, and the whole training 3"),
        ({"steps": 3, "batch_size": 4, "accumulate": 5}, "a batch of 4 cannot be cut into 5 micro-batches"),
        ({"steps": 0}, "greater than or equal to 1"),
        ({"steps": 1, "learning_rate": float("inf")}, "finite"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Recipe(**fields)


def test_recipes_that_compute_the_same_may_go_on_from_each_other() -> None:
    one = Recipe(steps=10, batch_size=8)
    assert one.difference_from(one.model_copy(update={"steps": 20, "accumulate": 2, "bucket_mb": 1.0})) is None
    assert one.difference_from(one.model_copy(update={"seed": 4})) == "seed is 4 there and 0 here"
    falling = one.model_copy(update={"decay": "cosine"})
    assert falling.difference_from(falling.model_copy(update={"steps": 20})) == "steps is 20 there and 10 here"


def test_the_default_optimizer_can_be_set_and_gives_the_same_bits() -> None:
    mine, other = weights()[0], weights()[0]
    optimizer = make_optimizer(Recipe(steps=1), models.plain(), [mine])
    set_learning_rate(optimizer, 0.3)
    optimizer.step()
    PlainSGD([other], lr=0.3).step()
    assert torch.equal(mine, other)


def test_an_optimizer_whose_step_size_cannot_be_set_is_refused() -> None:
    class Own(PlainSGD):
        pass

    learner = models.plain(optimizer=Own)
    with pytest.raises(LearnerFailed, match="its state cannot be saved"):
        make_optimizer(Recipe(steps=1), learner, list(weights()))


def test_one_process_trains_what_the_device_would() -> None:
    """One epoch of one batch: local SGD's update is the datacenter's difference."""
    learner, data = models.plain(), models.examples()
    first = learner.initial(2)
    update = learner.train(first, data, Task(learner="tests:plain", batch_size=50, epochs=1, learning_rate=0.1))
    trained, report = train(learner, first, data, Recipe(steps=1, batch_size=50, learning_rate=0.1))
    assert report.examples_seen == 50
    for name, delta in update.delta.items():
        assert trained[name] - first[name] == pytest.approx(delta, abs=1e-8)


def test_bfloat16_runs_on_a_cpu_and_comes_near() -> None:
    learner = Learner(model=lambda: models.network(dtype=torch.float32), loss=nn.functional.cross_entropy)
    first, recipe = learner.initial(2), Recipe(steps=20, batch_size=10, learning_rate=0.05)
    full, _ = train(learner, first, models.examples(), recipe)
    half, _ = train(learner, first, models.examples(), recipe.model_copy(update={"precision": "bfloat16"}))
    assert 0 < models.largest_difference(half, full) < 0.05
    assert half["0.weight"].dtype == np.float32


def test_a_seed_brings_back_what_layers_drew() -> None:
    learner = Learner(model=models.dropout, loss=nn.functional.cross_entropy)
    first = learner.initial(2)

    def run(seed: int) -> dict[str, np.ndarray]:
        return train(learner, first, models.examples(), Recipe(steps=5, batch_size=10, seed=seed))[0]

    before = torch.random.get_rng_state()
    assert models.largest_difference(run(1), run(1)) == 0
    assert models.largest_difference(run(1), run(2)) > 0
    assert torch.equal(torch.random.get_rng_state(), before)
