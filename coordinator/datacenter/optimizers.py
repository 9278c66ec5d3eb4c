"""Makes the optimizer that a recipe names for a model's parameters."""

from __future__ import annotations

from typing import Any, assert_never, cast

import torch
from torch.nn import Parameter

from client_sdk.learning.errors import LearnerFailed
from client_sdk.learning.evaluation import explained
from client_sdk.learning.learner import Learner
from client_sdk.learning.optimizer import PlainSGD
from coordinator.datacenter.lamb import Lamb
from coordinator.datacenter.lars import Lars
from coordinator.datacenter.recipe import Recipe


def make_optimizer(recipe: Recipe, learner: Learner, params: list[Parameter]) -> torch.optim.Optimizer:
    """The optimizer of ``params``; its state can be saved and its step size set for every step.

    LearnerFailed where the learner's own optimizer cannot be made or has no step size to set.
    """
    lr = recipe.learning_rate_at(0)
    match recipe.optimizer:
        case "sgd":
            return torch.optim.SGD(params, lr=lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
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
