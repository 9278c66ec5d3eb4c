"""The convolutional network of the FedAvg paper, for MNIST and Fashion-MNIST.

This file knows torch. It has never heard of fleets, rounds or data sets' files.
"""

from __future__ import annotations

import torch
from torch import nn

from client_sdk.learning import Learner
from simulation.learners.classifier import classifier, unit_pixels


class MnistCnn(nn.Module):
    """5x5 convolutions to 32 and 64 channels, each with ReLU and 2x2 max pooling; dense 512, ReLU.

    McMahan et al. 2017, arXiv:1602.05629, section 3, "a CNN with two 5x5 convolution layers": 1,663,370 parameters, a
    count that needs padding which keeps 28 x 28, so that the 64 channels end as 7 x 7. Takes images as [n, 28, 28],
    [n, 1, 28, 28] or [n, 784]: floating-point ones in [0, 1], or bytes. Gives logits [n, 10].
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 5, padding=2)
        self.second = nn.Conv2d(32, 64, 5, padding=2)
        self.dense = nn.Linear(64 * 7 * 7, 512)
        self.output = nn.Linear(512, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = unit_pixels(images.reshape(-1, 1, 28, 28), self.dense.weight.dtype)
        half = nn.functional.max_pool2d(torch.relu(self.first(pixels)), 2)
        quarter = nn.functional.max_pool2d(torch.relu(self.second(half)), 2)
        logits: torch.Tensor = self.output(torch.relu(self.dense(quarter.flatten(1))))
        return logits


def mnist_cnn() -> Learner:
    """The learner ``quorate:mnist-cnn``: MnistCnn with cross-entropy and plain SGD, scored by accuracy. The paper
    trains it with batches of 10 or 50, 1 to 20 epochs and learning rates around 0.1."""
    return classifier(MnistCnn)
