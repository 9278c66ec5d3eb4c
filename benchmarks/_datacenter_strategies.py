"""The ranks of ``benchmarks.datacenter``'s rows by strategy, under torchrun: each strategy of a plan's section
``[datacenter]``, and what a user of torch would write for it, in turn in the same two processes.

A bare loop follows torch's documentation of the same strategy: no values read back, no checks. Torch has no parameter
server without RPC; the bare one here is the shortest over send and receive. Of top-k, 1 bit and 2 bits it has nothing:
beside them stands plain DDP, so their ratio is what the compression costs in computation. Both train the same
transformer on the same arrays with the same optimizer, in batches of the same size.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from benchmarks._datacenter_ranks import data_of, round_recipe, summed, synchronize, transformer
from client_sdk.learning.group import Group, joined
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train

Forward = Callable[[torch.Tensor], torch.Tensor]
Move = Callable[[], object]
SYNC_EVERY = 8
MICRO = 4


class Way(NamedTuple):
    options: dict[str, Any]
    """Fields of the recipe."""
    bare: Callable[[nn.Module, Group, Recipe], tuple[Forward, Move]] | None
    """What computes the outputs of this rank's part of a batch, and what moves the weights after ``backward``. None: a
    schedule does all of it (``in_stages``)."""
    aim: float | None = 1.05
    parts: int = 2
    """Into how many parts a batch is divided over the ranks."""


def sgd(weights: Any, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=recipe.learning_rate, momentum=recipe.momentum)


def ddp(module: nn.Module, group: Group, recipe: Recipe, hook: Any = None) -> tuple[Forward, Move]:
    wrapped = DistributedDataParallel(module, gradient_as_bucket_view=True)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    return wrapped, sgd(module.parameters(), recipe).step


def zero_1(module: nn.Module, group: Group, recipe: Recipe) -> tuple[Forward, Move]:
    wrapped = DistributedDataParallel(module, gradient_as_bucket_view=True)
    options: dict[str, Any] = {"lr": recipe.learning_rate, "momentum": recipe.momentum}
    return wrapped, ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, **options).step


def fsdp(module: nn.Module, group: Group, recipe: Recipe, *, gathered_once: bool) -> tuple[Forward, Move]:
    mesh = init_device_mesh(group.device.type, (group.world,))
    for unit in [*module.blocks, module]:  # type: ignore[misc]
        fully_shard(unit, mesh=mesh, reshard_after_forward=False if gathered_once else None)
    return module, sgd(module.parameters(), recipe).step


def recomputed(module: nn.Module, group: Group, recipe: Recipe) -> tuple[Forward, Move]:
    for block in module.blocks:  # type: ignore[union-attr]
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return ddp(module, group, recipe)


def averaged(module: nn.Module, group: Group, recipe: Recipe) -> tuple[Forward, Move]:
    averager, optimizer = PeriodicModelAverager(period=SYNC_EVERY), sgd(module.parameters(), recipe)

    def move() -> None:
        optimizer.step()
        averager.average_parameters(module.parameters())

    return module, move


def tensor_parallel(module: nn.Module, group: Group, recipe: Recipe) -> tuple[Forward, Move]:
    mesh = init_device_mesh(group.device.type, (group.world,))
    styles = {"column": ColwiseParallel, "row": RowwiseParallel}
    plan = {name: styles[style]() for name, style in transformer().tensor.items()}
    parallelize_module(module, mesh, plan)
    return module, sgd(module.parameters(), recipe).step


def served(module: nn.Module, group: Group, recipe: Recipe) -> tuple[Forward, Move]:
    """Rank 0 has the optimizer; each other sends it gradients and gets weights."""
    weights = list(module.parameters())
    optimizer = sgd(weights, recipe)
    flat = torch.empty(sum(weight.numel() for weight in weights))

    @torch.no_grad()
    def spread(of: Callable[[nn.Parameter], Any], put: Callable[[Any, torch.Tensor], object]) -> None:
        parts = flat.split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            put(of(weight), part.view_as(weight))

    @torch.no_grad()
    def move() -> None:
        if group.rank:
            dist.send(torch.cat([weight.grad.reshape(-1) for weight in weights if weight.grad is not None]), 0)
            dist.recv(flat, 0)
            spread(lambda weight: weight, lambda own, part: own.copy_(part))
            return
        for other in range(1, group.world):
            dist.recv(flat, other)
            spread(lambda weight: weight.grad, lambda own, part: own.add_(part))
        for weight in weights:
            if weight.grad is not None:
                weight.grad.div_(group.world)
        optimizer.step()
        whole = torch.cat([weight.reshape(-1) for weight in weights])
        for other in range(1, group.world):
            dist.send(whole, other)

    return module, move


def by_itself(module: nn.Module, group: Group, recipe: Recipe) -> tuple[Forward, Move]:
    return module, sgd(module.parameters(), recipe).step


WAYS = {
    "ddp": Way({}, ddp, 1.02),
    "shard_optimizer": Way({"shard": "optimizer"}, zero_1),
    "shard_gradients": Way({"shard": "gradients"}, partial(fsdp, gathered_once=True)),
    "shard_full": Way({"shard": "full"}, partial(fsdp, gathered_once=False)),
    "recompute": Way({"recompute": True}, recomputed),
    "tensor": Way({"mesh": {"tensor": 2}}, tensor_parallel, parts=1),
    "pipeline": Way({"mesh": {"pipeline": 2}, "accumulate": MICRO}, None, parts=1),
    "sync_every": Way({"sync_every": SYNC_EVERY}, averaged),
    "fp16": Way({"compress": "fp16"}, partial(ddp, hook=default_hooks.fp16_compress_hook)),
    "bf16": Way({"compress": "bf16"}, ddp, None),
    "powersgd": Way({"compress": "powersgd"}, ddp, None),
    "topk": Way({"compress": "topk"}, ddp, None),
    "1bit": Way({"compress": "1bit"}, ddp, None),
    "2bit": Way({"compress": "2bit"}, ddp, None),
    "server": Way({"server": {"count": 1}}, served),
    "hogwild": Way({"hogwild": True}, by_itself),
}
"""By the end of its row's name."""


