"""Trains several clients at once: their models are stacked, and one graph makes a step of all.

Where a model is so small that calling operators costs more than their arithmetic, a step of K clients costs little more
than one of a single client. ``Learner.train_stack`` gives the updates of ``Learner.train`` but for the order of
roundings; the bits depend on which clients are stacked, and in which order, and on nothing else.

When a client has made all of its steps, its weights are read; what the stack does to them after that is lost. The
smaller batch at the end of an epoch is filled up with examples whose label is ``IGNORED``, where the loss leaves those
out; else the client makes that step alone.

With a proximal term or clipping the graph gives gradients, and what ``local_sgd`` does to one client's is done to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import nn

from client_sdk.learning.classification import IGNORED
from client_sdk.learning.data import ArrayExamples, cast
from client_sdk.learning.errors import Diverged
from client_sdk.learning.local_sgd import LocalResult, batch_order, diverged, diverged_norm
from client_sdk.learning.measures import OF_LABELS
from client_sdk.learning.traced import Graphs, Names, NotTraced, StackedGraph
from client_sdk.protocol.devices import Task, Work

Kept = TypeVar("Kept")
_MOST_BYTES = 1 << 26
"""Of the batches of a stack that are gathered at once."""


class Stacks:
    """Stacks of one learner's models, and their graphs."""

    def __init__(self, loss: Any, lanes: int) -> None:
        """``lanes``: clients of a stack, at least 2; one with fewer is filled up, so that all have one shape."""
        self.lanes = lanes
        self._loss = loss
        self._graphs: dict[object, StackedGraph | str] = {}
        """By shapes; in place of a graph why there is none."""
        self._alone = Graphs(loss)

    def __getstate__(self) -> dict[str, Any]:
        """Another process traces anew: a graph is code of this one."""
        return {**self.__dict__, "_graphs": {}}

    def trained(
        self,
        module: nn.Module,
        params: Sequence[nn.Parameter],
        clients: Sequence[tuple[str, ArrayExamples]],
        task: Task,
        *,
        round: int,
        floating: torch.dtype,
        ended: Callable[[Mapping[str, torch.Tensor]], Kept],
    ) -> list[tuple[LocalResult | Diverged, Kept]]:
        """Train a copy of ``params`` for each of ``clients``, (device, examples), from the values that they have in
        ``module``, which stays as it is. Returns of each how its training went, and what ``ended`` gives of its
        tensors, by name, which change afterwards. NotTraced where they cannot be stacked."""
        names = Names(module, params)
        lanes = [_Lane(device, examples, task, round) for device, examples in clients]
        kinds = [[one.expand(self.lanes, *one.shape).clone() for one in kind] for kind in names.tensors]
        kept: dict[int, Kept] = {}
        steps = max(lane.planned for lane in lanes)
        width = max(max(lane.sizes) for lane in lanes)
        if width < task.batch_size:  # else each stack of small clients had a shape of its own
            width = min(task.batch_size, 1 << (width - 1).bit_length())
        found, norms = torch.zeros(steps, self.lanes), torch.zeros(steps, self.lanes, dtype=torch.float64)
        fused = not task.mu and task.max_grad_norm is None
        fills = any(self._loss is one for one in OF_LABELS) and not lanes[0].examples.y.is_floating_point()
        for start, x, y in _gathered(lanes, self.lanes, steps, width, floating, fills=fills):
            for number, (inputs, targets) in enumerate(zip(x, y, strict=True), start):
                graph = self._graph(module, names, inputs, targets, fused)
                alone = [] if fills else [at for at, lane in enumerate(lanes) if lane.is_short(number, width)]
                before = [[one[at].clone() for one in [*kinds[0], *kinds[1]]] for at in alone]
                batch = [*kinds[0], *kinds[1], inputs, targets]
                with torch.inference_mode():
                    found[number], norms[number] = _stepped(graph, batch, names.tensors[0], task, fused)
                for at, values in zip(alone, before, strict=True):
                    own = [[one[at] for one in kind] for kind in kinds]
                    for now, then in zip([*own[0], *own[1]], values, strict=True):
                        now.copy_(then)
                    alone_at = self._step(module, names, own, lanes[at], number, task, floating, fused)
                    found[number, at], norms[number, at] = alone_at
                for at in (at for at, lane in enumerate(lanes) if lane.planned == number + 1):
                    tensors = zip((*names.trained, *names.others), (*kinds[0], *kinds[1]), strict=True)
                    kept[at] = ended({name: one[at] for name, one in tensors})
        return [
            (lane.result(found[:, at].tolist(), norms[:, at].tolist(), task), kept[at]) for at, lane in enumerate(lanes)
        ]

    def _graph(self, module: nn.Module, names: Names, x: torch.Tensor, y: torch.Tensor, fused: bool) -> StackedGraph:
        key = (names.trained, x.shape, x.dtype, y.shape, y.dtype, fused)
        if key not in self._graphs:
            try:
                self._graphs[key] = StackedGraph(module, self._loss, names, x, y, fused=fused)
            except NotTraced as error:
                self._graphs[key] = str(error)
        found = self._graphs[key]
        if isinstance(found, str):
            raise NotTraced(found)
        return found

    def _step(
        self,
        module: nn.Module,
        names: Names,
        own: list[list[torch.Tensor]],
        lane: _Lane,
        number: int,
        task: Task,
        floating: torch.dtype,
        fused: bool,
    ) -> Any:
        """The objective, and the norm, of a step that one client makes alone."""
        x, y = cast(lane.examples.take(lane.batches[number]), floating)
        graph = self._alone.of(names, module, names.tensors, x, y, fused)
        if graph is None:
            raise NotTraced(self._alone.reason)
        with torch.inference_mode():
            return _stepped(graph, [*own[0], *own[1], x, y], names.tensors[0], task, fused, alone=True)


