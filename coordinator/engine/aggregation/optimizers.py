"""Server optimizers: how the mean of a round's updates changes the model.

The mean delta acts as a negative gradient (Reddi et al. 2021, arXiv:2003.00295, Algorithm 1). An optimizer works on
blocks of a flat vector, so that a commit never holds more than a block of each. It declares its vectors of state, their
initial values, and the numbers that a plan sets for it; ``coordinator.folding.optimizer_state`` stores the state.
``registry`` has the built-in optimizers.

The state must have the same bits wherever a round is folded again, so optimizers use float32 and operations that IEEE
754 rounds correctly: + - * / and the square root, one after another, never fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.engine.aggregation.parameters import Parameter, Settings

Vector = NDArray[np.float32]


class ServerOptimizer(Protocol):
    """The port of a server optimizer. A function of its arguments, coordinate by coordinate: the cut of the vectors
    into blocks changes no bit."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the float32 vectors of state, each as long as the averaged parameters. Empty: none."""
        ...

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The numbers that a plan may set beside ``server_learning_rate``, by name."""
        ...

    def first(self, settings: Settings) -> tuple[float, ...]:
        """The value of each slot, in every coordinate, before the first round."""
        ...

    def apply(
        self, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float, settings: Settings
    ) -> Vector:
        """The next block of the model, float32, from the current block, the mean delta, and the blocks of the slots
        (changed in place)."""
        ...


class Average:
    """w <- w + lr * mean(delta). With lr = 1 this is FedAvg."""

    slots: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = {}

    def first(self, settings: Settings) -> tuple[float, ...]:
        return ()

    def apply(
        self, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float, settings: Settings
    ) -> Vector:
        if learning_rate == 1.0:
            return model + mean
        return model + np.float32(learning_rate) * mean
