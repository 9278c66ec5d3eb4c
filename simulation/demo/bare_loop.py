"""The bare loop: federated averaging as a plain loop on one machine, for comparison with Quorate's rounds.

It uses plain ``torch.optim.SGD`` and plain sums in float64, and no engine. With a federated run it shares only the
inputs of the comparison: the initial checkpoint, the cohorts, the shards, the hyperparameters, and the order of a
device's batches, which is public (``client_sdk.learning.batch_order``).

McMahan et al. 2017, arXiv:1602.05629, Algorithm 1::

    for each round t:  w_{t+1} <- sum over k in S_t of (n_k / n) w_k,   n = sum over k in S_t of n_k
    with w_k:          w <- w - lr * grad l(w; b), for each batch b of each epoch, from w_t
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from client_sdk.data import Examples
from client_sdk.learning import batch_order
from client_sdk.tensors import Tensors


@dataclass(frozen=True, kw_only=True)
class LoopRecipe:
    """The model and its hyperparameters, named as in a plan."""

    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], torch.Tensor]
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int = 0
    """Seed of the shuffles: the task's."""
    weigh: Callable[[int], int] = int
    """Examples -> weight."""
    server_learning_rate: float = 1.0
    """w_{t+1} <- w_t + rate * (mean - w_t); 1 is the mean itself."""
    statistics: Collection[str] = ()
    """Tensors that get the mean itself, such as BatchNorm's running mean."""


@dataclass(frozen=True, kw_only=True)
class LoopPart:
    """One device's part in a committed round."""

    round: int
    device: str
    """The device's id: the shuffles depend on it."""
    shard: int


def fedavg(
    recipe: LoopRecipe, initial: Tensors, shards: Sequence[Examples], rounds: Iterable[Sequence[LoopPart]]
) -> Iterator[dict[str, torch.Tensor]]:
    """The global model after each round, as a state dict. ``rounds``: the parts that counted, round by round.

    Raises ValueError for a round without any part, RuntimeError (from torch) where ``initial`` is another model's.
    """
    module = recipe.model()
    world = {name: torch.from_numpy(np.array(array)) for name, array in initial.items()}
    for parts in rounds:
        if not parts:
            raise ValueError("a round needs at least one device")
        total = 0
        sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in world.items()}
        for part in sorted(parts, key=lambda part: part.device):
            shard = shards[part.shard]
            weight = recipe.weigh(len(shard))
            module.load_state_dict(world)
            _train(module, recipe, shard, part)
            for name, tensor in module.state_dict().items():
                sums[name] += weight * tensor.double()
            total += weight
        rates = {name: 1.0 if name in recipe.statistics else recipe.server_learning_rate for name in world}
        world = {
            name: (before.double() + rates[name] * (sums[name] / total - before)).to(before.dtype)
            for name, before in world.items()
        }
        yield world


@torch.no_grad()
def accuracy(recipe: LoopRecipe, world: dict[str, torch.Tensor], test: Examples) -> float:
    """The fraction of ``test`` whose label has the largest logit."""
    module = recipe.model()
    module.load_state_dict(world)
    module.eval()
    guesses = module(torch.from_numpy(test.x)).argmax(dim=1)
    return float((guesses == torch.from_numpy(test.y)).double().mean())


def _train(module: nn.Module, recipe: LoopRecipe, shard: Examples, part: LoopPart) -> None:
    """Local SGD, in place."""
    module.train()
    x, y = torch.from_numpy(shard.x), torch.from_numpy(shard.y)
    optimizer = torch.optim.SGD(module.parameters(), lr=recipe.learning_rate)
    batches = batch_order(len(y), recipe.batch_size, seed=recipe.seed, round=part.round, device=part.device)
    for _ in range(recipe.epochs * -(-len(y) // recipe.batch_size)):
        chosen = next(batches)
        optimizer.zero_grad()
        recipe.loss(module(x[chosen]), y[chosen]).backward()
        optimizer.step()
