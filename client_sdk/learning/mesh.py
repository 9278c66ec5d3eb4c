"""A model on a mesh of processes: batches, layers and the chain of layers are divided, each over an axis of its own.

::

    axis        divides                                               by torch's
    data        batches, and what ``shard`` says (``sharding``)       fully_shard
    replicas    batches, over copies of what *data* divides           fully_shard on both axes (HSDP)
    tensor      layers, as ``Learner.tensor`` says                    parallelize_module
    pipeline    the chain of modules, between two ``Learner.blocks``  torch.distributed.pipelining

Any product of them gives the update of one process. Ranks are numbered tensor first, then data, replicas and pipeline:
what talks most is nearest. Parameters of other stages are on the device *meta*: they have a shape and no memory.

Before the first step each rank runs its part on examples, whole and divided, and compares outputs and gradients: what a
plan for ``tensor`` or a cut would change is refused in a sentence. A stage's micro-batches all have one size: a smaller
one repeats an example that does not count.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleDualPipeV, ScheduleZBVZeroBubble
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._pytree import tree_leaves

from client_sdk.learning import state
from client_sdk.learning.data import TensorExamples
from client_sdk.learning.errors import Diverged, LearnerFailed, LearningError
from client_sdk.learning.evaluation import explained
from client_sdk.learning.group import Group, GroupLost, sentence, with_sparse_gradients
from client_sdk.learning.sharding import FullShards
from client_sdk.learning.sync_sgd import PRECISIONS, RankLoss, blocks_of, own_buffers
from client_sdk.protocol.workers import Mesh

BEFORE = "before the first step, where its parts are compared"
SCHEDULES: dict[str, tuple[Any, int]] = {
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
    "zb": (ScheduleZBVZeroBubble, 2),
    "dualpipev": (ScheduleDualPipeV, 2),
}
"""Name -> torch's schedule, and the stages that a process has."""
V_SHAPED = ("zb", "dualpipev")
"""Schedules in which a process has two stages that are equally far from both ends, so that the first has the last."""
STYLES: dict[str, Callable[[], Any]] = {
    "column": ColwiseParallel,
    "row": RowwiseParallel,
    "input": lambda: PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
}


logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)  # errors are ours to tell
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # how parts are put together


