"""Exchanges between ranks that gradients pass, and what each rank holds of something that is divided.

The loss is the sum of all ranks' losses, and each rank calls ``backward`` on its own. What an exchange brought to a
rank has its gradient there, so the gradient of an exchange is the same exchange backwards:

===========  =================================================  ====================================================
all_reduce   all ranks get the sum                              all ranks get the sum of the gradients
all_to_all   rows go to other ranks                             the rows' gradients go back to where the rows were
===========  =================================================  ====================================================

All ranks must take part in the way back too, or the others wait for ever: so each rank has a part of every divided
layer. A parameter that all ranks have whole gets a term of its gradient on each, and ``sum_gradients`` adds them. A
loss that all ranks compute in the same way counts once: each rank divides it by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _AllReduce.apply(gradient)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sent, ctx.received = sent, received
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
        return arrived

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _AllToAll.apply(gradient, ctx.received, ctx.sent), None, None


def all_reduce(x: Tensor) -> Tensor:
    """The sum of all ranks' ``x``."""
    return _AllReduce.apply(x)


def all_to_all(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Send the first ``sent[0]`` rows to rank 0, the next ``sent[1]`` to rank 1, and so on; return the rows that come,
    ``received[i]`` from rank i, in the order of ranks."""
    return _AllToAll.apply(rows, sent, received)


def to_receive(sent: list[int]) -> list[int]:
    """How many rows each rank sends here, where this one sends ``sent[i]`` to rank i."""
    one = [1] * len(sent)
    return all_to_all(torch.tensor(sent), one, one).tolist()


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """For parameters that all ranks have whole."""
    for weight in parameters:
        dist.all_reduce(weight.grad)


def held(length: int, rank: int | None = None) -> slice:
    """Which of ``length`` things a rank holds, this one if none is named: each has neighbours, and about as many."""
    rank, size = dist.get_rank() if rank is None else rank, dist.get_world_size()
    return slice(length * rank // size, length * (rank + 1) // size)


def divided(length: int, what: str) -> slice:
    """Which of a layer's parts this rank holds. ValueError where there are too few for all ranks."""
    if length < dist.get_world_size():
        raise ValueError(f"{length} {what} cannot be divided over {dist.get_world_size()} ranks: each needs one.")
    return held(length)


def owner(things: Tensor, length: int) -> Tensor:
    """The ranks that hold these of ``length`` things."""
    stops = torch.tensor([held(length, rank).stop for rank in range(dist.get_world_size())])
    return torch.bucketize(things, stops, right=True)


def apart(these: Iterable[Tensor], those: Iterable[Tensor]) -> float:
    """The largest difference between two lists of tensors."""
    return max(float((a - b).detach().abs().max()) for a, b in zip(these, those, strict=True))
