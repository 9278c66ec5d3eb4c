"""Perceptrons for MNIST and Fashion-MNIST: the demo's small one, and the 2NN of the FedAvg paper.

This file knows torch. It has never heard of fleets, rounds or data sets' files.
"""

from __future__ import annotations

import torch
from torch import nn

from client_sdk.learning import Learner
from simulation.learners.classifier import classifier, unit_pixels


class MnistMlp(nn.Module):
    """A perceptron with one hidden layer: 784-64-10, ReLU, 50,890 parameters.

    Takes images as [n, 28, 28], [n, 1, 28, 28] or [n, 784]: floating-point ones in [0, 1], or bytes, which it scales
    itself. Gives logits [n, 10].
    """

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.hidden = nn.Linear(784, hidden)
        self.output = nn.Linear(hidden, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = unit_pixels(images.flatten(1), self.hidden.weight.dtype)
        logits: torch.Tensor = self.output(torch.relu(self.hidden(pixels)))
        return logits


class MnistMlp200(nn.Module):
    """A perceptron with two hidden layers: 784-200-200-10, ReLU, 199,210 parameters.

    The "MNIST 2NN" of McMahan et al. 2017, arXiv:1602.05629, section 3. Takes and gives what `MnistMlp` does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(784, 200)
        self.second = nn.Linear(200, 200)
        self.output = nn.Linear(200, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = unit_pixels(images.flatten(1), self.first.weight.dtype)
        logits: torch.Tensor = self.output(torch.relu(self.second(torch.relu(self.first(pixels)))))
        return logits


def mnist_mlp() -> Learner:
    """The learner ``quorate:mnist-mlp``: MnistMlp with cross-entropy and plain SGD, scored by accuracy; for MNIST and
    Fashion-MNIST."""
    return classifier(MnistMlp)


def mnist_mlp_200() -> Learner:
    """The learner ``quorate:mnist-mlp-200``: MnistMlp200, otherwise as ``mnist_mlp``. The paper trains it with batches
    of 10, 1 epoch and learning rates around 0.1."""
    return classifier(MnistMlp200)
