"""Learners that are part of Quorate: for the demo, for experiments, for recipes and as examples to copy.

| name                                | model                             | parameters | data                 |
|-------------------------------------|-----------------------------------|------------|----------------------|
| `quorate:mnist-mlp`                 | perceptron 784-64-10              |     50,890 | mnist, fashion-mnist |
| `quorate:mnist-mlp-200`             | perceptron 784-200-200-10         |    199,210 | mnist, fashion-mnist |
| `quorate:mnist-cnn`                 | two convolutions, one dense layer |  1,663,370 | mnist, fashion-mnist |
| `quorate:shakespeare-lstm`          | embedding 8, two LSTMs of 256     |    819,920 | shakespeare          |
| `quorate:shakespeare-lstm-unrolled` | the same, at every position       |    819,920 | shakespeare-unrolled |
| `quorate:adult-logistic`            | logistic regression, 108 features |        218 | adult                |

Each is a function without arguments that returns a `Learner`, and an entry point of the group `quorate.learners`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from client_sdk.extensions import installed_version
from client_sdk.learning import Learner, accuracy

__all__ = [
    "AdultLogistic",
    "MnistCnn",
    "MnistMlp",
    "MnistMlp200",
    "ShakespeareLstm",
    "adult_logistic",
    "mnist_cnn",
    "mnist_mlp",
    "mnist_mlp_200",
    "shakespeare_lstm",
    "shakespeare_lstm_unrolled",
]


def classifier(model: Callable[[], nn.Module]) -> Learner:
    """A learner of classes: the model's outputs are logits [n, classes] (or [n, classes, positions]), trained on
    cross-entropy with plain SGD and scored by accuracy."""
    return Learner(
        model=model,
        loss=nn.functional.cross_entropy,
        metrics={"accuracy": accuracy},
        version=installed_version(),
    )


def unit_pixels(images: torch.Tensor, floating: torch.dtype) -> torch.Tensor:
    """Images as numbers in [0, 1]: bytes are scaled by x / 255, floating-point images stay as they are."""
    return images if images.is_floating_point() else images.to(floating) / 255


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

    The "MNIST 2NN" of McMahan et al. 2017, arXiv:1602.05629, section 3. Inputs and outputs are those of `MnistMlp`.
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


FEATURES = 108
"""The number of features that `simulation.datasets.adult` makes of one person."""


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


CHARACTERS = 80
"""Outputs: the size of the vocabulary of `simulation.datasets.shakespeare`, which is LEAF's."""


class ShakespeareLstm(nn.Module):
    """Embedding 80 -> 8, two LSTM layers of 256, dense 256 -> 80: 819,920 parameters.

    McMahan et al. 2017, arXiv:1602.05629, section 3 (a stacked character-level LSTM over 80 characters); Caldas et al.
    2018 (LEAF), arXiv:1812.01097, with its vocabulary of 80. torch's LSTM has two bias vectors a layer where the paper
    has one, which are 2,048 of the parameters; the paper's own count of 866,578 belongs to a larger vocabulary.

    Takes codes [n, characters] of any integer type. Gives logits [n, 80] for the character after the last one; with
    `every_position` logits [n, 80, characters], for the character after each.
    """

    def __init__(self, every_position: bool = False) -> None:
        super().__init__()
        self.every_position = every_position
        self.embedding = nn.Embedding(CHARACTERS, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, CHARACTERS)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(codes.long()))
        if self.every_position:
            everywhere: torch.Tensor = self.output(states).transpose(1, 2)
            return everywhere
        logits: torch.Tensor = self.output(states[:, -1])
        return logits


def shakespeare_lstm() -> Learner:
    """The learner ``quorate:shakespeare-lstm``: the next character after 80, as LEAF trains it; for the data set
    ``shakespeare``. Cross-entropy, plain SGD (LEAF: batches of 10, learning rate 0.8), scored by accuracy."""
    return classifier(ShakespeareLstm)


def shakespeare_lstm_unrolled() -> Learner:
    """The learner ``quorate:shakespeare-lstm-unrolled``: the next character after each of 80, in one pass; for the data
    set ``shakespeare-unrolled``. As McMahan et al. train it (an unroll length of 80, batches of 10, learning rates
    around 1): a pass over a text costs an eightieth of ``shakespeare-lstm``'s. Loss and accuracy are means over all
    positions, so that the first ones, with little context, count too."""
    return classifier(_unrolled)


def _unrolled() -> ShakespeareLstm:
    return ShakespeareLstm(every_position=True)
