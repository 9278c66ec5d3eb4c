"""The character model of the FedAvg paper and of LEAF, for Shakespeare by role.

This file knows torch and that a character is a number below 80. It has never heard of plays, fleets or files.
"""

from __future__ import annotations

import torch
from torch import nn

from client_sdk.learning import Learner
from simulation.learners.classifier import classifier

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
