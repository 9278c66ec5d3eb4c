"""Models that are divided over the ranks of a group, so that one rank need not hold all of it (ZeRO: Rajbhandari et al.
2020, arXiv:1910.02054).

::

    GlobalGradient      each rank has all parameters, gradients and the optimizer's state
    OptimizerShards     (ZeRO-1) each parameter is moved by one rank, which alone has its optimizer's state
    GradientShards      (ZeRO-2) and each rank has a part of the gradients; parameters are gathered once a step
    FullShards          (ZeRO-3) and of the parameters, which are gathered block by block (``Learner.blocks``)

The last two are torch's ``fully_shard``. All give the update of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils._pytree import tree_flatten, tree_unflatten

from client_sdk.learning import state
from client_sdk.learning.errors import Diverged, LearnerFailed, LearningError
from client_sdk.learning.group import GroupLost, RankFailed, Unreached, with_sparse_gradients
from client_sdk.learning.sync_sgd import GlobalGradient, blocks_of


def balanced(weights: Sequence[torch.Tensor], parts: int) -> list[list[int]]:
    """The places of ``weights`` in so many parts: the largest first, each to the part that has least."""
    found: list[list[int]] = [[] for _ in range(parts)]
    held = [0] * parts
    for place in sorted(range(len(weights)), key=lambda n: -weights[n].numel()):
        least = min(range(parts), key=lambda n: (held[n], len(found[n])))
        found[least].append(place)
        held[least] += weights[place].numel()
    return found


def clip_parts(
    own: Sequence[torch.Tensor], max_norm: float, step: int, of_all: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """As ``local_sgd.clip``, of a gradient of which this rank has a part. ``of_all``: a sum over the ranks."""
    device = own[0].device if own else None
    wide = torch.float64 if any(part.dtype is torch.float64 for part in own) else torch.float32
    squares = torch.zeros((), dtype=wide, device=device)
    for part in own:
        squares += torch.linalg.vector_norm(part, dtype=wide) ** 2
    squares = of_all(squares)
    norm = float(squares.sqrt())
    if not squares.isfinite():
        raise Diverged(f"The gradient's norm at step {step} is {norm}: try a smaller learning rate.")
    if norm > max_norm:
        for part in own:
            part.mul_(max_norm / norm)


class OptimizerShards(GlobalGradient):
    """Each parameter is moved by one rank, which then sends it to the others."""

    def _prepared(self, module: nn.Module, params: list[nn.Parameter]) -> list[nn.Parameter]:
        if len(params) < self._group.world:
            raise LearnerFailed(
                f"shard = 'optimizer' gives each of {self._group.world} ranks a trained tensor, and there are "
                f"{len(params)}: take fewer processes, or shard = 'full'."
            )
        self._parts = [[params[n] for n in part] for part in balanced(params, self._group.world)]
        return params

    @property
    def owned(self) -> list[nn.Parameter]:
        return self._parts[self._group.rank]

    @torch.no_grad()
    def moved(self, last: bool) -> None:
        for rank, part in enumerate(self._parts):
            for kind in dict.fromkeys(weight.dtype for weight in part):
                own = [weight.detach() for weight in part if weight.dtype is kind]
                flat = _flatten_dense_tensors(own)
                with self._group.unbroken():
                    dist.broadcast(flat, src=rank)
                if rank != self._group.rank:
                    for weight, value in zip(own, _unflatten_dense_tensors(flat, own), strict=True):
                        weight.copy_(value)


class FullShards(GlobalGradient):
    """Each rank has a part of every parameter, of its gradient and of its optimizer's state.

    A rank whose learner fails cannot take part in the rest of the step: it leaves the group, which is over.
    """

    _stays = False
    _gathered_once = False

    def _prepared(self, module: nn.Module, params: list[nn.Parameter]) -> list[nn.Parameter]:
        self._module = module
        if with_sparse_gradients(module):
            raise LearnerFailed("An embedding with sparse gradients cannot be sharded: take shard = 'optimizer'.")
        chosen = {id(weight) for weight in params}
        names = [name for name, tensor in state.named_tensors(module).items() if id(tensor) in chosen]
        mesh = init_device_mesh(self._group.device.type, (self._group.world,))
        units = [] if state.tied_names(module) else list(blocks_of(module, self._blocks))
        self._fully_shard(units, module, mesh)
        tensors = state.named_tensors(module)
        return [cast("nn.Parameter", tensors[name]) for name in names]

    def _fully_shard(self, units: list[nn.Module], root: nn.Module, mesh: DeviceMesh) -> None:
        for unit in [*units, root]:
            if self._unreached is not Unreached.REFUSED:
                unit.register_forward_hook(_reach_own)
            try:
                fully_shard(unit, mesh=mesh, reshard_after_forward=False if self._gathered_once else None)
            except ValueError as error:
                raise LearnerFailed(f"The model cannot be sharded: {error}") from None

    def whole(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if hasattr(tensor, "full_tensor"):
            with self._group.unbroken():
                tensor = tensor.full_tensor()
        return tensor.detach().cpu()

    def compute(self, *arguments: Any) -> tuple[float, float]:
        try:
            return super().compute(*arguments)
        except GroupLost as lost:
            if (why := self._group.why_left()) is not None:
                raise RankFailed(why) from lost
            raise
        except (RankFailed, Diverged):
            raise
        except LearningError as error:
            raise self._group.leave(error) from error.__cause__

    @torch.no_grad()
    def clip(self, max_norm: float, step: int) -> None:
        own = [_local(weight.grad) for weight in self.params if weight.grad is not None]
        clip_parts(own, max_norm, step, self._of_all)

    def _of_all(self, reported: torch.Tensor) -> torch.Tensor:
        with self._group.unbroken():
            dist.all_reduce(reported)
        return reported

    def _alone_unless(self, last: bool) -> AbstractContextManager[Any]:
        if isinstance(self._module, FSDPModule):
            self._module.set_requires_gradient_sync(last)
        return nullcontext()


class GradientShards(FullShards):
    """As ``FullShards``, with parameters that stay whole from the step's forward pass to its end."""

    _gathered_once = True


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part that this rank has."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _reach_own(unit: nn.Module, inputs: Any, outputs: Any) -> Any:
    """Give each parameter that ``unit`` holds itself a gradient, of zero where the loss does not reach it on this rank:
    else ranks would exchange gradients of different parameters."""
    flat, shape = tree_flatten(outputs)
    own = [weight for weight in unit.parameters() if weight.requires_grad and _gathered(weight)]
    place = next((n for n, one in enumerate(flat) if isinstance(one, torch.Tensor) and one.requires_grad), None)
    if place is None or not own:
        return outputs
    flat[place] = _WithZeros.apply(flat[place], *own)  # type: ignore[no-untyped-call]
    return tree_unflatten(flat, shape)


def _gathered(weight: Any) -> bool:
    """Whether it is whole, or this rank's part over *tensor* alone."""
    return not hasattr(weight, "to_local") or bool(weight.device_mesh.mesh_dim_names == ("tensor",))


class _WithZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *params: torch.Tensor) -> torch.Tensor:
        ctx.like = params
        return output.clone()  # of a view, an operation in place would lose fully_shard's hook

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradients[0], *(torch.zeros_like(weight) for weight in ctx.like)
