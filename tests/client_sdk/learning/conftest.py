"""What tests of learning share: one thread, a small task, small data and a small learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Learner, accuracy
from client_sdk.protocol.devices import Task


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def chance_untouched() -> Iterator[None]:
    """Nothing in this package may move torch's global generator; every test here looks."""
    torch.manual_seed(20261121)
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.fixture
def task() -> Callable[..., Task]:
    def make(**fields: Any) -> Task:
        return Task(**{"learner": "tests:small", "batch_size": 8, "learning_rate": 0.1, "seed": 5, **fields})

    return make


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    """21 examples of 6 features in 3 classes: not a multiple of the batch size."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 21)
    x = rng.normal(size=(21, 6)).astype(np.float32) + np.eye(3, 6, dtype=np.float32)[y]
    return x, y


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.fixture
def learner() -> Learner:
    return Learner(model=small_model, loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy})
