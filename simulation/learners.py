"""Learners that come with Quorate, for the demo, for trying things out and as examples to copy.

This file knows torch and ``Learner``. It has never heard of fleets, rounds or data sets' files.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import torch
from torch import nn

from client_sdk.learning import Learner, accuracy


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
        pixels = images.flatten(1)
        if not pixels.is_floating_point():
            pixels = pixels.to(self.hidden.weight.dtype) / 255
        logits: torch.Tensor = self.output(torch.relu(self.hidden(pixels)))
        return logits


def mnist_mlp() -> Learner:
    """The learner ``quorate:mnist-mlp``: MnistMlp with cross-entropy and plain SGD, scored by accuracy; for MNIST and
    Fashion-MNIST."""
    return Learner(
        model=MnistMlp,
        loss=nn.functional.cross_entropy,
        metrics={"accuracy": accuracy},
        version=_installed_version(),
    )


def _installed_version() -> str:
    """Of the distribution, as the catalogue of learners says it."""
    try:
        return version("quorate")
    except PackageNotFoundError:
        return "0"
