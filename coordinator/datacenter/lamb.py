"""LAMB: Adam with each layer's step scaled to the norm of its weights.

You et al. 2020, arXiv:1904.00962, Algorithm 2, with phi the identity. For each layer's weights x and gradient g::

    m <- b1 m + (1 - b1) g                 v <- b2 v + (1 - b2) g^2
    r  = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
    x <- x - lr * ||x|| / ||r + wd x|| * (r + wd x)

The factor is 1 where either norm is 0. For tensors of one dimension (biases, the scales of normalization layers) it is
1 and they are not decayed, as the authors' own code does and as LARS does. Libraries differ from the paper: they clip
||x||, or correct m after computing the factor; hence this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter


class Lamb(torch.optim.Optimizer):
    """LAMB as in the paper. The state of a parameter: ``step`` (a tensor of one number), ``m`` and ``v``."""

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
