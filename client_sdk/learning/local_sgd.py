"""Local SGD: trains the received model on one device's examples.

FedAvg's ClientUpdate (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1): starting from the received weights
w_global, for every epoch, for every batch b of a permutation of the device's examples::

    w <- w - lr * grad l(w; b)

FedProx (Li et al. 2020, arXiv:1812.06127, Algorithm 2) minimises h(w) = F(w) + (mu/2) ||w - w_global||^2 instead, to
the precision that the device reaches: hence partial work. With mu = 0 the proximal term is not computed, so the bits
are FedAvg's. With ``max_grad_norm`` the gradient of h, proximal term included, is scaled down to that L2 norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import Parameter

from client_sdk.chance import derive_seed
from client_sdk.isolation import ONE_AT_A_TIME
from client_sdk.learning.budget import TimeLimit
from client_sdk.learning.data import TensorExamples, cast
from client_sdk.learning.errors import Diverged, LearnerFailed, OutOfTime
from client_sdk.learning.evaluation import defined, explained
from client_sdk.learning.measures import Measurement, Pair, detached, number, objective_of, pair_of
from client_sdk.learning.traced import MOST_SHAPES, Graphs
from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Array

# ------------------------------------------------------------ gradients
# Transforms gradients: the proximal term, clipping, and the default optimizer step.
#
# In order of application, for weights w, the weights w_global that the device received, and the gradient g of
# the loss::
#
#     g <- g + offset                     what a strategy corrects it by, such as SCAFFOLD's c - c_i
#     g <- g + mu (w - w_global)          the gradient of (mu/2) ||w - w_global||^2
#     g <- g * min(1, max_norm / ||g||)   over all trained tensors together
#     w <- w - lr g                       ``PlainSGD``, or the learner's own optimizer
#
# The second is FedProx (Li et al. 2020, arXiv:1812.06127, Algorithm 2), the third Pascanu et al. 2013 (arXiv:1211.5063,
# Algorithm 1). The proximal term is part of the objective and so is clipped with it.


class Optimizer(Protocol):
    """The methods that local SGD needs of an optimizer: every ``torch.optim.Optimizer`` has them."""

    def step(self) -> object:
        """Move the parameters by their gradients."""

    def zero_grad(self) -> object:
        """Clear the gradients."""


class OptimizerFactory(Protocol):
    """Makes a fresh optimizer for one device and round: ``torch.optim.Adam``, or a ``functools.partial`` of one."""

    def __call__(self, params: list[Parameter], /, *, lr: float) -> Optimizer:
        """``params``: the trained parameters. ``lr``: the task's learning rate."""


class PlainSGD:
    """w <- w - lr g, in place: the local step of FedAvg (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1,
    ClientUpdate).

    Gives the same bits as ``torch.optim.SGD`` without momentum and weight decay, at less cost per step.
    """

    def __init__(self, params: Iterable[Parameter], *, lr: float) -> None:
        self._params = list(params)
        self._lr = lr

    def step(self) -> None:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)  # as a function: a context manager costs as much as the step of a layer
        try:
            for weight in self._params:
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-self._lr)
        finally:
            torch.set_grad_enabled(before)

    def zero_grad(self) -> None:
        for weight in self._params:
            weight.grad = None


@torch.no_grad()
def add_proximal(params: Sequence[Parameter], received: Sequence[torch.Tensor], mu: float) -> None:
    """Add mu (w - w_global) to each gradient. ``received``: w_global, shapes as ``params``.

    A parameter that the loss did not reach in this step gets the term too: it may have moved in an earlier step.
    """
    for weight, start in zip(params, received, strict=True):
        gradient = dense_gradient(weight)
        if gradient is None:
            weight.grad = (weight - start).mul_(mu)
        else:
            gradient.add_(weight - start, alpha=mu)


@torch.no_grad()
def add_offset(params: Sequence[Parameter], offset: Sequence[torch.Tensor | None]) -> None:
    """Add to each gradient what a strategy corrects it by, also where the loss did not reach the parameter."""
    for weight, one in zip(params, offset, strict=True):
        if one is not None:
            gradient = dense_gradient(weight)
            weight.grad = one.clone() if gradient is None else gradient.add_(one)


