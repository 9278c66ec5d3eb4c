"""Linear regression on a few examples for each partition, and where an app leaves its numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (4, 3)


def first_model() -> list[np.ndarray]:
    """A matrix and an offset."""
    chance = np.random.default_rng(1)
    return [chance.normal(size=SIZES).astype(np.float32), np.zeros(SIZES[1], np.float32)]


def data(partition: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of a partition; each has another number of them."""
    chance = np.random.default_rng(100 + partition)
    x = chance.normal(size=(8 + 2 * partition, SIZES[0])).astype(np.float32)
    true = np.arange(12, dtype=np.float32).reshape(SIZES) / 6
    return x, x @ true + chance.normal(scale=0.1, size=(len(x), SIZES[1])).astype(np.float32)


def train(model: list[np.ndarray], partition: int, mu: float = 0.0, steps: int = 5) -> tuple[list[np.ndarray], float]:
    """Some steps of gradient descent, with a proximal term; returns the model and the loss before."""
    x, y = data(partition)
    weights, offset = (part.copy() for part in model)
    first = loss(model, partition)
    for _ in range(steps):
        error = (x @ weights + offset - y) / len(x)
        weights -= 0.1 * (x.T @ error + mu * (weights - model[0]))
        offset -= 0.1 * (error.sum(0) + mu * (offset - model[1]))
    return [weights, offset], first


def loss(model: list[np.ndarray], partition: int) -> float:
    """The mean squared error on a partition."""
    x, y = data(partition)
    return float(np.mean((x @ model[0] + model[1] - y) ** 2))


def leave(numbers: Any) -> None:
    """Write the app's numbers to the file that the environment names."""
    Path(os.environ["NUMBERS"]).write_text(json.dumps(numbers))
