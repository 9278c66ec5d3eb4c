"""Server optimizers: what is done with the mean of a round's updates.

The mean delta acts as a negative gradient (Reddi et al. 2021, arXiv:2003.00295, Algorithm 1). An optimizer works on
blocks of a flat vector, so that a commit never holds more than a block of each. One is registered; others join
``OPTIMIZERS`` and the plan's field.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class ServerOptimizer(Protocol):
    slots: int
    """Float32 vectors of state kept between rounds, each as long as the averaged parameters (0: none)."""

    def apply(self, model: Vector, mean: Vector, state: list[Vector], learning_rate: float) -> Vector:
        """The next block of the model, float32, from the current block, the mean delta, and the blocks of its state
        (changed in place).
        """
        ...


class Average:
    """w <- w + lr * mean(delta). With lr = 1 this is FedAvg."""

    slots = 0

    def apply(self, model: Vector, mean: Vector, state: list[Vector], learning_rate: float) -> Vector:
        if learning_rate == 1.0:
            return model + mean
        return model + np.float32(learning_rate) * mean


OPTIMIZERS: dict[str, ServerOptimizer] = {"average": Average()}
