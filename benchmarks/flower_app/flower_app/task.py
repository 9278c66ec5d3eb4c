"""Softmax regression by full-batch gradient descent, on data that follows from the partition."""

from __future__ import annotations

import numpy as np

FEATURES, CLASSES, EXAMPLES, STEPS, RATE = 784, 64, 200, 5, 0.1


def initial() -> list[np.ndarray]:
    """The first model: 50,240 parameters."""
    return [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]


def data(partition: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of a partition."""
    rng = np.random.default_rng(partition)
    return rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, EXAMPLES)


def train(model: list[np.ndarray], partition: int) -> float:
    """Train in place, and return the loss before the last step."""
    weights, bias = model
    x, y = data(partition)
    loss = 0.0
    for _ in range(STEPS):
        scores = x @ weights + bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances = scores / scores.sum(axis=1, keepdims=True)
        loss = float(-np.log(chances[np.arange(EXAMPLES), y]).mean())
        chances[np.arange(EXAMPLES), y] -= 1
        weights -= RATE * (x.T @ chances) / EXAMPLES
        bias -= RATE * chances.mean(axis=0)
    return loss