class _LossOfOutputs(RankLoss):
    """The loss of outputs that the last stage has given."""

    def outputs_of(self, inputs: Any) -> Any:
        return inputs

    def with_told(self, share: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """Schedules differentiate by a stage's parameters only, of which ``reported`` is none."""
        self.reported.grad = entries if self.reported.grad is None else self.reported.grad + entries
        return share


class MeshGradient(FullShards):
    """``shard``: what is divided over *data*, as in a recipe. ``tensor``: ``Learner.tensor``. ``batch_size``: that of
    the largest batch of ``examples``."""

    def __init__(
        self,
        module: nn.Module,
        params: list[nn.Parameter],
        loss: Any,
        group: Group,
        *,
        mesh: Mesh,
        shard: str,
        schedule: str,
        tensor: Mapping[str, str],
        examples: TensorExamples,
        batch_size: int,
        **options: Any,
    ) -> None:
        self._mesh, self._schedule_name, self._plan, self._examples = mesh, schedule, tensor, examples
        self._gathered_once = shard != "full"
        self._copies = (mesh.replicas, mesh.data) if shard != "none" else (mesh.parts, 1)
        """Processes that have all of a stage's layer as copies of each other, and processes that share one."""
        self._micro = math.ceil(batch_size / mesh.parts / options["accumulate"])
        """Examples of a stage's micro-batch."""
        self._autocast = PRECISIONS[options["precision"]]
        self._stages: list[_Stage] = []
        self._after_all = mesh.parts > 1 and mesh.pipeline > 1 and schedule in V_SHAPED
        """Whether gradients are exchanged when all are done: ``fully_shard`` waits for whole backward passes."""
        self._now: Callable[[Any, torch.Tensor], torch.Tensor]
        if mesh.pipeline > 1:
            self._loss_of = _LossOfOutputs
        super().__init__(module, params, loss, group, **options)
        self._losses.paired = True  # on a stage that has no loss: the weight of all is known when gradients are
        self._before = {name: one.clone() for name, one in self._own_statistics().items()}

    # ------------------------------------------------------------ preparation

    def _prepared(self, module: nn.Module, params: list[nn.Parameter]) -> list[nn.Parameter]:
        self._module = module
        group, mesh = self._group, self._mesh
        chosen = {id(weight) for weight in params}
        names = [name for name, tensor in state.named_tensors(module).items() if id(tensor) in chosen]
        self._require_divisible(module)
        with group.unbroken():
            self._axes = axes_of(group, (mesh.pipeline, *self._copies, mesh.tensor))
        self._share = replace(group, rank=group.rank // mesh.tensor % mesh.parts, world=mesh.parts)
        self._stage_rank = group.rank // (mesh.tensor * mesh.parts)
        self._holders: dict[str, int] = {}
        error: Exception | None = None
        try:
            with explained(BEFORE), group.unbroken():
                self._divide(module)
        except LearningError as found:
            if isinstance(found, GroupLost):
                raise
            error = found
        self._raise_first(error)
        tensors = state.named_tensors(module)
        self._places = {name: place for place, name in enumerate(names)}
        trained = {name: tensors[name] for name in names if not tensors[name].is_meta}
        self._own = list(trained)
        self._raise_first(None if trained else LearnerFailed("A stage has no trained tensor: take fewer stages."))
        return list(trained.values())  # type: ignore[arg-type]

    def _raise_first(self, error: Exception | None) -> None:
        """LearnerFailed, on all ranks, of the lowest rank that has an error."""
        found = [text for text in self._group.gather("" if error is None else sentence(error)) if text]
        if found:
            raise LearnerFailed(found[0]) from error

    def _require_divisible(self, module: nn.Module) -> None:
        several = self._mesh.pipeline > 1 or self._mesh.tensor > 1
        if with_sparse_gradients(module):
            raise LearnerFailed("An embedding with sparse gradients cannot be divided over a mesh.")
        if several and (tied := state.tied_names(module)):
            one, other = next(iter(tied.items()))
            raise LearnerFailed(f"{one} is tied to {other}: over tensor and pipeline no weights may be tied.")
        if self._mesh.tensor > 1:
            self._styles = styles_of(module, self._plan, self._mesh.tensor)

    def _divide(self, module: nn.Module) -> None:
        """Keep this rank's part of the module: cut the chain, then divide layers, then shard."""
        module.eval()
        inputs = self._taken(self._examples, torch.arange(self._micro))[0]
        parts: list[tuple[nn.Module, Any]] = [(module, inputs)]
        if self._mesh.pipeline > 1:
            parts = self._cut(module, inputs)
        if self._mesh.tensor > 1:
            for part, given in parts:
                self._divide_layers(part.to(self._group.device), given, module)
        for part, _ in parts:
            self._shard(part)
        if self._mesh.pipeline > 1:
            self._schedule = self._scheduled()
        module.train()

    def _divide_layers(self, part: nn.Module, given: Any, module: nn.Module) -> None:
        names = {id(one): name for name, one in module.named_modules()}
        own = {id(one) for one in part.modules()}
        wanted, outputs = traced(part, given)
        for layer, style in self._styles.items():
            if id(layer) in own:
                parallelize_module(layer, self._axes["tensor"], STYLES[style](), src_data_rank=None)
        try:
            found, divided = traced(part, given)
        except Exception as error:
            line = str(error).strip().split("\n", 1)[0]
            raise LearnerFailed(
                f"Divided over tensor = {self._mesh.tensor} the model fails ({line}): the learner's tensor must name "
                "pairs of column and row, and heads must divide."
            ) from error
        largest = max((float(one.abs().max()) for one in wanted.values() if one.numel()), default=0.0)
        for name, whole in [("", outputs), *wanted.items()]:
            here = divided if name == "" else found.get(name)
            if here is None or not _alike(here, whole, largest):
                what = f"the gradient of {name}" if name else f"what {names.get(id(part)) or 'the model'} computes"
                raise LearnerFailed(
                    f"Divided over tensor = {self._mesh.tensor}, {what} is another: the learner's tensor must name "
                    "pairs of column and row, heads must divide, and between the two no layer may have weights."
                )

    def _shard(self, part: nn.Module) -> None:
        copies, shares = self._copies
        if copies * shares == 1 or self._after_all:
            part.to(self._group.device)
            return
        mesh = self._axes["data"] if copies == 1 else self._axes["replicas", "data"]
        inside = {id(one) for one in part.modules()}
        tied = state.tied_names(part)
        self._fully_shard([one for one in self._cuts if id(one) in inside and not tied], part, mesh)

    @property
    def _cuts(self) -> list[nn.Module]:
        return blocks_of(self._module, self._blocks)

    # ------------------------------------------------------------ pipeline

    def _cut(self, module: nn.Module, inputs: Any) -> list[tuple[nn.Module, Any]]:
        """This rank's stages, each with what it is given. Rank 0 measures, and decides for all."""
        blocks = self._cuts
        per_rank = SCHEDULES[self._schedule_name][1]
        count = self._mesh.pipeline * per_rank
        if len(blocks) < count:
            raise LearnerFailed(
                f"The learner names {len(blocks)} blocks, and schedule = '{self._schedule_name}' over pipeline = "
                f"{self._mesh.pipeline} has {count} stages, each of a block or more."
            )
        tensors = {id(tensor): name for name, tensor in state.named_tensors(module).items()}
        inside = {id(one) for unit in _units(module, blocks) for one in state.named_tensors(unit).values()}
        if loose := [name for one, name in tensors.items() if one not in inside]:
            raise LearnerFailed(f"{loose[0]} is in no module of the model's chain: a pipeline needs it in one.")
        with self._casting():
            chain, given = chain_of(module, blocks, inputs, self._group.device)
        costs = measured(chain, given, self._group.device) if self._group.rank == 0 else []
        costs = json.loads(self._group.hand_out(json.dumps(costs).encode() if self._group.rank == 0 else None))
        borders = [n for n, unit in enumerate(chain) if any(unit is block for block in blocks)]
        first = [0, *cuts(costs, borders, count), len(chain)]
        idle = [child for child in _units(module, blocks) if not any(child is unit for unit in chain)]
        stages = [chain[one:end] for one, end in pairwise(first)]
        stages[0] = [*stages[0], *idle]
        holds = self._stages_of(self._stage_rank)
        for place, units in enumerate(stages):
            holder = next(r for r in range(self._mesh.pipeline) if place in self._stages_of(r))
            for unit in units:
                self._holders |= {tensors[id(one)]: holder for one in state.named_tensors(unit).values()}
        for place, units in enumerate(stages):
            if place not in holds:
                for unit in units:
                    unit.to("meta")
        found: list[tuple[nn.Module, Any]] = []
        for place in holds:
            begin, end = first[place], first[place + 1]
            ends = _shape_of(given[begin]), _shape_of(given[end])
            stage = _Stage(stages[place], end - begin, place, ends[0], ends[1], self._casting)
            self._stages.append(stage)
            found.append((stage, given[begin]))
        return found

    def _stages_of(self, rank: int) -> list[int]:
        count = self._mesh.pipeline
        if SCHEDULES[self._schedule_name][1] == 1:
            return [rank]
        return [rank, 2 * count - 1 - rank] if self._schedule_name in V_SHAPED else [rank, count + rank]

    def _scheduled(self) -> Any:
        """torch's schedule of this rank's stages, with all shapes given: else torch would send pickles for them."""
        kind, per_rank = SCHEDULES[self._schedule_name]
        count = self._mesh.pipeline * per_rank
        stages = [
            PipelineStage(
                stage,
                stage.place,
                count,
                self._group.device,
                input_args=stage.given if stage.place else torch.zeros(1, dtype=torch.int64),
                output_args=stage.gives if stage.place < count - 1 else torch.zeros(1, requires_grad=True),
                group=self._axes.get_group("pipeline"),
            )
            for stage in self._stages
        ]

        def loss(outputs: Any, place: torch.Tensor) -> torch.Tensor:
            return self._now(outputs, place)

        return kind(stages if per_rank > 1 else stages[0], self._accumulate, loss_fn=loss, scale_grads=False)

    def _differentiate(self, examples: TensorExamples, batch: torch.Tensor, own: torch.Tensor, step: int) -> None:
        if not self._stages:
            super()._differentiate(examples, batch, own, step)
            return
        parts = own.tensor_split(self._accumulate)
        where = f"at step {step + 1}, on a batch of {self._micro}"

        def inputs(place: int) -> Any:
            rest = batch[:1].expand(self._micro - len(parts[place]))
            return self._taken(examples, torch.cat([parts[place], rest]))[0]

        def now(outputs: Any, place: torch.Tensor) -> torch.Tensor:
            part = parts[int(place)]
            some = part if len(part) else batch[:1]
            targets = self._taken(examples, some)[1]
            rows = torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one[: len(some)], outputs)
            loss: torch.Tensor = self._losses(lambda: (rows, targets), len(part), len(batch), where)
            return loss

        self._now = now
        for stage in self._stages:
            stage.fetch, stage.where, stage.error = (inputs if stage.place == 0 else None), where, None
        places = torch.arange(self._accumulate)
        try:
            with self._explained(where):
                self._schedule.step(places, target=places, return_outputs=False)
        except GroupLost:
            for stage in self._stages:
                if stage.error is not None:
                    raise stage.error from None
            raise
        if self._after_all:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        """Over the copies of this rank's stages. A parameter that the loss reached on none of them has no gradient."""
        for kind in {weight.dtype: 0 for weight in self.params}:
            own = [weight for weight in self.params if weight.dtype is kind]
            reached = torch.tensor([float(weight.grad is not None) for weight in own], dtype=kind).to(
                self._group.device
            )
            here = [_here(torch.zeros_like(one) if one.grad is None else one.grad).reshape(-1) for one in own]
            flat = torch.cat([*here, reached])
            with self._group.unbroken():
                dist.all_reduce(flat, group=self._axes.get_group("replicas"))
            parts = flat.div_(self._mesh.parts).split([*(one.numel() for one in here), len(own)])
            for weight, part, of_all in zip(own, parts, parts[-1].tolist(), strict=False):
                if of_all:
                    weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                    _here(weight.grad).copy_(part.view_as(_here(weight.grad)))

    def _casting(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._autocast is None else torch.autocast(self._group.device.type, self._autocast)

    # ------------------------------------------------------------ a step

    @property
    def place(self) -> int:
        """A number that all ranks of *tensor* have in common: layers that are not divided must draw the same."""
        return self._group.rank // self._mesh.tensor

    @property
    def sent(self) -> int:
        if self._mesh.parts == 1:
            return 0
        return self._steps * sum(_here(weight).numel() * weight.element_size() for weight in self.params)

    def whole(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if (holder := self._holders.get(name)) is None:
            return super().whole(name, tensor)
        if holder == self._stage_rank:
            value = super().whole(name, tensor).to(self._group.device).contiguous()
        else:
            value = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._group.device)
        with self._group.unbroken():
            dist.broadcast(value, group=self._axes.get_group("pipeline"), group_src=holder)
        return value.cpu()

    @torch.no_grad()
    def clip(self, max_norm: float, step: int) -> None:
        """By the norm over all stages and parts, each tensor's squares in a place of its own: where the chain is cut
        changes no bit."""
        squares = torch.zeros(len(self._places), dtype=torch.float64, device=self._group.device)
        gradients = [(name, w.grad) for name, w in zip(self._own, self.params, strict=True) if w.grad is not None]
        for name, gradient in gradients:
            here = _here(gradient)
            wide = torch.float64 if here.dtype is torch.float64 else torch.float32
            parts = _parts(gradient)
            copies = self._mesh.parts * self._mesh.tensor / parts
            squares[self._places[name]] = torch.linalg.vector_norm(here, dtype=wide).double() ** 2 / copies
        with self._group.unbroken():
            dist.all_reduce(squares)
        norm = float(squares.sum().sqrt())
        if not squares.sum().isfinite():
            raise Diverged(f"The gradient's norm at step {step} is {norm}: try a smaller learning rate.")
        if norm > max_norm:
            for _, gradient in gradients:
                _here(gradient).mul_(max_norm / norm)

    def _reported(self, size: int, step: int) -> tuple[float, float]:
        """Stages without a loss have nothing to tell but what they miss."""
        reported = self._losses.reported
        if reported.grad is None:
            reported.grad = torch.zeros_like(reported)
        if self._losses.error is None and (missing := self._unused(step)):
            self._losses.error = LearnerFailed(missing)
            reported.grad[3] = 1
        return super()._reported(size, step)

    def _of_all(self, reported: torch.Tensor) -> torch.Tensor:
        if self._group.rank % self._mesh.tensor:
            reported[:2] = 0  # ranks of *tensor* have one loss between them
        return super()._of_all(reported)

    def _own_statistics(self) -> dict[str, torch.Tensor]:
        found = own_buffers(self._module).items()
        return {name: one for name, one in found if one.is_floating_point() and not one.is_meta}

    def _compare_buffers(self) -> None:
        """Once, after the first batch: LearnerFailed, on one rank, where a buffer has moved."""
        if self._steps > 1:
            return
        now = self._own_statistics()
        moved = next((name for name, was in self._before.items() if not torch.equal(now[name], was)), None)
        error = LearnerFailed(
            f"The model's buffer {moved} takes statistics of its batch, of which no process of a mesh sees all: take a "
            "model that does not, or one process."
        )
        self._group.agree(None if moved is None else error)
        self._before = {}


class _Stage(nn.Module):
    """Modules that one process computes after each other; the first ``count`` of ``units``, others are never called."""

    def __init__(
        self,
        units: Sequence[nn.Module],
        count: int,
        place: int,
        given: torch.Tensor | None,
        gives: torch.Tensor | None,
        casting: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self.place, self._count, self._casting = place, count, casting
        self.given, self.gives = given, gives
        self.fetch: Callable[[int], Any] | None = None
        """The inputs of a micro-batch, of which the first stage gets the place alone."""
        self.where = BEFORE
        self.error: LearningError | None = None

    def forward(self, given: Any) -> Any:
        try:
            with explained(self.where), self._casting():
                if self.fetch is not None:
                    given = self.fetch(int(given))
                for unit in list(self.units)[: self._count]:
                    given = unit(given)
        except LearningError as error:
            self.error = error
            raise
        return given


AXES = ("pipeline", "replicas", "data", "tensor")


def axes_of(group: Group, shape: Sequence[int]) -> DeviceMesh:
    """The mesh. Its groups notice a rank that hangs as the whole group does: those that torch makes wait 30 minutes."""
    places = torch.arange(group.world).view(*shape)
    own = []
    for axis, size in enumerate(shape):
        for ranks in places.movedim(axis, -1).reshape(-1, size).tolist():
            made = dist.new_group(ranks, timeout=timedelta(seconds=group.hang_s))
            if group.rank in ranks:
                own.append(made)
    return DeviceMesh.from_group(own, group.device.type, places, mesh_dim_names=AXES)


def styles_of(module: nn.Module, plan: Mapping[str, str], parts: int) -> dict[nn.Module, str]:
    """How each layer is divided over so many ranks, by ``Learner.tensor``."""
    if not plan:
        raise LearnerFailed("mesh.tensor needs the learner's tensor, which says how layers are divided: name them.")
    found: dict[nn.Module, str] = {}
    for pattern, style in plan.items():
        matching = [(name, one) for name, one in module.named_modules() if name and fnmatchcase(name, pattern)]
        if not matching:
            raise LearnerFailed(f"The learner's tensor names {pattern!r}, and no part of the model has such a name.")
        for name, layer in matching:
            if style != "input":
                if not isinstance(layer, nn.Linear):
                    raise LearnerFailed(f"{name} is a {type(layer).__name__}: column and row divide a Linear.")
                what, width = ("outputs", layer.out_features) if style == "column" else ("inputs", layer.in_features)
                if width % parts:
                    raise LearnerFailed(f"{name} has {width} {what}, which do not split over tensor = {parts}.")
            found[layer] = style
    return found


def traced(part: nn.Module, given: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The gradients of what ``part`` gives, in a fixed direction, by name, of divided ones this rank's part; and what
    it gives, in one row."""
    part.zero_grad(set_to_none=True)
    if isinstance(given, torch.Tensor) and given.is_floating_point():
        given = given.detach().clone().requires_grad_()
    leaves = [one for one in tree_leaves(part(given)) if isinstance(one, torch.Tensor) and one.is_floating_point()]
    flat = torch.cat([one.reshape(-1) for one in leaves])
    if flat.requires_grad:
        (flat * torch.arange(1, len(flat) + 1, device=flat.device).to(flat.dtype).cos()).sum().backward()
    found = {name: one.grad for name, one in part.named_parameters() if one.grad is not None}
    if isinstance(given, torch.Tensor) and given.grad is not None:
        found["its input"] = given.grad
    part.zero_grad(set_to_none=True)
    return found, flat.detach()


def _alike(here: torch.Tensor, whole: torch.Tensor, largest: float) -> bool:
    """Whether ``here``, or this rank's part of it, is that of ``whole``, up to rounding."""
    if isinstance(here, DTensor):
        whole = _here(distribute_tensor(whole, here.device_mesh, here.placements, src_data_rank=None))
        here = _here(here)
    if here.shape != whole.shape or not here.numel():
        return here.shape == whole.shape
    allowed = 1e-9 if whole.dtype is torch.float64 else 1e-3 if whole.dtype is torch.float32 else 5e-2
    return float((here - whole).abs().max()) <= allowed * max(float(whole.abs().max()), largest * 1e-2)


def chain_of(
    module: nn.Module, blocks: Sequence[nn.Module], inputs: Any, device: torch.device
) -> tuple[list[nn.Module], list[Any]]:
    """The modules that the forward pass calls one after the other, each with what the one before has given; and what
    the first is given, the second, and so on, at last the outputs. Each module is on ``device``, as ``inputs`` are,
    while it is called, and on the CPU before and after."""
    units = list(_units(module, blocks))
    names = {id(one): name for name, one in module.named_modules()}
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]] = []

    def note(unit: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        calls.append((unit.to("cpu"), arguments, named, output))

    def move(unit: nn.Module, arguments: Any) -> None:
        unit.to(device)

    hooks = [unit.register_forward_pre_hook(move) for unit in units]
    hooks += [unit.register_forward_hook(note, with_kwargs=True) for unit in units]
    try:
        with torch.no_grad():
            outputs = module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    given = [inputs]
    for unit, arguments, named, output in calls:
        if len(arguments) != 1 or named or arguments[0] is not given[-1]:
            raise LearnerFailed(
                f"A pipeline needs a forward pass that is a chain of modules, and {names[id(unit)]} is given something "
                "else than the module before it gave: put what is between into a module."
            )
        given.append(output)
    chain = [unit for unit, *_ in calls]
    if given[-1] is not outputs or len({id(unit) for unit in chain}) < len(chain):
        raise LearnerFailed(
            "A pipeline needs a forward pass that is a chain of modules, each called once, of which the last gives the "
            "outputs: put what is done behind it into a module."
        )
    for unit, tensor in zip(chain[1:], given[1:-1], strict=True):
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise LearnerFailed(f"{names[id(unit)]} is given no tensor of floating-point numbers: it cannot be sent.")
    return chain, [one.clone().requires_grad_() if 0 < n < len(chain) else one for n, one in enumerate(given)]


def _units(module: nn.Module, blocks: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """The blocks, and the largest modules without blocks."""
    wanted = {id(block) for block in blocks}
    for child in module.children():
        if id(child) in wanted or not any(id(one) in wanted for one in child.modules()):
            yield child
        else:
            yield from _units(child, blocks)


def measured(chain: Sequence[nn.Module], given: Sequence[Any], device: torch.device) -> list[float]:
    """Seconds of each module's forward and backward pass on ``device``: the least of three."""
    best = []
    for unit, inputs in zip(chain, given, strict=False):
        unit.to(device)
        best.append(min(_seconds(unit, inputs) for _ in range(3)))
        unit.to("cpu")
    return best


def _seconds(unit: nn.Module, inputs: Any) -> float:
    wait: Callable[[], None] = torch.cuda.synchronize if any(w.is_cuda for w in unit.parameters()) else (lambda: None)
    wait()
    began = time.perf_counter()
    traced(unit, inputs)
    wait()
    return time.perf_counter() - began


def cuts(costs: Sequence[float], borders: Sequence[int], stages: int) -> tuple[int, ...]:
    """Where the second stage begins, the third, and so on, each at one of ``borders`` but the first: so that the stage
    that costs most costs least."""
    begins = [0, *borders[1:], len(costs)]
    total = [0.0, *accumulate(costs)]

    @cache
    def best(first: int, left: int) -> tuple[float, tuple[int, ...]]:
        def cost(until: int) -> float:
            return total[begins[until]] - total[begins[first]]

        if left == 1:
            return cost(len(begins) - 1), ()
        choices = []
        for until in range(first + 1, len(begins) - left + 1):
            worst, rest = best(until, left - 1)
            choices.append((max(worst, cost(until)), (begins[until], *rest)))
        return min(choices)

    return best(0, stages)[1]


def _shape_of(tensor: Any) -> torch.Tensor | None:
    """A tensor like it, without memory; of what is no activation None."""
    activation = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    return torch.empty_like(tensor, device="meta").requires_grad_() if activation else None


def _here(tensor: torch.Tensor) -> torch.Tensor:
    """What of it is on this rank."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _parts(tensor: torch.Tensor) -> int:
    """On how many ranks a part of it is that no other part is."""
    count = 1
    if isinstance(tensor, DTensor):
        for axis, placement in enumerate(tensor.placements):
            count *= 1 if placement.is_replicate() else tensor.device_mesh.size(axis)
    return count
