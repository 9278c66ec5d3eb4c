"""FedAdagrad (Reddi et al. 2021, arXiv:2003.00295, Algorithm 2): v_t = v_{t-1} + D_t^2.

The paper's own experiments set beta1 = 0 here; so does the default.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine.aggregation.adaptive import BETA1, TAU, Adaptive
from coordinator.engine.aggregation.optimizers import Vector
from coordinator.engine.aggregation.parameters import Settings


def _second_moment(v: Vector, square: Vector, settings: Settings) -> None:
    v += square


FEDADAGRAD = Adaptive(_second_moment, {"beta1": replace(BETA1, default=0.0), "tau": TAU})