def bare(way: Way, group: Group, recipe: Recipe, data: Any) -> float:
    """CPU seconds of this rank."""
    torch.manual_seed(0)
    module = transformer().model().train()
    x, y = (torch.from_numpy(array) for array in data)
    order, size = torch.randperm(len(x)), recipe.batch_size // way.parts
    step_of: Callable[[torch.Tensor, torch.Tensor], object]
    if way.bare is None:
        step_of = in_stages(module, group, recipe)
    else:
        forward, move = way.bare(module, group, recipe)

        def step_of(inputs: torch.Tensor, targets: torch.Tensor) -> None:
            for weight in module.parameters():
                weight.grad = None
            nn.functional.cross_entropy(forward(inputs), targets).backward()
            move()

    synchronize(group)
    began = time.process_time()
    for step in range(recipe.steps):
        start = (step * recipe.batch_size + (group.rank * size if way.parts > 1 else 0)) % (len(x) - recipe.batch_size)
        rows = order[start : start + size]
        step_of(x[rows], y[rows])
    return time.process_time() - began


def in_stages(module: Any, group: Group, recipe: Recipe) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """A step of torch's 1F1B with half of the blocks on each rank."""
    half, last = len(module.blocks) // 2, group.rank == 1
    part = nn.Sequential(*([*module.blocks[half:], module.head] if last else [module.first, *module.blocks[:half]]))
    size, length = recipe.batch_size // MICRO, 32
    between = torch.zeros((size, length, 128), requires_grad=True)
    tokens, outputs = torch.zeros((size, length), dtype=torch.int64), torch.zeros((size, 256, length))
    ends: dict[str, Any] = {"input_args": between if last else tokens, "output_args": outputs if last else between}
    schedule = Schedule1F1B(
        PipelineStage(part, group.rank, 2, group.device, **ends), MICRO, loss_fn=nn.functional.cross_entropy
    )
    optimizer = sgd(part.parameters(), recipe)

    def step_of(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        if last:
            schedule.step(target=targets)
        else:
            schedule.step(inputs)
        optimizer.step()

    return step_of


def ours(way: Way, group: Group, recipe: Recipe, data: Any) -> float:
    learner = transformer()
    return train(learner, learner.initial(0), data, recipe, group=group)[1].cpu_s


def turns(group: Group, batch: int, steps: int, pairs: int) -> Iterator[dict[str, Any]]:
    """Of each strategy the CPU seconds of all ranks, of ours and of the bare loop, ``pairs`` times."""
    torch.set_num_threads(1)
    data = data_of("transformer")
    for name, way in WAYS.items():
        recipe = Recipe.model_validate({**round_recipe(batch, steps).model_dump(), **way.options})
        found: dict[str, list[float]] = {"ours": [], "bare": []}
        calls = {"ours": ours, "bare": bare}
        for pair in range(-1, pairs):
            for key in list(calls) if pair % 2 == 0 else reversed(list(calls)):
                synchronize(group)
                spent = summed(group, calls[key](way, group, recipe, data))
                if pair >= 0:  # the first one warms up
                    found[key].append(spent)
        yield {"name": name, "aim": way.aim, **found}


if __name__ == "__main__":
    with joined("cpu", 120) as ranks:
        for row in turns(ranks, *(int(word) for word in sys.argv[1:])):
            if ranks.rank == 0:
                print(json.dumps(row), flush=True)
