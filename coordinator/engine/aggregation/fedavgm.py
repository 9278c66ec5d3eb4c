"""FedAvgM: server momentum (Hsu et al. 2019, arXiv:1909.06335, section 4.3).

With the mean delta D of a round, beta = ``momentum`` and lr = ``server_learning_rate``::

    v <- beta v + D
    w <- w + lr v

(The paper's D has the other sign.) With momentum 0 this is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coordinator.engine.aggregation.optimizers import Vector
from coordinator.engine.aggregation.parameters import Parameter, Settings


class FedAvgM:
    """One slot, ``v``, which begins with zeros."""

    slots: tuple[str, ...] = ("v",)
    parameters: Mapping[str, Parameter] = {
        "momentum": Parameter(meaning="beta: how much of the last step's velocity stays", default=0.9, least=0, below=1)
    }

    def first(self, settings: Settings) -> tuple[float, ...]:
        return (0.0,)

    def apply(
        self, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float, settings: Settings
    ) -> Vector:
        (v,) = state
        v *= np.float32(settings["momentum"])
        v += mean
        return model + np.float32(learning_rate) * v
