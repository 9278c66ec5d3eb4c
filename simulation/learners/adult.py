"""Logistic regression for Adult, the census data.

This file knows torch. It has never heard of columns, files, fleets or rounds.
"""

from __future__ import annotations

import torch
from torch import nn

from client_sdk.learning import Learner
from simulation.learners.classifier import classifier

FEATURES = 108
"""How many numbers `simulation.datasets.adult` makes of one person."""


class AdultLogistic(nn.Module):
    """Logistic regression over two classes, 108-2 without hidden layers, 218 parameters.

    Mohri, Sivek, Suresh 2019 (agnostic federated learning), arXiv:1902.00146, section 5, use logistic regression on
    Adult. Takes features [n, 108], gives logits [n, 2]. Starts from zeros, as the problem is convex.
    """

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(FEATURES, 2)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(features)
        return logits


def adult_logistic() -> Learner:
    """The learner ``quorate:adult-logistic``: AdultLogistic with cross-entropy and plain SGD, scored by accuracy."""
    return classifier(AdultLogistic)
