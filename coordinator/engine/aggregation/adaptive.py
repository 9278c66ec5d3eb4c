"""FedAdagrad, FedAdam and FedYogi: Reddi et al. 2021, arXiv:2003.00295, Algorithm 2.

With the mean delta D_t of round t, eta = ``server_learning_rate``, and squares and roots by coordinate::

    m_t = beta1 m_{t-1} + (1 - beta1) D_t              m begins with 0
    v_t = (each algorithm has its own line)                 v begins with tau^2, the least that the paper takes
    w_{t+1} = w_t + eta m_t / (sqrt(v_t) + tau)

As in the paper, the bias of m and v is not corrected. Once v has grown, a round moves a coordinate by about eta,
whatever the size of the updates, so a plan sets ``server_learning_rate`` too: its default, 1, suits FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from coordinator.engine.aggregation.optimizers import Vector
from coordinator.engine.aggregation.parameters import Parameter, Settings

BETA1 = Parameter(meaning="beta1: how much of the mean delta's running mean stays", default=0.9, least=0, below=1)
BETA2 = Parameter(meaning="beta2: how much of the square's running mean stays", default=0.99, least=0, below=1)
TAU = Parameter(meaning="tau: how little adaptive it is; added to the root", default=1e-3, least=1e-9, below=1e9)


SecondMoment = Callable[[Vector, Vector, Settings], None]
"""The line for v of one of the three algorithms: it changes v, its first argument, in place. The second is D_t^2, which
may be overwritten."""


class Adaptive:
    """Algorithm 2 with one of its lines for v. Two slots, ``m`` and ``v``."""

    slots: tuple[str, ...] = ("m", "v")

    def __init__(self, second_moment: SecondMoment, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = parameters
        self._second_moment = second_moment

    def first(self, settings: Settings) -> tuple[float, ...]:
        tau = np.float32(settings["tau"])
        return 0.0, float(tau * tau)

    def apply(
        self, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float, settings: Settings
    ) -> Vector:
        m, v = state
        m *= np.float32(settings["beta1"])
        m += rest(settings["beta1"]) * mean
        self._second_moment(v, mean * mean, settings)
        step, root = m * np.float32(learning_rate), np.sqrt(v)
        root += np.float32(settings["tau"])
        step /= root
        return model + step


def rest(beta: float) -> np.float32:
    """1 - beta, rounded to float32 once."""
    return np.float32(1.0 - beta)


def _fedadagrad(v: Vector, square: Vector, settings: Settings) -> None:
    """v_t = v_{t-1} + D_t^2."""
    v += square


def _fedadam(v: Vector, square: Vector, settings: Settings) -> None:
    """v_t = beta2 v_{t-1} + (1 - beta2) D_t^2."""
    v *= np.float32(settings["beta2"])
    square *= rest(settings["beta2"])
    v += square


def _fedyogi(v: Vector, square: Vector, settings: Settings) -> None:
    """v_t = v_{t-1} - (1 - beta2) D_t^2 sign(v_{t-1} - D_t^2).

    Where v is below the square it grows by at most (1 - beta2) of it, and where it is above it shrinks by as little: v
    forgets large squares more slowly than FedAdam's.
    """
    towards = np.sign(v - square)
    square *= rest(settings["beta2"])
    square *= towards
    v -= square


FEDADAGRAD = Adaptive(_fedadagrad, {"beta1": replace(BETA1, default=0.0), "tau": TAU})
"""The paper's own experiments set beta1 = 0 here; so does the default."""
FEDADAM = Adaptive(_fedadam, {"beta1": BETA1, "beta2": BETA2, "tau": TAU})
FEDYOGI = Adaptive(_fedyogi, {"beta1": BETA1, "beta2": BETA2, "tau": TAU})
