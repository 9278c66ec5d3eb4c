"""The optimizer that a recipe names for a model's parameters; LARS and LAMB as in their papers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never, cast

import torch
from torch.nn import Parameter

from client_sdk.learning.errors import LearnerFailed
from client_sdk.learning.evaluation import explained
from client_sdk.learning.learner import Learner
from client_sdk.learning.local_sgd import PlainSGD
from coordinator.datacenter.recipe import Recipe


def make_optimizer(recipe: Recipe, learner: Learner, params: list[Parameter]) -> torch.optim.Optimizer:
    """The optimizer of ``params``; its state can be saved and its step size set for every step.

    LearnerFailed where the learner's own optimizer cannot be made or has no step size to set.
    """
    lr = recipe.learning_rate_at(0)
    match recipe.optimizer:
        case "sgd":
            momentum = recipe.momentum if recipe.compress != "topk" else 0.0  # it is in what is sent
            return torch.optim.SGD(params, lr=lr, momentum=momentum, weight_decay=recipe.weight_decay)
        case "lars":
            return Lars(
                params,
                lr=lr,
                momentum=recipe.momentum,
                weight_decay=recipe.weight_decay,
                trust_coefficient=recipe.trust_coefficient,
            )
        case "lamb":
            return Lamb(params, lr=lr, betas=(recipe.momentum, 0.999), weight_decay=recipe.weight_decay)
        case "learner":
            return _own(learner, params, lr)
        case _:
            assert_never(recipe.optimizer)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the step size of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def _own(learner: Learner, params: list[Parameter], lr: float) -> torch.optim.Optimizer:
    if learner.optimizer is cast("Any", PlainSGD):
        return torch.optim.SGD(params, lr=lr)  # the same bits, and its step size can be set
    with explained("while it made the optimizer"):
        made = learner.optimizer(params, lr=lr)
    if not isinstance(made, torch.optim.Optimizer):
        raise LearnerFailed(
            f"The learner's optimizer is a {type(made).__name__}, no torch.optim.Optimizer: its state cannot be saved "
            "or its step size set; name another with optimizer = 'sgd', 'lars' or 'lamb'."
        )
    return made


class Lars(torch.optim.Optimizer):
    """LARS: SGD with momentum, each layer's step scaled to the norm of its weights.

    You, Gitman, Ginsburg 2017, arXiv:1708.03888, Algorithm 1. For each layer's weights w and gradient g, with the trust
    coefficient eta, the weight decay beta, the momentum m and the step size gamma of this step::

        lambda = eta * ||w|| / (||g|| + beta ||w||)
        v <- m v + gamma * lambda * (g + beta w)
        w <- w - v

    The step size is *inside* the momentum: what a step adds to v keeps the rate of that step. Libraries multiply v by
    the rate of the current step instead, which is the same for a constant rate, and another method under a warm-up or a
    decay; hence this class.

    lambda is 1 where ||w|| or ||g|| is 0. Tensors of one dimension (biases, the scales of normalization layers) have
    lambda 1 and are not decayed, as the authors' own code does and as LAMB does here.

    The state of a parameter: ``v``, of its shape.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient},
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                state = self.state[w]
                if not state:
                    state["v"] = torch.zeros_like(w)
                wanted, scale = w.grad, torch.ones((), dtype=w.dtype, device=w.device)
                if w.ndim > 1:
                    long, steep = w.norm(), w.grad.norm()
                    wanted = w.grad.add(w, alpha=group["weight_decay"])
                    trust = group["trust_coefficient"] * long / (steep + group["weight_decay"] * long)
                    scale = torch.where((long > 0) & (steep > 0), trust, scale)
                state["v"].mul_(group["momentum"]).add_(wanted * (group["lr"] * scale))
                w.sub_(state["v"])
        return loss


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam with each layer's step scaled to the norm of its weights.

    You et al. 2020, arXiv:1904.00962, Algorithm 2, with phi the identity. For each layer's weights x and gradient g::

        m <- b1 m + (1 - b1) g                 v <- b2 v + (1 - b2) g^2
        r  = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
        x <- x - lr * ||x|| / ||r + wd x|| * (r + wd x)

    The factor is 1 where either norm is 0. For tensors of one dimension (biases, the scales of normalization layers) it
    is 1 and they are not decayed, as the authors' own code does and as LARS does. Libraries differ from the paper: they
    clip ||x||, or correct m after computing the factor; hence this class.

    The state of a parameter: ``step`` (a tensor of one number), ``m`` and ``v``.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for x in group["params"]:
                if x.grad is None:
                    continue
                state = self.state[x]
                if not state:
                    state.update(step=torch.zeros(()), m=torch.zeros_like(x), v=torch.zeros_like(x))
                state["step"] += 1
                t = int(state["step"])
                m = state["m"].mul_(b1).add_(x.grad, alpha=1 - b1)
                v = state["v"].mul_(b2).addcmul_(x.grad, x.grad, value=1 - b2)
                r = (m / (1 - b1**t)).div_((v / (1 - b2**t)).sqrt_().add_(group["eps"]))
                ratio: torch.Tensor | float = 1.0
                if x.ndim > 1:
                    r.add_(x, alpha=group["weight_decay"])
                    long, step = x.norm(), r.norm()
                    ratio = torch.where((long > 0) & (step > 0), long / step, torch.ones_like(long))
                x.sub_(r.mul_(ratio), alpha=group["lr"])
        return loss
