"""Server optimizers: what is done with the mean of a round's updates.

The mean delta acts as a negative gradient (Reddi et al. 2021, arXiv:2003.00295, Algorithm 1). An optimizer works on
blocks of a flat vector, so that a commit never holds more than a block of each. It says of itself which vectors of
state it has from round to round, what they begin with, and which numbers a plan sets for it; how the state is stored is
not its business (``coordinator.folding.optimizer_state``). ``registry`` has those that are built in.

The state must come out alike wherever a round is folded again, so optimizers use float32 and operations that IEEE 754
rounds correctly: + - * / and the square root, one after another, never fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.engine.aggregation.parameters import Parameter, Settings

Vector = NDArray[np.float32]


class ServerOptimizer(Protocol):
    """What every server optimizer is. A function of its arguments, coordinate by coordinate: how the vectors are cut
    into blocks changes no bit."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the float32 vectors kept between rounds, each as long as the averaged parameters. Empty: none."""
        ...

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The numbers that a plan may set beside ``server_learning_rate``, by name."""
        ...

    def first(self, settings: Settings) -> tuple[float, ...]:
        """What each slot holds, in every coordinate, before the first round."""
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
