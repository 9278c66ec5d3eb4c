"""A first layer that imprints single images into a sum (Fowl et al. 2022, arXiv:2110.13057; Boenisch et al. 2023,
arXiv:2112.02918): all its rows measure the brightness of an image, and its biases are quantiles of it. What two
neighbouring rows of the mean update differ by is the gradient of the images between their quantiles: where that is one
image, it is there pixel by pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.learning import Learner
from client_sdk.tensors import Tensors

PIXELS, HIDDEN, CLASSES = 784, 64, 10
W1, B1, W2 = "hidden.weight", "hidden.bias", "output.weight"
"""The stock perceptron's tensors."""
NEAR = 0.02
"""The largest error of a pixel, of 1, in an image that counts as read."""
Images = NDArray[np.float32]


def images_of(rng: np.random.Generator, count: int) -> Images:
    """Made images: blots of a brightness of their own, from 0 to 1."""
    where = np.stack(np.meshgrid(*[np.linspace(-1, 1, 28)] * 2), -1).reshape(-1, 2)
    found = np.zeros((count, PIXELS))
    for _ in range(4):
        middle, wide = rng.uniform(-0.7, 0.7, (count, 1, 2)), rng.uniform(0.1, 0.5, (count, 1))
        found += rng.uniform(0.1, 1, (count, 1)) * np.exp(-((where - middle) ** 2).sum(-1) / wide**2)
    return np.clip(found, 0, 1).astype(np.float32)


def data_of(seed: int, devices: int, examples: int) -> list[tuple[Images, NDArray[np.int64]]]:
    """Each device's own images, and their classes."""
    rng = np.random.default_rng(seed)
    return [(images_of(rng, examples), rng.integers(0, CLASSES, examples)) for _ in range(devices)]


@cache
def public() -> NDArray[np.floating]:
    """The brightness of public images of the same kind."""
    return np.sort(images_of(np.random.default_rng(1), 20_000).mean(1))


def crafted(first: Tensors, images: int, rows: int = HIDDEN) -> Tensors:
    """The learner's ``first`` model, in which so many ``rows`` imprint. The quantiles are those of public images of the
    same kind: as far apart, among so many private ``images``, as one image each; where there are more images than rows,
    the brightest ones'."""
    brightness = public()
    shares = 1 - (np.arange(rows, 0, -1) - 0.5) / max(images, rows)
    found = {name: array.copy() for name, array in first.items()}
    scale = 1.0
    found[W1][:rows] = scale / PIXELS
    found[B1][:rows] = -scale * np.quantile(brightness, shares)
    found[W2][:, :rows] = np.linspace(-0.2, 0.2, CLASSES)[:, None]
    return {name: array.astype(first[name].dtype) for name, array in found.items()}


def rows_within(first: Tensors, images: int, distance: float) -> int:
    """How many rows can imprint in a model that is no further from the ``first`` one."""
    fits = [rows for rows in range(HIDDEN + 1) if apart(first, crafted(first, images, rows)) <= distance]
    return max(fits)


def apart(one: Tensors, other: Tensors) -> float:
    """The L2 distance of two models."""
    return math.sqrt(sum(float(np.sum((one[name].astype(np.float64) - other[name]) ** 2)) for name in one))


def read_out(before: Tensors, after: Tensors, private: Sequence[tuple[Images, Any]], rows: int = HIDDEN) -> int:
    """How many of the private images are in the difference of two models, which are all that the coordinator has."""
    weights, biases = (after[name].astype(np.float64) - before[name] for name in (W1, B1))
    weights, biases = weights[:rows], biases[:rows]
    between = np.concatenate([weights[:-1] - weights[1:], weights[-1:]])
    amount = np.concatenate([biases[:-1] - biases[1:], biases[-1:]])
    every, found = np.concatenate([images for images, _ in private]), set()
    for pixels, part in zip(between, amount, strict=True):
        if abs(part) > 1e-9:
            errors = np.abs(every - pixels / part).max(1)
            if errors.min() < NEAR:
                found.add(int(errors.argmin()))
    return len(found)


def summed(learner: Learner, model: Tensors, private: Sequence[tuple[Images, Any]], task: Any) -> Tensors:
    """The next model after a round in which all count alike, as a sum under masks gives it, but for its rounding."""
    updates = [learner.train(model, data, task, device=f"d{n}", round=1).delta for n, data in enumerate(private)]
    means = {name: np.mean([one[name].astype(np.float64) for one in updates], 0) for name in updates[0]}
    return {name: array + means[name] if name in means else array for name, array in model.items()}
