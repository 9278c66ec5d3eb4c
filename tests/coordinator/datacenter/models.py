"""Small learners and data for tests of datacenter training, in float64 unless a test says otherwise."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from client_sdk.learning import Learner, accuracy
from client_sdk.tensors import Tensors

EXAMPLES = 50


def examples(count: int = EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """``count`` points of 6 features in 3 classes."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, count)
    return rng.normal(size=(count, 6)) + 2 * np.eye(3, 6)[y], y


def network(width: int = 5, dtype: torch.dtype = torch.float64) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.LayerNorm(width), nn.Linear(width, 3)).to(dtype)


def plain(**options: Any) -> Learner:
    return Learner(model=network, loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy}, **options)


def with_momentum() -> Learner:
    return plain(optimizer=partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-3), training_metrics=True)


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


class Half(nn.Module):
    """A model with a layer that its output never sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(6, 3).double()
        self.unseen = nn.Linear(6, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seen(x)


class Sparse(nn.Module):
    """An embedding with sparse gradients, of which a batch touches a few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(40, 4, sparse=True).double()
        self.head = nn.Linear(4, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows((x.abs() * 10).long().clamp(0, 39)).mean(1))


class IdleRows(nn.Module):
    """An embedding with sparse gradients that no output ever reads."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(6, 3).double()
        self.unseen = nn.Embedding(9, 2, sparse=True).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seen(x)


class Sometimes(nn.Module):
    """A layer that only examples with a large first feature go through; the others leave it untouched."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(6, 3).double()
        self.seldom = nn.Linear(6, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = x[:, :1] > 2.5
        found = self.always(x)
        return found + self.seldom(x) * large if bool(large.any()) else found


class RunningMean(nn.Module):
    """A layer of its author's own that keeps statistics of its batches, which no type gives away."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6).double())
        self.head = nn.Linear(6, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.head(x - self.mean)


def learner_of(model: Any, **options: Any) -> Learner:
    return Learner(model=model, loss=nn.functional.cross_entropy, **options)


def failing_loss(outputs: torch.Tensor, targets: torch.Tensor, step: int, how: str, rank: str = "1") -> torch.Tensor:
    """Cross-entropy that goes wrong on one rank at its ``step``-th call."""
    value = nn.functional.cross_entropy(outputs, targets)
    if os.environ.get("RANK") != rank:
        return value
    failing_loss.calls = getattr(failing_loss, "calls", 0) + 1
    if failing_loss.calls != step:
        return value
    if how == "raise":
        raise KeyError("label 7 is unknown")
    return value * float(how)


def largest_difference(one: Tensors, other: Tensors) -> float:
    """Largest difference of any value, relative to the largest of its tensor."""
    assert set(one) == set(other)
    return max(float(np.abs(one[n] - other[n]).max() / max(1e-300, np.abs(other[n]).max())) for n in one)


class CountedSGD(torch.optim.SGD):
    """Counts its steps, so that a test sees whether any was taken."""

    taken = 0

    def step(self, closure: Any = None) -> Any:
        type(self).taken += 1
        return super().step(closure)


def by_rank() -> nn.Module:
    """A model that is wider on rank 1."""
    return network(width=5 + int(os.environ.get("RANK", "0")))


def slow_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    time.sleep(0.02)
    if os.environ.get("QUORATE_JOB"):
        print("a word of the learner's")
    return nn.functional.cross_entropy(outputs, targets)


def slow() -> Learner:
    """A learner whose every step takes time in which a test can kill somebody. Momentum and dropout: what must come
    back beside the weights."""
    return Learner(model=dropout, loss=slow_loss, optimizer=partial(torch.optim.SGD, momentum=0.9))


def steady() -> Learner:
    """A learner whose steps take time, without layers that draw: equal for any number of processes."""
    return Learner(model=network, loss=slow_loss, optimizer=partial(torch.optim.SGD, momentum=0.9))
