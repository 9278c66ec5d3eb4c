"""Convolutions split by channels, in pairs: each rank has a part of the weights, and all images.

The first of a pair is split by its output channels, so each rank computes some channels. The second is split by its
input channels: it needs only those, and gives a term of every output, which one all-reduce adds up. A pair sends as
much as its output, forward and backward, however many channels lie between. This is Megatron's way (Shoeybi et al.
2019, arXiv:1909.08053, section 3), with convolutions in place of matrices.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy

from examples.parallel.exchange import all_reduce, apart, divided, sum_gradients


class Pair(nn.Module):
    """Two convolutions with a ReLU between them, in one process."""

    def __init__(self, inputs: int, between: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, between, 3, padding=1)
        self.second = nn.Conv2d(between, outputs, 3, padding=1)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return self.second(self.first(x_NCHW).relu())


class SplitPair(nn.Module):
    """This rank's part of a pair."""

    def __init__(self, whole: Pair) -> None:
        super().__init__()
        self.mine = mine = divided(whole.first.out_channels, "channels")
        self.first_weight = nn.Parameter(whole.first.weight.detach()[mine].clone())
        self.first_bias = nn.Parameter(whole.first.bias.detach()[mine].clone())
        self.second_weight = nn.Parameter(whole.second.weight.detach()[:, mine].clone())
        self.second_bias = nn.Parameter(whole.second.bias.detach().clone())
        """The one parameter that all ranks have whole: it is added once, to the sum."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        between = conv2d(x_NCHW, self.first_weight, self.first_bias, padding=1).relu()
        terms = conv2d(between, self.second_weight, padding=1)
        return all_reduce(terms) + self.second_bias[:, None, None]

    def same_part(self, whole: Pair) -> list[Tensor]:
        """What ``parameters()`` are, taken from a whole pair."""
        first, second = whole.first, whole.second
        return [first.weight[self.mine], first.bias[self.mine], second.weight[:, self.mine], second.bias]


def difference(between: int = 7, steps: int = 5) -> float:
    """The largest difference of a weight after training two pairs, from one process that has all channels."""
    torch.manual_seed(0)
    whole = [Pair(2, between, 4).double(), Pair(4, between + 2, 3).double()]
    split = [SplitPair(pair) for pair in whole]
    one, parts = nn.Sequential(*whole), nn.Sequential(*split)
    images, labels = torch.randn(4, 2, 8, 8).double(), torch.tensor([0, 1, 2, 1])
    for _ in range(steps):
        one.zero_grad()
        cross_entropy(one(images).mean((2, 3)), labels).backward()
        parts.zero_grad()
        (cross_entropy(parts(images).mean((2, 3)), labels) / dist.get_world_size()).backward()
        sum_gradients(pair.second_bias for pair in split)
        for network in (one, parts):
            torch.optim.SGD(network.parameters(), lr=0.5).step()
    return max(apart(mine.same_part(pair), mine.parameters()) for pair, mine in zip(whole, split, strict=True))
