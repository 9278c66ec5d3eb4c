"""A convolution whose images are split by rows: each rank has some rows of every image, and all of the weights.

A kernel of k rows reaches (k - 1)/2 rows beyond those of its rank, so before each convolution neighbours exchange that
many rows at the border, the *halo*. That is all that is sent for activations: less than an all-gather by the number of
rows over the halo's. For images that are too large for one device (microscopy, satellites, climate).
"""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy

from examples.parallel.exchange import all_reduce, all_to_all, apart, held, sum_gradients


def with_halo(x_NCHW: Tensor, width: int) -> Tensor:
    """This rank's rows, with ``width`` more above and below: those of its neighbours, and zeros beyond the image."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    rows = x_NCHW.movedim(2, 0)
    outside = torch.zeros_like(rows[:width])
    edges = torch.cat([rows[: width if rank > 0 else 0], rows[len(rows) - (width if rank < last else 0) :]])
    exchanged = [width if abs(other - rank) == 1 else 0 for other in range(last + 1)]
    found = all_to_all(edges, exchanged, exchanged)
    above = found[:width] if rank > 0 else outside
    below = found[len(found) - width :] if rank < last else outside
    return torch.cat([above, rows, below]).movedim(0, 2)


class Network(nn.Module):
    """Two convolutions that keep the size, the mean over each image, and a linear layer: in one process, or by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(2, 5, 5, padding=2), nn.Conv2d(5, 4, 3, padding=1)])
        self.head = nn.Linear(4, 3)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        for layer in self.convolutions:
            x_NCHW = layer(x_NCHW).relu()
        return self.head(x_NCHW.mean((2, 3)))

    def by_rows(self, x_NCHW: Tensor, height: int) -> Tensor:
        """``forward`` where this rank has some rows of images of that height."""
        smallest = height // dist.get_world_size()
        for layer in self.convolutions:
            width = layer.padding[0]
            if smallest < width:
                raise ValueError(f"A kernel reaches {width} rows further, and a rank has {smallest}: use fewer ranks.")
            x_NCHW = conv2d(with_halo(x_NCHW, width), layer.weight, layer.bias, padding=(0, width)).relu()
        return self.head(all_reduce(x_NCHW.sum((2, 3))) / (height * x_NCHW.shape[3]))


def difference(height: int = 11, steps: int = 5) -> float:
    """The largest difference of a weight after training on rows, from one process that has whole images."""
    torch.manual_seed(0)
    one = Network().double()
    split = deepcopy(one)
    images, labels = torch.randn(4, 2, height, 9).double(), torch.tensor([0, 1, 2, 1])
    mine = images[:, :, held(height)]
    for _ in range(steps):
        one.zero_grad()
        cross_entropy(one(images), labels).backward()
        split.zero_grad()
        (cross_entropy(split.by_rows(mine, height), labels) / dist.get_world_size()).backward()
        sum_gradients(split.parameters())
        for network in (one, split):
            torch.optim.SGD(network.parameters(), lr=0.5).step()
    return apart(one.parameters(), split.parameters())
