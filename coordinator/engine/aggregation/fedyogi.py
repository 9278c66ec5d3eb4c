"""FedYogi (Reddi et al. 2021, arXiv:2003.00295, Algorithm 2):
v_t = v_{t-1} - (1 - beta2) D_t^2 sign(v_{t-1} - D_t^2).

Where v is below the square it grows by at most (1 - beta2) of it, and where it is above it shrinks by as little: v
forgets large squares more slowly than FedAdam's.
"""

from __future__ import annotations

import numpy as np

from coordinator.engine.aggregation.adaptive import BETA1, BETA2, TAU, Adaptive, rest
from coordinator.engine.aggregation.optimizers import Vector
from coordinator.engine.aggregation.parameters import Settings


def _second_moment(v: Vector, square: Vector, settings: Settings) -> None:
    towards = np.sign(v - square)
    square *= rest(settings["beta2"])
    square *= towards
    v -= square


FEDYOGI = Adaptive(_second_moment, {"beta1": BETA1, "beta2": BETA2, "tau": TAU})