@torch.no_grad()
def clip(params: Sequence[Parameter], max_norm: float, step: int) -> None:
    """Scale all gradients by one factor so that their joint L2 norm is at most ``max_norm``. The norm is taken in
    float32, or in float64 where a gradient is.

    Raises Diverged, naming ``step``, where the norm is not finite.
    """
    gradients = [gradient for gradient in map(dense_gradient, params) if gradient is not None]
    if not gradients:
        return
    wide = torch.float64 if any(gradient.dtype is torch.float64 for gradient in gradients) else torch.float32
    norms = [torch.linalg.vector_norm(gradient, dtype=wide) for gradient in gradients]
    norm = float(torch.linalg.vector_norm(torch.stack(norms)))
    if not math.isfinite(norm):
        raise diverged_norm(norm, step)
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)


def dense_gradient(weight: Parameter) -> torch.Tensor | None:
    """The gradient, made dense where an embedding gave a sparse one."""
    if weight.grad is not None and weight.grad.is_sparse:
        weight.grad = weight.grad.to_dense()
    return weight.grad


# ------------------------------------------------------------ seeding
# Random numbers on a device: the seeds of shuffles and dropout, and the restoring of torch's global generator.
#
# The *order of examples* is drawn from a private generator seeded by SHA-256 of (seed, round, device), so it depends on
# nothing else, such as the order in which devices train. The *random numbers of layers* (initial weights, dropout) come
# from torch's global generator, of which a process has one: ``private_chance`` seeds it and restores its old state.
# Therefore one lock serialises everything in this package that may draw: two threads of one process train one after
# another. Devices that train at the same time need separate processes.
#
# Python's ``random``, numpy's generator and torch's on GPUs are seeded by who calls a learner, in processes of this
# package's own (``client_sdk.isolation``).


def batch_order(
    examples: int,
    batch_size: int,
    *,
    seed: int,
    round: int,
    device: str,
    drop_last: bool = False,
) -> Iterator[torch.Tensor]:
    """The indices of every step's batch, without end: epoch after epoch, each a fresh permutation of
    ``range(examples)``.

    Yields int64 tensors of shape [batch_size]; the last batch of an epoch holds the rest (shape [examples %
    batch_size]), unless ``drop_last`` leaves it out. Fewer examples than a batch are one batch in any case. The same
    (seed, round, device) gives the same batches, on every machine with the same torch.
    """
    generator = torch.Generator().manual_seed(derive_seed("shuffle", seed, round, device))
    while True:
        batches = torch.randperm(examples, generator=generator).split(batch_size)
        yield from batches[:-1] if drop_last and len(batches) > 1 and len(batches[-1]) < batch_size else batches


