"""Server optimizers that see layers: LARS, LAMB, and RAdam with LookAhead. A layer is one tensor of parameters.

Below, D is the mean delta of a round's updates to one layer, which stands in for minus the gradient of the papers; w is
the layer, eta is ``server_learning_rate``, lambda is ``weight_decay``, ``|.|`` the Euclidean norm, t the number of the
optimizer's steps, from 1 on. Squares and roots are by coordinate.

LARS and LAMB give each layer a step in proportion to its norm. The factor that does so is 1 where one of its two norms
is 0. Layers of at most one dimension (biases, the scales of normalization) have the factor 1 and are not decayed, as in
the authors' own code, and as in the datacenter (``coordinator.datacenter.optimizers``).

Steps in proportion to a layer's norm, and decay, grow with the model, so none of these bounds how far a step goes. Nor
is a bound stated for RAdam without them.

Norms come from ``combining.norm``, and powers from products, so that every machine has the same bits. Numbers that are
the same for a whole layer are computed in float64 and rounded to float32 once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from coordinator.engine.aggregation.adaptive import BETA1, BETA2, rest
from coordinator.engine.aggregation.combining import norm
from coordinator.engine.aggregation.optimizers import NO_BOUND, Layer, Reach, Vector
from coordinator.engine.aggregation.parameters import Parameter, Settings

EPS = Parameter(
    meaning="epsilon: added to the root, so that nothing is divided by 0", default=1e-6, least=1e-9, below=1e9
)
WEIGHT_DECAY = Parameter(
    meaning="lambda: how much of a layer is taken from it in a step, before the learning rate",
    default=0,
    least=0,
    below=1e9,
)


class Lars:
    """LARS (You et al. 2017, arXiv:1708.03888, Algorithm 1). One slot, ``v``, which begins with zeros. With the
    momentum mu and the trust coefficient c::

        ratio = c |w| / (|D| + lambda |w|)
        v <- mu v + eta ratio (D - lambda w)
        w <- w + v

    As in the paper, the rate is inside the momentum: what a round adds to v keeps the rate of that round.
    """

    layerwise: Literal[True] = True
    slots: tuple[str, ...] = ("v",)
    parameters: Mapping[str, Parameter] = {
        "momentum": Parameter(meaning="mu: how much of the last step's velocity stays", default=0.9, least=0, below=1),
        "trust_coefficient": Parameter(
            meaning="c: the step of a layer, as a part of its norm", default=0.001, least=1e-9, below=1e9
        ),
        "weight_decay": WEIGHT_DECAY,
    }

    def first(self, settings: Settings) -> tuple[float, ...]:
        return (0.0,)

    def reach(self, norm: float, learning_rate: float, settings: Settings) -> Reach:
        return NO_BOUND

    def apply(
        self,
        layer: Layer,
        model: Vector,
        mean: Vector,
        state: Sequence[Vector],
        learning_rate: float,
        settings: Settings,
    ) -> Vector:
        (v,) = state
        decay, ratio = _decay(layer, settings), 1.0
        if len(layer.shape) > 1:
            weights, change = norm(model), norm(mean)
            if weights and change:
                ratio = settings["trust_coefficient"] * weights / (change + decay * weights)
        v *= np.float32(settings["momentum"])
        v += np.float32(learning_rate * ratio) * _decayed(mean, model, decay)
        return model + v


class Lamb:
    """LAMB (You et al. 2020, arXiv:1904.00962, Algorithm 2, with the identity for phi). Two slots, ``m`` and ``v``,
    which begin with zeros::

        m <- beta1 m + (1 - beta1) D
        v <- beta2 v + (1 - beta2) D^2
        r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
        w <- w + eta |w| / |r - lambda w| (r - lambda w)

    Unlike FedAdam's, the bias of m and v is corrected, as the paper does. beta2 is FedAdam's here (the paper's is
    0.999): a run has hundreds of rounds, not many thousands of steps.
    """

    layerwise: Literal[True] = True
    slots: tuple[str, ...] = ("m", "v")
    parameters: Mapping[str, Parameter] = {"beta1": BETA1, "beta2": BETA2, "eps": EPS, "weight_decay": WEIGHT_DECAY}

    def first(self, settings: Settings) -> tuple[float, ...]:
        return 0.0, 0.0

    def reach(self, norm: float, learning_rate: float, settings: Settings) -> Reach:
        return NO_BOUND

    def apply(
        self,
        layer: Layer,
        model: Vector,
        mean: Vector,
        state: Sequence[Vector],
        learning_rate: float,
        settings: Settings,
    ) -> Vector:
        m, v = state
        _take(m, v, mean, settings)
        left1, left2 = _left(settings["beta1"], layer.step), _left(settings["beta2"], layer.step)
        root = np.sqrt(v / np.float32(left2))
        root += np.float32(settings["eps"])
        step = _decayed(m / np.float32(left1) / root, model, _decay(layer, settings))
        return model + np.float32(learning_rate * _ratio(layer, model, step)) * step


class RAdam:
    """RAdam (Liu et al. 2020, arXiv:1908.03265, Algorithm 2), and with ``lookahead`` above 0 LookAhead around it (Zhang
    et al. 2019, arXiv:1907.08610, Algorithm 1). Slots ``m`` and ``v``, which are those of ``Lamb``, and with LookAhead
    ``moved``; all begin with zeros. With m and v of step t::

        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 t beta2^t / (1 - beta2^t)
        r = m / (1 - beta1^t)                                                      where rho <= 5, else
        r = q m / (1 - beta1^t) sqrt(1 - beta2^t) / (sqrt(v) + epsilon)
        q = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho))
        w <- w + eta (r - lambda w)

    The bound 5 and epsilon's place are those of the authors' code and of ``torch.optim.RAdam``; the paper has 4 and no
    epsilon. With ``layerwise`` = 1 the step of each layer is in proportion to its norm, by LAMB's factor
    ``|w| / |r - lambda w|``.

    LookAhead's k is ``lookahead``, its alpha ``lookahead_rate``. Its slow weights are w - ``moved``, where ``moved`` is
    the sum of the steps since t was last a multiple of k. When it is one again::

        w <- w - (1 - alpha) moved
        moved <- 0

    so what a datacenter round does to the model moves slow and fast weights alike. m and v are kept, the first of the
    paper's choices.

    ``layerwise = 1, lookahead = 6, lookahead_rate = 0.5`` is RangerLARS: LARS's factor, RAdam and LookAhead.
    """

    layerwise: Literal[True] = True
    slots: tuple[str, ...] = ("m", "v", "moved")
    parameters: Mapping[str, Parameter] = {
        "beta1": BETA1,
        "beta2": BETA2,
        "eps": replace(EPS, default=1e-8),
        "weight_decay": WEIGHT_DECAY,
        "layerwise": Parameter(
            meaning="1: each layer's step in proportion to its norm; 0: as it is",
            default=0,
            least=0,
            below=2,
            whole=True,
        ),
        "lookahead": Parameter(
            meaning="k: after how many steps the slow weights move; 0: no LookAhead",
            default=0,
            least=0,
            below=10_001,
            whole=True,
        ),
        "lookahead_rate": Parameter(
            meaning="alpha: how far the slow weights move towards the fast ones", default=0.5, least=0.01, below=1
        ),
    }

    def first(self, settings: Settings) -> tuple[float, ...]:
        return (0.0,) * (3 if settings["lookahead"] else 2)

    def reach(self, norm: float, learning_rate: float, settings: Settings) -> Reach:
        return NO_BOUND

    def apply(
        self,
        layer: Layer,
        model: Vector,
        mean: Vector,
        state: Sequence[Vector],
        learning_rate: float,
        settings: Settings,
    ) -> Vector:
        m, v, *moved = state
        _take(m, v, mean, settings)
        left, scale = _left(settings["beta1"], layer.step), _rectified(settings["beta2"], layer.step)
        if scale is None:
            step = m / np.float32(left)
        else:
            root = np.sqrt(v)
            root += np.float32(settings["eps"])
            step = m * np.float32(scale / left) / root
        step = _decayed(step, model, _decay(layer, settings))
        ratio = _ratio(layer, model, step) if settings["layerwise"] else 1.0
        step = np.float32(learning_rate * ratio) * step
        for since in moved:
            since += step
            if layer.step % int(settings["lookahead"]) == 0:
                step = step - rest(settings["lookahead_rate"]) * since
                since[:] = 0
        return model + step


# ------------------------------------------------------------ inside


def _take(m: Vector, v: Vector, mean: Vector, settings: Settings) -> None:
    m *= np.float32(settings["beta1"])
    m += rest(settings["beta1"]) * mean
    v *= np.float32(settings["beta2"])
    v += rest(settings["beta2"]) * (mean * mean)


def _decay(layer: Layer, settings: Settings) -> float:
    return settings["weight_decay"] if len(layer.shape) > 1 else 0.0


def _decayed(step: Vector, model: Vector, decay: float) -> Vector:
    return step - np.float32(decay) * model if decay else step


def _ratio(layer: Layer, model: Vector, step: Vector) -> float:
    """LAMB's factor."""
    if len(layer.shape) < 2:
        return 1.0
    weights, change = norm(model), norm(step)
    return weights / change if weights and change else 1.0


def _left(beta: float, step: int) -> float:
    """1 - beta^step."""
    return 1.0 - whole_power(beta, step)


def whole_power(base: float, exponent: int) -> float:
    """By products: Python's own power differs by machine in its last bit."""
    power = 1.0
    for bit in f"{exponent:b}":
        power *= power * (base if bit == "1" else 1.0)
    return power


def _rectified(beta2: float, step: int) -> float | None:
    """q sqrt(1 - beta2^t); None where rho is at most 5."""
    power, most = whole_power(beta2, step), 2.0 / (1.0 - beta2) - 1.0
    rho = most - 2.0 * step * power / (1.0 - power)
    if rho <= 5.0:
        return None
    return math.sqrt((rho - 4.0) * (rho - 2.0) * most / ((most - 4.0) * (most - 2.0) * rho) * (1.0 - power))
