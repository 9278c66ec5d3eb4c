"""Transforms gradients: the proximal term, clipping, and the default optimizer step.

In order of application, for weights w, the weights w_global that the device received, and the gradient g of
the loss::

    g <- g + mu (w - w_global)          the gradient of (mu/2) ||w - w_global||^2
    g <- g * min(1, max_norm / ||g||)   over all trained tensors together
    w <- w - lr g                       ``PlainSGD``, or the learner's own optimizer

The first is FedProx (Li et al. 2020, arXiv:1812.06127, Algorithm 2), the second Pascanu et al. 2013 (arXiv:1211.5063,
Algorithm 1). The proximal term is part of the objective and so is clipped with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch.nn import Parameter

from client_sdk.learning.errors import Diverged


class Optimizer(Protocol):
    """The methods that local SGD needs of an optimizer: every ``torch.optim.Optimizer`` has them."""

    def step(self) -> object:
        """Move the parameters by their gradients."""

    def zero_grad(self) -> object:
        """Clear the gradients."""


class OptimizerFactory(Protocol):
    """Makes a fresh optimizer for one device and round: ``torch.optim.Adam``, or a ``functools.partial`` of one."""

    def __call__(self, params: list[Parameter], /, *, lr: float) -> Optimizer:
        """``params``: the trained parameters. ``lr``: the task's learning rate."""


class PlainSGD:
    """w <- w - lr g, in place: the local step of FedAvg (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1,
    ClientUpdate).

    Gives the same bits as ``torch.optim.SGD`` without momentum and weight decay, at less cost per step.
    """

    def __init__(self, params: Iterable[Parameter], *, lr: float) -> None:
        self._params = list(params)
        self._lr = lr

    def step(self) -> None:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)  # as a function: a context manager costs as much as the step of a layer
        try:
            for weight in self._params:
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-self._lr)
        finally:
            torch.set_grad_enabled(before)

    def zero_grad(self) -> None:
        for weight in self._params:
            weight.grad = None


@torch.no_grad()
def add_proximal(params: Sequence[Parameter], received: Sequence[torch.Tensor], mu: float) -> None:
    """Add mu (w - w_global) to each gradient. ``received``: w_global, shapes as ``params``.

    A parameter that the loss did not reach in this step gets the term too: it may have moved in an earlier step.
    """
    for weight, start in zip(params, received, strict=True):
        gradient = dense_gradient(weight)
        if gradient is None:
            weight.grad = (weight - start).mul_(mu)
        else:
            gradient.add_(weight - start, alpha=mu)


@torch.no_grad()
def clip(params: Sequence[Parameter], max_norm: float, step: int) -> None:
    """Scale all gradients by one factor so that their joint L2 norm is at most ``max_norm``. The norm is taken in
    float32, or in float64 where a gradient is.

    Raises Diverged, naming ``step``, where the norm is not finite.
    """
    gradients = [gradient for gradient in map(dense_gradient, params) if gradient is not None]
    if not gradients:
        return
    wide = torch.float64 if any(gradient.dtype is torch.float64 for gradient in gradients) else torch.float32
    norms = [torch.linalg.vector_norm(gradient, dtype=wide) for gradient in gradients]
    norm = float(torch.linalg.vector_norm(torch.stack(norms)))
    if not math.isfinite(norm):
        raise Diverged(f"The gradient's norm at step {step} is {norm}: try a smaller learning rate.")
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)


def dense_gradient(weight: Parameter) -> torch.Tensor | None:
    """The gradient, made dense where an embedding gave a sparse one."""
    if weight.grad is not None and weight.grad.is_sparse:
        weight.grad = weight.grad.to_dense()
    return weight.grad