@contextmanager
def private_chance(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator with ``seed``, and restore its state on exit. No other thread of this package
    draws meanwhile."""
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield


# ------------------------------------------------------------ local sgd


@dataclass(frozen=True)
class LocalResult:
    """The result of training, besides the weights in the module."""

    work: Work
    metrics: dict[str, float]
    """``loss``, the mean over the batches, and any requested metrics of all examples seen, each batch at the weights of
    its step. Without the proximal term. Metrics that are undefined (NaN) on these examples are left out."""


def local_sgd(
    module: nn.Module,
    params: list[nn.Parameter],
    examples: TensorExamples,
    loss: Callable[[Any, Any], Any],
    optimizer: OptimizerFactory,
    task: Task,
    *,
    round: int,
    device: str,
    limit: TimeLimit,
    metrics: Mapping[str, Any],
    floating: torch.dtype,
    offset: Sequence[Array | None] = (),
    graphs: Graphs | None = None,
) -> LocalResult:
    """Train ``params`` of ``module`` in place, for the task's epochs or steps, or as long as ``limit`` allows.
    ``offset``: what is added to the gradient of each, None: nothing. ``graphs``: by which steps are made where they can
    be; None: autograd makes them.

    Raises OutOfTime when not one step fits, Diverged (with step and loss) for a loss that is not finite,
    LearnerFailed when the learner's own code fails. Only the model's layers draw from torch's global
    generator.
    """
    count, planned = len(examples), task.planned_steps(len(examples))
    batches = batch_order(count, task.batch_size, seed=task.seed, round=round, device=device, drop_last=task.drop_last)
    received = [weight.detach().clone() for weight in params] if task.mu else []
    added = [None if one is None else torch.tensor(one, dtype=params[at].dtype) for at, one in enumerate(offset)]
    with explained("while it made the optimizer"):
        stepper = optimizer(params, lr=task.learning_rate)
    measures = Measurement(metrics, loss)
    losses = weights = 0.0
    steps = seen = 0
    module.train()
    changed = bool(added or task.mu or task.max_grad_norm is not None)
    traced = None
    if graphs is not None and not metrics:
        traced = graphs.bound(module, params, fused=optimizer is PlainSGD and not changed)
    with torch.enable_grad():
        while steps < planned and limit.allows(steps):
            indices = next(batches)
            size = len(indices)
            with explained(f"at step {steps + 1}, on a batch of {size}{_advice(size, count, task)}") as here:
                inputs, targets = cast(examples.take(indices), floating)
                here.inputs = inputs
                played = None
                if traced is not None and (size == task.batch_size or task.batch_size <= MOST_SHAPES):
                    played = traced.step(inputs, targets, task.learning_rate)
                if played is not None:
                    total, weight = _of_graph(played, size, steps + 1, task.learning_rate)
                else:
                    outputs = here.outputs, here.targets = module(inputs), targets
                    objective, total, weight = _objective(loss(*outputs), size, steps + 1, task.learning_rate)
                    stepper.zero_grad()
                    objective.backward()
                if added:
                    add_offset(params, added)
                if task.mu:
                    add_proximal(params, received, task.mu)
                if task.max_grad_norm is not None:
                    clip(params, task.max_grad_norm, steps + 1)
                if played is None or traced is None or not traced.fused:
                    stepper.step()
                losses, weights = losses + total, weights + weight
                if metrics:
                    measures.update(detached(outputs[0]), targets, size)
            steps += 1
            seen += size
    stepper.zero_grad()
    if not steps:
        raise OutOfTime("The time ran out before one step of training could be done.")
    work = Work(steps=steps, steps_planned=planned, epochs=seen / count, examples_seen=seen, complete=steps == planned)
    mean = losses / weights if weights else 0.0
    if not math.isfinite(mean):
        raise Diverged(f"The mean loss over {steps} steps of training is {mean}.")
    with torch.no_grad(), explained("on all examples that it has trained on"):
        found = {name: one.value for name, one in measures.results().items()}
    return LocalResult(work, defined({"loss": mean, **found}))


def _advice(size: int, count: int, task: Task) -> str:
    """What to try where a batch is one example, too few for layers such as BatchNorm: it is all that the device has, or
    the rest of an epoch."""
    if size > 1 or task.batch_size == 1:
        return ""
    if count == 1:
        return " (cohort.min_examples = 2 selects no device with a single example)"
    return " (task.drop_last = true leaves out an epoch's smaller last batch)"


def _of_graph(found: tuple[Any, Any, Any], size: int, step: int, learning_rate: float) -> Pair:
    """(sum, weight) of the loss, after the checks of ``_objective``."""
    objective, total, weight = found
    _require_finite(value := number("loss", objective), step, learning_rate)
    if weight is None:
        return value * size, float(size)
    return number("loss", total), pair_of("loss", (total, weight))[1]


def _require_finite(value: float, step: int, learning_rate: float) -> None:
    if not math.isfinite(value):
        raise diverged(value, step, learning_rate)


def diverged_norm(norm: float, step: int) -> Diverged:
    """The error for gradients without a finite norm, where they are to be clipped."""
    return Diverged(f"The gradient's norm at step {step} is {norm}: try a smaller learning rate.")


def diverged(value: float, step: int, learning_rate: float) -> Diverged:
    """What is raised where the loss at a step is not finite. Nothing has been learned before step 1."""
    why = f"try a smaller learning rate than {learning_rate:g}, or max_grad_norm"
    if step == 1:
        why = "the data, or the model that was received, hold values that are not finite or too large"
    return Diverged(f"The loss at step {step} is {value}: {why}.")


def _objective(found: Any, size: int, step: int, learning_rate: float) -> tuple[torch.Tensor, float, float]:
    """The result of ``objective_of``, after a check that the loss is finite and has gradients."""
    objective, total, weight = objective_of(found, size)
    if not isinstance(objective, torch.Tensor):
        raise LearnerFailed(
            f"The loss gave a {type(objective).__name__}: it must give a tensor with one element, the batch's mean, or "
            "a pair (sum, weight)."
        )
    _require_finite(number("loss", objective), step, learning_rate)
    if not objective.requires_grad:
        raise LearnerFailed("The loss does not depend on any trained tensor: nothing can be learned.")
    return objective, total, weight
