"""The ranks of ``benchmarks.datacenter``, under torchrun: they run our trainer and a bare DDP loop in turn.

Ours runs with the recipe of a run's datacenter round. The bare loop follows PyTorch's tutorial: DDP around the model,
the mean loss of the rank's own batch, SGD with the round's momentum, no values read back. Both train the same model on
the same arrays, in the same processes and the same group.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from client_sdk.learning import Learner
from client_sdk.learning.group import Group, joined
from client_sdk.protocol.devices import CheckpointRef, Task
from client_sdk.protocol.workers import DatacenterTask, Lease
from coordinator.datacenter.recipe import Recipe, recipe_of
from coordinator.datacenter.training import train

EXAMPLES = 4096


class Places(nn.Module):
    """Tokens [n, 32] -> vectors [n, 32, width] of tokens and places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Parameter(torch.zeros(32, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.tokens(tokens) + self.places
        return out


class Block(nn.Module):
    """A layer of a transformer, with as many heads as this rank has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        query, key, value = (
            one(normed).unflatten(-1, (-1, 32)).transpose(1, 2) for one in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        out: torch.Tensor = hidden + self.down(nn.functional.relu(self.up(self.after(hidden))))
        return out


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, 256)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(hidden)
        return logits.transpose(1, 2)


class Transformer(nn.Module):
    """Tokens [n, 32] -> logits of the next [n, 256, 32]: 4 layers of width 128, 0.9 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = Places(128), Head(128)
        self.blocks = nn.ModuleList(Block(128) for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.first(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def cnn_model() -> nn.Module:
    """Images [n, 1, 28, 28] -> logits [n, 10]: two convolutions, 0.8 M parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def cnn() -> Learner:
    return Learner(model=cnn_model, loss=nn.functional.cross_entropy)


def transformer() -> Learner:
    columns, rows = ("query", "key", "value", "up"), ("out", "down")
    tensor = {f"blocks.*.{name}": style for style, names in (("column", columns), ("row", rows)) for name in names}
    return Learner(model=Transformer, loss=nn.functional.cross_entropy, blocks=("blocks.*",), tensor=tensor)


def data_of(name: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    if name != "transformer":
        return rng.random((EXAMPLES, 1, 28, 28), np.float32), rng.integers(0, 10, EXAMPLES)
    return rng.integers(0, 256, (EXAMPLES, 32)), rng.integers(0, 256, (EXAMPLES, 32))


def mlp() -> Learner:
    return Learner(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)),
        loss=nn.functional.cross_entropy,
    )


LEARNERS = {"cnn": cnn, "mlp": mlp, "transformer": transformer}


def round_recipe(batch: int, steps: int) -> Recipe:
    """What a worker computes in a round whose plan says no more than this."""
    lease = Lease(
        run="benchmark",
        round=1,
        attempt=1,
        fence=1,
        worker="w" + "0" * 16,
        checkpoint=CheckpointRef(version=0, digest="0" * 64, bytes=1),
        plan_digest="0" * 64,
        task=Task(learner="benchmark:model"),
        datacenter=DatacenterTask(data="arrays", steps=steps, batch_size=batch),
        lease_s=60,
        heartbeat_s=15,
        within_s=600,
        max_result_bytes=1,
    )
    return recipe_of(lease)


def ours(group: Group, learner: Learner, data: Any, batch: int, steps: int) -> float:
    """Samples in a second of our trainer, without its checks before training."""
    return train(learner, learner.initial(0), data, round_recipe(batch, steps), group=group)[1].samples_per_s


def bare(group: Group, learner: Learner, data: Any, batch: int, steps: int, *, reduce: bool = True) -> float:
    """Samples in a second of the bare loop; without ``reduce`` gradients are not exchanged."""
    torch.manual_seed(0)
    module = learner.model().to(group.device)
    ddp = None if group.alone else DistributedDataParallel(module, gradient_as_bucket_view=True)
    recipe = round_recipe(batch, steps)
    optimizer = torch.optim.SGD(module.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)
    x, y = (torch.from_numpy(array) for array in data)
    order = torch.randperm(len(x))
    per_rank = batch // group.world
    synchronize(group)
    started = time.perf_counter()
    for step in range(steps):
        start = (step * batch + group.rank * per_rank) % (len(x) - batch)
        rows = order[start : start + per_rank]
        with nullcontext() if reduce or ddp is None else ddp.no_sync():
            optimizer.zero_grad()
            inputs, targets = x[rows].to(group.device), y[rows].to(group.device)
            nn.functional.cross_entropy((ddp or module)(inputs), targets).backward()
        optimizer.step()
    synchronize(group)
    return steps * batch / (time.perf_counter() - started)


def synchronize(group: Group) -> None:
    if group.device.type == "cuda":
        torch.cuda.synchronize()
    if not group.alone:
        dist.barrier()


def summed(group: Group, spent: float) -> float:
    """Over all ranks."""
    total = torch.tensor(spent, dtype=torch.float64)
    if not group.alone:
        dist.all_reduce(total)
    return float(total)


def main(name: str, device: str, batch: int, steps: int, pairs: int) -> None:
    """Rank 0 prints the samples in a second of each turn as one line of JSON."""
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    learner, data = LEARNERS[name](), data_of(name)
    turns: dict[str, Callable[[Group], float]] = {
        "ours": lambda group: ours(group, learner, data, batch, steps),
        "bare": lambda group: bare(group, learner, data, batch, steps),
        "alone": lambda group: bare(group, learner, data, batch, steps, reduce=False),
    }
    found: dict[str, list[float]] = {"ours": [], "bare": [], "alone": []}
    with joined(device, 120) as group:
        for turn in turns.values():
            turn(group)
        for pair in range(pairs):
            for key in list(turns) if pair % 2 == 0 else reversed(list(turns)):
                synchronize(group)
                found[key].append(turns[key](group))
        if group.rank == 0:
            print(json.dumps({**found, "world": group.world}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:]))
