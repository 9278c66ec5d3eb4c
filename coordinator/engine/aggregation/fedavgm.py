"""FedAvgM: server momentum (Hsu et al. 2019, arXiv:1909.06335, section 4.3).

With the mean delta D of a round, beta = ``momentum`` and lr = ``server_learning_rate``::

    v <- beta v + D
    w <- w + lr v

(The paper's D has the other sign.) With momentum 0 this is FedAvg. With ``nesterov`` = 1 the step looks ahead::

    w <- w + lr (D + beta v)

which is Nesterov's momentum as Sutskever et al. 2013 write it (PMLR 28, section 2), in the variables of
``torch.optim.SGD(momentum=beta, nesterov=True)`` with the gradient -D.
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
        "momentum": Parameter(
            meaning="beta: how much of the last step's velocity stays", default=0.9, least=0, below=1
        ),
        "nesterov": Parameter(
            meaning="1: Nesterov's momentum; 0: the paper's", default=0, least=0, below=2, whole=True
        ),
    }

    def first(self, settings: Settings) -> tuple[float, ...]:
        return (0.0,)

    def apply(
        self, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float, settings: Settings
    ) -> Vector:
        (v,) = state
        v *= np.float32(settings["momentum"])
        v += mean
        step = mean + np.float32(settings["momentum"]) * v if settings["nesterov"] else v
        return model + np.float32(learning_rate) * step
