"""FedAdam (Reddi et al. 2021, arXiv:2003.00295, Algorithm 2): v_t = beta2 v_{t-1} + (1 - beta2) D_t^2."""

from __future__ import annotations

import numpy as np

from coordinator.engine.aggregation.adaptive import BETA1, BETA2, TAU, Adaptive, rest
from coordinator.engine.aggregation.optimizers import Vector
from coordinator.engine.aggregation.parameters import Settings


def _second_moment(v: Vector, square: Vector, settings: Settings) -> None:
    v *= np.float32(settings["beta2"])
    square *= rest(settings["beta2"])
    v += square


FEDADAM = Adaptive(_second_moment, {"beta1": BETA1, "beta2": BETA2, "tau": TAU})
