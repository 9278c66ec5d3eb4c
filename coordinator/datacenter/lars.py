"""LARS: SGD with momentum, each layer's step scaled to the norm of its weights.

You, Gitman, Ginsburg 2017, arXiv:1708.03888, Algorithm 1. For each layer's weights w and gradient g, with the trust
coefficient eta, the weight decay beta, the momentum m and the step size gamma of this step::

    lambda = eta * ||w|| / (||g|| + beta ||w||)
    v <- m v + gamma * lambda * (g + beta w)
    w <- w - v

The step size is *inside* the momentum: what a step adds to v keeps the rate of that step. Libraries multiply v by the
rate of the current step instead, which is the same for a constant rate, and another method under a warm-up or a decay;
hence this file.

lambda is 1 where ||w|| or ||g|| is 0. Tensors of one dimension (biases, the scales of normalization layers) have
lambda 1 and are not decayed, as the authors' own code does and as LAMB does here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter


class Lars(torch.optim.Optimizer):
    """LARS as in the paper. The state of a parameter: ``v``, of its shape."""

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