def _stepped(
    graph: Any, batch: list[torch.Tensor], received: list[torch.Tensor], task: Task, fused: bool, *, alone: bool = False
) -> tuple[Any, Any]:
    """Makes a step of local SGD (``local_sgd``), with weights at the front of ``batch``, whose first axis is that of
    clients, but for one who is ``alone``. ``received``: the weights before all steps. Returns the objectives, and the
    norms by which gradients were clipped; 0 where the task does not clip."""
    if fused:
        return graph.play(*batch, -task.learning_rate)[0], 0.0
    objectives, _, _, gradients = graph.play(*batch)
    weights = [weight[None] if alone else weight for weight in batch[: len(received)]]
    found = [
        torch.zeros_like(weight) if one is None else one[None] if alone else one
        for weight, one in zip(weights, gradients, strict=True)
    ]
    if task.mu:
        found = [one + task.mu * (w - start) for one, w, start in zip(found, weights, received, strict=True)]
    norms = torch.zeros(len(weights[0]))
    if task.max_grad_norm is not None:
        wide = torch.float64 if any(one.dtype is torch.float64 for one in found) else torch.float32
        each = [torch.linalg.vector_norm(one.reshape(len(one), -1), dim=1, dtype=wide) for one in found]
        norms = torch.linalg.vector_norm(torch.stack(each), dim=0)
        scale = (task.max_grad_norm / norms).clamp(max=1.0)
        found = [(one * scale.view(-1, *[1] * (one.ndim - 1))).to(one.dtype) for one in found]
    for weight, one in zip(weights, found, strict=True):
        weight.add_(one, alpha=-task.learning_rate)
    return objectives, norms[0] if alone else norms


class _Lane:
    """One client of a stack."""

    def __init__(self, device: str, examples: ArrayExamples, task: Task, round: int) -> None:
        self.examples = examples
        self.planned = task.planned_steps(len(examples))
        order = batch_order(
            len(examples), task.batch_size, seed=task.seed, round=round, device=device, drop_last=task.drop_last
        )
        self.batches = list(islice(order, self.planned))
        self.sizes = [len(batch) for batch in self.batches]

    def is_short(self, number: int, width: int) -> bool:
        """Whether it has a batch at this step, and that is smaller than ``width``."""
        return number < self.planned and self.sizes[number] < width

    def result(self, objectives: Sequence[float], norms: Sequence[float], task: Task) -> LocalResult | Diverged:
        total, seen = 0.0, 0
        for number, size in enumerate(self.sizes):
            if not math.isfinite(objectives[number]):
                return diverged(objectives[number], number + 1, task.learning_rate)
            if not math.isfinite(norms[number]):
                return diverged_norm(norms[number], number + 1)
            total += objectives[number] * size
            seen += size
        count = len(self.examples)
        work = Work(steps=self.planned, steps_planned=self.planned, epochs=seen / count, examples_seen=seen)
        return LocalResult(work, {"loss": total / seen})


def _gathered(
    lanes: Sequence[_Lane], wide: int, steps: int, width: int, floating: torch.dtype, *, fills: bool
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(first step, inputs [steps, lanes, width, ...], targets [the same]) of as many steps at a time as fit."""
    x, y = lanes[0].examples.x, lanes[0].examples.y
    if any((one.examples.x.shape[1:], one.examples.y.shape[1:]) != (x.shape[1:], y.shape[1:]) for one in lanes) or any(
        (one.examples.x.dtype, one.examples.y.dtype) != (x.dtype, y.dtype) for one in lanes
    ):
        raise NotTraced("its clients have examples of several shapes or number types")
    bytes_of_one = x[0].nbytes + y[0].nbytes
    nothing = torch.zeros(width, dtype=torch.int64)
    together = max(1, _MOST_BYTES // max(1, bytes_of_one * wide * width))
    x, y = cast((x[:0], y[:0]), floating)  # labels of 8 bits without a sign have no IGNORED
    for start in range(0, steps, together):
        stop = min(start + together, steps)
        inputs = x.new_zeros(stop - start, wide, width, *x.shape[1:])
        targets = y.new_zeros(stop - start, wide, width, *y.shape[1:])
        for at, lane in enumerate(lanes):
            rows = [row for batch in lane.batches[start:stop] for row in (batch, nothing[len(batch) :])]
            if not rows:
                continue
            taken = lane.examples.take(torch.cat(rows))
            made = min(stop, lane.planned) - start
            inputs[:made, at], targets[:made, at] = (one.view(made, width, *one.shape[1:]) for one in taken)
            for number, size in enumerate(lane.sizes[start:stop] if fills else ()):
                if size < width:
                    targets[number, at, size:] = IGNORED
        yield start, inputs, targets
