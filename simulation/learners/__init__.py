"""Learners that come with Quorate, for the demo, for trying things out, for recipes and as examples to copy.

| name                                | model                             | parameters | data                 |
|-------------------------------------|-----------------------------------|------------|----------------------|
| `quorate:mnist-mlp`                 | perceptron 784-64-10              |     50,890 | mnist, fashion-mnist |
| `quorate:mnist-mlp-200`             | perceptron 784-200-200-10         |    199,210 | mnist, fashion-mnist |
| `quorate:mnist-cnn`                 | two convolutions, one dense layer |  1,663,370 | mnist, fashion-mnist |
| `quorate:shakespeare-lstm`          | embedding 8, two LSTMs of 256     |    819,920 | shakespeare          |
| `quorate:shakespeare-lstm-unrolled` | the same, at every position       |    819,920 | shakespeare-unrolled |
| `quorate:adult-logistic`            | logistic regression, 108 features |        218 | adult                |

Each is a function without arguments that gives a `Learner`, and an entry point of the group `quorate.learners`.
This package knows torch and `Learner`. It has never heard of fleets, rounds or data sets' files.
"""

from __future__ import annotations

from simulation.learners.adult import AdultLogistic, adult_logistic
from simulation.learners.mnist import MnistMlp, MnistMlp200, mnist_mlp, mnist_mlp_200
from simulation.learners.mnist_cnn import MnistCnn, mnist_cnn
from simulation.learners.shakespeare import ShakespeareLstm, shakespeare_lstm, shakespeare_lstm_unrolled

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
