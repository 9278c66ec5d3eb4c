"""Server optimizers: how the mean of a round's updates changes the model.

The mean delta acts as a negative gradient (Reddi et al. 2021, arXiv:2003.00295, Algorithm 1). An optimizer works on
blocks of a flat vector, so that a commit never holds more than a block of each, or, where it says so, on whole layers:
then a commit holds a few vectors of the largest layer. It declares its vectors of state, their initial values, and the
numbers that a plan sets for it; ``coordinator.folding.named_tensors`` stores the state. ``adaptive`` has those of Reddi
et al., ``layerwise`` those that see layers, ``registry`` lists all that are built in.

The state must have the same bits wherever a round is folded again, so optimizers use float32 and operations that IEEE
754 rounds correctly: + - * / and the square root, one after another, never fused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.engine.aggregation.parameters import Parameter, Settings

Vector = NDArray[np.float32]


class Layer(NamedTuple):
    """One tensor of parameters, as a layer-wise optimizer gets it."""

    name: str
    shape: tuple[int, ...]
    step: int
    """Which step of the run this is, from 1 on. Rounds that take no step of the optimizer do not count: abandoned ones,
    and those of the datacenter."""


class Reach(NamedTuple):
    """How far one step moves a model, whatever the rounds before it were; infinite: no bound is known."""

    norm: float
    """In L2."""
    each: float
    """In one coordinate."""

    def of(self, values: int) -> float:
        """In L2, of a model of so many values."""
        return min(self.norm, self.each * math.sqrt(values))


NO_BOUND = Reach(math.inf, math.inf)


class ServerOptimizer(Protocol):
    """What every server optimizer declares. One that says ``layerwise = True`` is a ``LayerOptimizer``, any other one a
    ``BlockOptimizer``."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the float32 vectors of state, each as long as the averaged parameters. Empty: none."""
        ...

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The numbers that a plan may set beside ``server_learning_rate``, by name."""
        ...

    def first(self, settings: Settings) -> tuple[float, ...]:
        """The value of each slot, in every coordinate, before the first round. Shorter than ``slots`` where these
        settings need the first ones only."""
        ...


class Bounded(ServerOptimizer, Protocol):
    """The port of those that are built in, which state how far they go. Of a package's nothing is known."""

    def reach(self, norm: float, learning_rate: float, settings: Settings) -> Reach:
        """How far a step can move the model where no mean delta of this run has an L2 norm above ``norm`` and no
        learning rate is above ``learning_rate``. Devices hold models of secure rounds to it. ``NO_BOUND`` where steps
        grow with the model."""
        ...


class BlockOptimizer(ServerOptimizer, Protocol):
    """The port of an optimizer that is a function of its arguments, coordinate by coordinate: the cut of the vectors
    into blocks changes no bit."""

    def apply(
        self, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float, settings: Settings
    ) -> Vector:
        """The next block of the model, float32, from the current block, the mean delta, and the blocks of the slots
        (changed in place)."""
        ...


class LayerOptimizer(ServerOptimizer, Protocol):
    """The port of an optimizer that sees whole layers: a function of its arguments, whatever the order of the layers.
    It takes norms by ``combining.norm``, which has the same bits on every machine, and never by a sum of numpy's."""

    @property
    def layerwise(self) -> Literal[True]: ...

    def apply(
        self,
        layer: Layer,
        model: Vector,
        mean: Vector,
        state: Sequence[Vector],
        learning_rate: float,
        settings: Settings,
    ) -> Vector:
        """The next values of the layer, float32, from the current ones, the mean delta, and its slots (changed in
        place): flat vectors, in C order of the shape."""
        ...


def is_layerwise(optimizer: ServerOptimizer) -> bool:
    """Whether it is a ``LayerOptimizer``."""
    return bool(getattr(optimizer, "layerwise", False))


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

    def reach(self, norm: float, learning_rate: float, settings: Settings) -> Reach:
        """lr |D|."""
        return Reach(learning_rate * norm, learning_rate * norm)


class FedAvgM:
    """Server momentum (Hsu et al. 2019, arXiv:1909.06335, section 4.3). One slot, ``v``, which begins with zeros.

    With the mean delta D of a round, beta = ``momentum`` and lr = ``server_learning_rate``::

        v <- beta v + D
        w <- w + lr v

    (The paper's D has the other sign.) With momentum 0 this is FedAvg. With ``nesterov`` = 1 the step looks ahead::

        w <- w + lr (D + beta v)

    which is Nesterov's momentum as Sutskever et al. 2013 write it (PMLR 28, section 2), in the variables of
    ``torch.optim.SGD(momentum=beta, nesterov=True)`` with the gradient -D.
    """

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

    def reach(self, norm: float, learning_rate: float, settings: Settings) -> Reach:
        """lr |D| / (1 - beta): the sum of a geometric series, with Nesterov's momentum too."""
        most = learning_rate * norm / (1 - settings["momentum"])
        return Reach(most, most)
