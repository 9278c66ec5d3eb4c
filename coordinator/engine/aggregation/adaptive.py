"""FedAdagrad, FedAdam and FedYogi: Reddi et al. 2021, arXiv:2003.00295, Algorithm 2.

With the mean delta D_t of round t, eta = ``server_learning_rate``, and squares and roots by coordinate::

    m_t = beta1 m_{t-1} + (1 - beta1) D_t              m begins with 0
    v_t = (each algorithm has its own line)                 v begins with tau^2, the least that the paper takes
    w_{t+1} = w_t + eta m_t / (sqrt(v_t) + tau)

How far a step goes: m is a mean of deltas, so |m| is at most their largest norm, and a step at most eta |D| / tau; half
of that in FedAdagrad, whose v never falls below tau^2. In
one coordinate it is at most eta R, where R is the largest |m_t| / sqrt(v_t). With x = D_t^2 / v_{t-1} and v_t / v_{t-1}
= g(x), a step takes r = |m| / sqrt(v) to at most (beta1 r + (1 - beta1) sqrt(x)) / sqrt(g(x)): for each x a line whose
slope is below 1, so no sequence gets beyond the largest of their fixed points, which a constant x reaches,

    R = max over x of (1 - beta1) sqrt(x) / (sqrt(g(x)) - beta1).

FedAdagrad: g = 1 + x; R = sqrt((1 - beta1) / (1 + beta1)). FedAdam: g = beta2 + (1 - beta2) x; R = (1 - beta1) /
sqrt((1 - beta2) (1 - beta1^2 / beta2)), as in Kingma & Ba 2015 (arXiv:1412.6980, section 2.1) for sparse gradients.
FedYogi: g = 1 + (1 - beta2) x for x > 1, else 1 - (1 - beta2) x; R is the larger of (1 - beta1) /
sqrt((1 - beta2) (1 - beta1^2)) and (1 - beta1) / (sqrt(beta2) - beta1). Where beta1 >= sqrt(beta2) the slope is not
below 1, and only eta |D| / tau is left.

As in the paper, the bias of m and v is not corrected. Once v has grown, a round moves a coordinate by about eta,
whatever the size of the updates, so a plan sets ``server_learning_rate`` too: its default, 1, suits FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from coordinator.engine.aggregation.optimizers import Reach, Vector
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

    def __init__(
        self, second_moment: SecondMoment, most: Callable[[Settings], float], parameters: Mapping[str, Parameter]
    ) -> None:
        """``most``: R."""
        self.parameters = parameters
        self._second_moment = second_moment
        self._most = most

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

    def reach(self, norm: float, learning_rate: float, settings: Settings) -> Reach:
        least = settings["tau"] * (2 if self is FEDADAGRAD else 1)
        return Reach(learning_rate * norm / least, learning_rate * self._most(settings))


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


def _most_of_fedadagrad(settings: Settings) -> float:
    beta1 = settings["beta1"]
    return math.sqrt((1 - beta1) / (1 + beta1))


def _most_of_fedadam(settings: Settings) -> float:
    beta1, beta2 = settings["beta1"], settings["beta2"]
    if beta1 * beta1 >= beta2:
        return math.inf
    return (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2))


def _most_of_fedyogi(settings: Settings) -> float:
    beta1, beta2 = settings["beta1"], settings["beta2"]
    if beta1 * beta1 >= beta2:
        return math.inf
    rising = (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1 * beta1))
    return max(rising, (1 - beta1) / (math.sqrt(beta2) - beta1))


FEDADAGRAD = Adaptive(_fedadagrad, _most_of_fedadagrad, {"beta1": replace(BETA1, default=0.0), "tau": TAU})
"""The paper's own experiments set beta1 = 0 here; so does the default."""
FEDADAM = Adaptive(_fedadam, _most_of_fedadam, {"beta1": BETA1, "beta2": BETA2, "tau": TAU})
FEDYOGI = Adaptive(_fedyogi, _most_of_fedyogi, {"beta1": BETA1, "beta2": BETA2, "tau": TAU})
