"""Learner: a model, its loss, optimizer and metrics, written once; devices, simulation and datacenter run it.

It provides the three results that callers need: an initial checkpoint, an update, a score.
"""

from __future__ import annotations

import inspect
import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import nn

from client_sdk.chance import derive_seed
from client_sdk.data import held_out_part, training_part
from client_sdk.isolation import only_reads
from client_sdk.learning import state, states
from client_sdk.learning.budget import Clock, Deadline, TimeLimit
from client_sdk.learning.data import ArrayExamples, as_examples
from client_sdk.learning.errors import Diverged, LearnerFailed, LearningError, NoExamples
from client_sdk.learning.evaluation import explained, score
from client_sdk.learning.local_sgd import LocalResult, OptimizerFactory, PlainSGD, local_sgd, private_chance
from client_sdk.learning.measures import number
from client_sdk.learning.stacked import Stacks
from client_sdk.learning.traced import NotTraced
from client_sdk.metrics import UNDEFINED
from client_sdk.protocol.devices import MOST_STATE, Score, Task
from client_sdk.protocol.names import METRIC_PATTERN
from client_sdk.tensors import Roles, Tensors, widen
from client_sdk.update import Update

# ------------------------------------------------------------ blueprint
# Copies the structure of a module without its values: drawing first weights that a checkpoint overwrites at once would
# cost a sixth of a small model's training.
#
# Only modules that consist of tensors and plain settings are copied: no hooks, only attributes such as numbers and
# strings, no closures that might refer to the original module. All others have no blueprint and are built anew each
# time. A blueprint allocates no memory for the tensors that a checkpoint fills.


_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type(None))

Fresh = Callable[[torch.Tensor], torch.Tensor]
"""Allocates uninitialised memory like that of a tensor."""


def blueprint(module: nn.Module) -> nn.Module | None:
    """The structure of ``module``, for ``blank``; None where a copy might not behave as a new module does."""
    seen: set[int] = set()
    storages: set[int] = set()
    if not all(_is_plain(part) for part in module.modules()):
        return None
    for tensor in [*module.parameters(), *module.buffers()]:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not _is_own(tensor, storages):
            return None
    return _copied(module, {}, partial(_like, device="meta"))


def blank(build: nn.Module) -> nn.Module:
    """A module of this structure, on the CPU: the caller must fill parameters and persistent buffers."""
    return _copied(build, {}, partial(_like, device="cpu"))


def _like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _copied(module: nn.Module, memo: dict[int, Any], fresh: Fresh) -> nn.Module:
    """A copy in which shared parts of ``module`` are shared too. ``memo``: the parts copied so far, by id."""
    if id(module) in memo:
        known: nn.Module = memo[id(module)]
        return known
    copy = memo[id(module)] = object.__new__(type(module))
    passing: set[str] = module.__dict__["_non_persistent_buffers_set"]
    for name, value in module.__dict__.items():
        if name == "_parameters":
            value = {key: _parameter(own, memo, fresh) for key, own in value.items()}
        elif name == "_buffers":
            value = {key: _buffer(own, memo, torch.clone if key in passing else fresh) for key, own in value.items()}
        elif name == "_modules":
            value = {key: None if part is None else _copied(part, memo, fresh) for key, part in value.items()}
        elif name == "_non_persistent_buffers_set":
            value = set(value)
        elif isinstance(value, dict):
            value = type(value)()
        copy.__dict__[name] = value
    return copy


def _parameter(own: nn.Parameter | None, memo: dict[int, Any], fresh: Fresh) -> nn.Parameter | None:
    if own is not None and id(own) not in memo:
        memo[id(own)] = nn.Parameter(fresh(own.detach()), own.requires_grad)
    return None if own is None else memo[id(own)]


def _buffer(own: torch.Tensor | None, memo: dict[int, Any], fresh: Fresh) -> torch.Tensor | None:
    if own is not None and id(own) not in memo:
        memo[id(own)] = fresh(own)
    return None if own is None else memo[id(own)]


def _is_plain(module: nn.Module) -> bool:
    """Whether the module holds only tensors, modules and immutable settings."""
    if any(vars(kind).get("__slots__") for kind in type(module).__mro__):
        return False
    for name, value in module.__dict__.items():
        if name in ("_parameters", "_buffers", "_modules"):
            if type(value) is not dict:
                return False
        elif name != "_non_persistent_buffers_set" and not _is_setting(value):
            return False
    return True


def _is_setting(value: Any) -> bool:
    if isinstance(value, dict):
        return not value  # only empty dictionaries, as those of hooks
    if type(value) is tuple:
        return all(map(_is_setting, value))
    return type(value) in _PLAIN


def _is_own(tensor: torch.Tensor, storages: set[int]) -> bool:
    """Whether the tensor is an ordinary one that shares no memory with an earlier one."""
    if type(tensor) not in (nn.Parameter, torch.Tensor) or tensor.__dict__ or tensor.grad is not None:
        return False
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.is_leaf:
        return False
    storage = tensor.untyped_storage().data_ptr()
    if storage in storages and tensor.numel():
        return False
    storages.add(storage)
    return True


# ------------------------------------------------------------ a module that is used again


class Filled:
    """A module, and whether it may be filled with another checkpoint: a copy of a blueprint that training has left as
    it was, but for the values of its tensors, is as good as a new one, and costs nothing to make."""

    def __init__(self, module: nn.Module, *, copied: bool) -> None:
        """``copied``: whether it is a copy of a blueprint."""
        self.module = module
        self.tensors = state.ModuleTensors(module)
        self._again = copied and self.tensors.manifest.nbytes <= _AGAIN_BYTES
        if self._again:
            parts = [part.__dict__ for part in module.modules()]
            self._again = not any(part["_non_persistent_buffers_set"] for part in parts)
            self._parts = [(part, dict(part), [dict(part[key]) for key in _OF_TENSORS]) for part in parts]
            own = self.tensors.own.values()
            self._places = [(one, one.data_ptr(), one.requires_grad) for one in own]

    def again(self) -> bool:
        """Whether it may be: everything but values and the mode (``training``) is what it was. Gradients are off then
        where they were off in the beginning."""
        if not self._again:
            return False
        for now, then, tensors in self._parts:
            if now.keys() != then.keys() or not all(map(_are_same, map(now.__getitem__, _OF_TENSORS), tensors)):
                return False
            for key, value in then.items():
                if now[key] is not value and key != "training":
                    return False
                if isinstance(value, dict) and value and key not in _OF_TENSORS:
                    return False  # such as a hook
        for tensor, place, trained in self._places:
            hooked = tensor._backward_hooks or tensor._post_accumulate_grad_hooks
            if tensor.data_ptr() != place or tensor.__dict__ or hooked or not tensor.is_leaf:
                return False
            tensor.grad = None
            tensor.requires_grad_(trained)
        return True


def _are_same(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether both have the same objects under the same names: tensors are not compared by their values."""
    return [*now] == [*then] and all(map(is_, now.values(), then.values()))


_OF_TENSORS = ("_parameters", "_buffers", "_modules")
_AGAIN_BYTES = 1 << 26
"""A larger model takes long to train, and its memory is given back after each training."""


# ------------------------------------------------------------ learner


_SCORING_BATCH = 512
_SPARE = "_spare"
"""The attribute of a learner that stores a module that may be filled again, where no call uses it."""
_BUILD = "_build"
"""The attribute of a learner that stores the blueprint of its model, or None where there is none."""
_ROLES = "_roles"
"""The attribute that stores the roles of its tensors."""
_UNADDABLE = "_unaddable_metric"
"""The attribute that stores why its metrics do not add up."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """A learner, as a model's author defines it::

        learner = Learner(
            model=lambda: nn.Linear(784, 10),
            loss=nn.functional.cross_entropy,
            metrics={"accuracy": accuracy},
        )

    Raises ValueError or TypeError for a definition that cannot work.
    """

    model: Callable[[], nn.Module]
    """Makes the model, on the CPU, with fresh weights. No state carries over from one device or round to the next: this
    is called for each, or, where ``blueprint`` can copy the module's structure, once."""
    loss: Callable[[Any, Any], Any]
    """(outputs, targets) of a batch -> their mean loss, a tensor with one element, or a pair (sum, weight), whose batch
    mean is sum / weight: that of a loss with class weights or masked positions adds up over batches and devices."""
    optimizer: OptimizerFactory = PlainSGD
    """Called as ``optimizer(trained_parameters, lr=task.learning_rate)`` for every device and round; its state is
    discarded."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Name -> function of (outputs, targets) that gives a number or a pair (sum, weight), or an object with ``update``
    and ``compute``, such as torchmetrics': see ``measures``. The loss is always scored, as ``loss``."""
    averaged: tuple[str, ...] = ("*",)
    """Names and shell patterns of the tensors that are trained and sent, and behind a ``!`` what is left out, as in
    ``Task.averaged``. Parameters that are not chosen are frozen; the plan's ``averaged`` may choose fewer, never more.
    Tied weights go by their first name."""
    statistics: tuple[str, ...] = ()
    """Names and shell patterns of parameters that are statistics all the same, such as a moving average of the weights
    that the loss does not train. Floating-point buffers are statistics in any case."""
    blocks: tuple[str, ...] = ()
    """Names and shell patterns of the modules, such as ``layers.*``, that a datacenter may treat one by one: gather
    (``datacenter.shard``), compute again (``datacenter.recompute``), or put on several processes
    (``datacenter.mesh.pipeline``). Every forward pass goes through each of them."""
    tensor: Mapping[str, str] = field(default_factory=dict)
    """How ``datacenter.mesh.tensor`` divides layers, such as ``{"blocks.*.up": "column", "blocks.*.down": "row"}``:
    names and shell patterns of modules, each *column* (a process has a part of the outputs), *row* (a part of the
    inputs, which a column gives) or *input* (a module whose input several columns read: its gradient is added up
    once)."""
    version: str = "0"
    """Devices report it at check-in; a plan may require one."""
    deterministic: bool = True
    """False: updates depend on more than their inputs, and simulations do not check this."""
    training_metrics: bool = False
    """Whether ``metrics`` are computed on training batches too, not only the loss."""

    def __post_init__(self) -> None:
        for name in ("model", "loss", "optimizer"):
            if not callable(getattr(self, name)):
                raise TypeError(f"A learner's {name} must be callable, not a {type(getattr(self, name)).__name__}.")
        if isinstance(self.model, nn.Module):
            raise TypeError("A learner's model makes modules: pass a function or class that returns one, not a module.")
        if not callable(getattr(self.metrics, "items", None)):
            raise TypeError(f"A learner's metrics are a mapping name -> metric, not a {type(self.metrics).__name__}.")
        object.__setattr__(self, "metrics", dict(self.metrics.items()))
        if len(self.metrics) > 63:
            raise ValueError(f"A learner has at most 63 metrics beside the loss, not {len(self.metrics)}.")
        for name, metric in self.metrics.items():
            if name == "loss" or not re.fullmatch(METRIC_PATTERN, name) or name.endswith(UNDEFINED):
                raise ValueError(
                    f"A metric cannot be called {name!r}: letters, digits and _./- after a letter, not 'loss', and not "
                    f"'{UNDEFINED}' at the end."
                )
            if inspect.isclass(metric) and states.has_state(metric):
                raise TypeError(
                    f"The metric {name!r} is the class {metric.__name__}: give an object, as its call makes."
                )
            if states.has_state(metric) and hasattr(metric, "items"):
                raise TypeError(
                    f"The metric {name!r} is a {type(metric).__name__} of several: give it as the learner's metrics, "
                    "or each of its metrics under a name of its own."
                )
            if not callable(metric) and not states.has_state(metric):
                raise TypeError(
                    f"The metric {name!r} must be a function of outputs and targets, or an object with update and "
                    f"compute, not a {type(metric).__name__}."
                )
        if (
            isinstance(self.averaged, str)
            or not self.averaged
            or not all(isinstance(p, str) and p.removeprefix("!").strip() for p in self.averaged)
        ):
            raise ValueError("A learner's averaged must list patterns of names, for example ['*'] or ['head.*'].")
        object.__setattr__(self, "averaged", tuple(self.averaged))
        if not set(self.tensor.values()) <= {"column", "row", "input"}:
            raise ValueError("A learner's tensor maps patterns of names to 'column', 'row' or 'input'.")
        object.__setattr__(self, "tensor", dict(self.tensor.items()))
        if isinstance(self.statistics, str):
            raise ValueError("A learner's statistics list patterns of names, for example ['ema.*'].")
        object.__setattr__(self, "statistics", tuple(self.statistics))

    def __getstate__(self) -> dict[str, Any]:
        """A copy, and another process, has modules of its own."""
        return {name: value for name, value in self.__dict__.items() if name != _SPARE}

    def initial(self, seed: int) -> Tensors:
        """A first checkpoint: the model's tensors with the weights that ``seed`` gives. torch's global generator is
        unchanged."""
        with private_chance(derive_seed("initial", seed, 0, "")):
            return state.read(self._made())

    def roles(self) -> Roles:
        """Which tensors of the model are statistics (``client_sdk.tensors.manifest``); the others are parameters."""
        if _ROLES not in self.__dict__:
            with private_chance(0):
                object.__setattr__(self, _ROLES, state.statistics(self._empty(), self.statistics))
        found: Roles = self.__dict__[_ROLES]
        return found

    def load(self, model: Tensors) -> nn.Module:
        """The model filled with a checkpoint, of arrays or of torch tensors, as those of ``state_dict()``. Raises
        CheckpointMismatch, naming what differs."""
        with private_chance(0):
            return self._filled(state.arrays(model), new=True).module

    def tensors(self, module: nn.Module) -> Tensors:
        """A module's tensors as a checkpoint holds them: the inverse of ``load``."""
        return state.read(module)

    def tied(self) -> dict[str, str]:
        """Of the model's tied weights, which ``state_dict()`` has under several names: further name -> first name. A
        checkpoint has the first one."""
        with private_chance(0):
            return state.tied_names(self._empty())

    @only_reads
    def train(
        self,
        model: Tensors,
        data: Any,
        task: Task,
        *,
        device: str = "",
        round: int = 0,
        deadline: Deadline | None = None,
        held_out: Any = None,
        clock: Clock = time.monotonic,
        loop: Callable[..., LocalResult] = local_sgd,
        offset: Tensors | None = None,
    ) -> Update:
        """Train the received ``model`` on a device's ``data`` as ``task`` says, and return the update.

        ``device`` and ``round`` seed the shuffles together with ``task.seed``. ``deadline()`` gives the seconds left;
        the task's own time budget counts from the first step, by ``clock``. ``held_out`` (or the data's own part
        ``.test``) is what the received model is scored on when the task asks for it and there are examples. The
        update's delta is w - w_global in float32, for the tensors that the plan averages; its examples are all those
        of ``data``, its work says how many were used. ``loop`` is called as ``local_sgd`` is: a group of processes
        supplies another. ``offset``: what is added to each gradient before it is clipped, by the names of parameters,
        for a strategy such as SCAFFOLD (``client_sdk.device.strategies``).

        Raises the errors of ``client_sdk.learning.errors``; OutOfTime when not one step fits.
        """
        examples = as_examples(training_part(data), "training data")
        model = state.arrays(model)
        if task.score_held_out and (reason := self.unaddable()):
            raise LearnerFailed(reason)
        scored = held_out if held_out is not None else held_out_part(data)
        with private_chance(0):
            filled = self._filled(model)
            module, own, manifest = filled.module, filled.tensors.own, filled.tensors.manifest
            sent = state.sent_names(manifest, task.averaged, self.averaged)
            params = freeze(own, sent)
            floating = floating_of(module)
            torch.random.default_generator.manual_seed(derive_seed("layers", task.seed, round, device))
            before = None
            if task.score_held_out and scored is not None:
                with suppress(NoExamples):
                    before = self._score(module, scored, _SCORING_BATCH)
                    require_states(self, before)
                torch.random.default_generator.manual_seed(derive_seed("layers", task.seed, round, device))
            trained = loop(
                module,
                params,
                examples,
                self.loss,
                self.optimizer,
                task,
                round=round,
                device=device,
                limit=TimeLimit(clock, task.time_budget_s, deadline),
                metrics=self.metrics if self.training_metrics else {},
                floating=floating,
                **({} if offset is None else {"offset": [offset.get(name) for name in _names(own, params)]}),
            )
            again = filled.again()
            delta = _differences(filled.tensors.views if again else state.views(module), model, sorted(sent))
            if again:
                object.__setattr__(self, _SPARE, filled)
        work, means = trained.work, trained.metrics
        return Update(delta, len(examples), work=work, metrics=means, held_out=before, model=manifest, copy=False)

    def train_stack(
        self, model: Tensors, clients: Sequence[tuple[str, Any]], task: Task, *, round: int, stacks: Stacks
    ) -> list[Update | LearningError]:
        """What ``train`` gives each of ``clients``, (device, data), or the error that it raises; all are trained
        together (``stacks``). NotTraced where these clients, or this task, cannot be."""
        if reason := self.unstackable(task):
            raise NotTraced(reason)
        found: dict[str, Update | LearningError] = {}
        given: dict[str, ArrayExamples] = {}
        for device, data in clients:
            try:
                examples = as_examples(training_part(data), "training data")
            except LearningError as error:
                found[device] = error
                continue
            if not isinstance(examples, ArrayExamples):
                raise NotTraced("its examples are not two arrays")
            given[device] = examples
        if given:
            found |= self._stack(state.arrays(model), given, task, round, stacks)
        return [found[device] for device, _ in clients]

    def _stack(
        self, model: Tensors, clients: Mapping[str, ArrayExamples], task: Task, round: int, stacks: Stacks
    ) -> dict[str, Update | LearningError]:
        with private_chance(0):
            filled = self._filled(model)
            own, manifest = filled.tensors.own, filled.tensors.manifest
            sent = sorted(state.sent_names(manifest, task.averaged, self.averaged))
            params = freeze(own, sent)
            module = filled.module
            module.train()

            def delta_of(tensors: Mapping[str, torch.Tensor]) -> Tensors | Diverged:
                try:
                    return _differences({name: state.host(name, one) for name, one in tensors.items()}, model, sent)
                except Diverged as error:
                    return error

            trained = stacks.trained(
                module,
                params,
                list(clients.items()),
                task,
                round=round,
                floating=floating_of(module),
                ended=delta_of,
            )
            if filled.again():
                object.__setattr__(self, _SPARE, filled)
        found: dict[str, Update | LearningError] = {}
        for (device, examples), (result, delta) in zip(clients.items(), trained, strict=True):
            if isinstance(result, LearningError):
                found[device] = result
            elif isinstance(delta, LearningError):
                found[device] = delta
            else:
                work, means = result.work, result.metrics
                found[device] = Update(delta, len(examples), work=work, metrics=means, model=manifest, copy=False)
        return found

    def unstackable(self, task: Task) -> str:
        """Why clients cannot be trained together by this task, as a part of a sentence; empty where they can."""
        return next(
            (
                reason
                for refused, reason in (
                    (self.optimizer is not PlainSGD, "its optimizer is not plain SGD"),
                    (task.score_held_out, "clients score the model that they receive"),
                    (bool(self.metrics) and self.training_metrics, "metrics are computed while it trains"),
                )
                if refused
            ),
            "",
        )

    @only_reads
    def evaluate(self, model: Tensors, data: Any, *, batch: int = _SCORING_BATCH, device: str = "") -> Score:
        """Score a checkpoint: ``loss`` and all metrics of the examples of ``data`` together (its part ``.test`` where
        it has parts).

        ``batch``: examples at a time; affects memory, and the result only by rounding. ``device``: whose data it is,
        empty for nobody's; for learners that score each client in its own way, which this one does not.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1 example, not {batch}")
        part = held_out_part(data)
        with private_chance(0):
            filled = self._filled(state.arrays(model))
            torch.random.default_generator.manual_seed(0)
            found = self._score(filled.module, part if part is not None else data, batch)
            if filled.again():
                object.__setattr__(self, _SPARE, filled)
        return found

    @property
    def stateful(self) -> tuple[str, ...]:
        """The metrics that are objects with a state: over devices these are added, rather than values averaged."""
        return tuple(name for name, metric in self.metrics.items() if states.has_state(metric))

    def untrainable(self, planned: Sequence[str]) -> str:
        """Why a plan whose ``averaged`` is ``planned`` cannot be trained, as a sentence; empty where it can."""
        with private_chance(0):
            tensors = state.ModuleTensors(self._empty())
        try:
            freeze(tensors.own, state.sent_names(tensors.manifest, planned, self.averaged))
        except LearningError as error:
            return str(error)
        return ""

    def unaddable(self) -> str:
        """Why this learner's metrics cannot be scored on devices, as far as their definitions show and an update with a
        drawn batch, as a sentence; empty where they can."""
        if _UNADDABLE not in self.__dict__:
            object.__setattr__(self, _UNADDABLE, self._unaddable())
        found: str = self.__dict__[_UNADDABLE]
        return found

    def _unaddable(self) -> str:
        for name in self.stateful:
            if reason := states.unaddable(self.metrics[name]):
                return f"The metric {name} cannot be added up over devices: {reason}."
        size = sum(states.size_of(name, self.metrics[name]) for name in self.stateful)
        if size > MOST_STATE:
            return (
                f"The states of {', '.join(self.stateful)} have {size} numbers, and a device sends {MOST_STATE} at "
                "most: give them fewer bins."
            )
        if self.stateful:
            with private_chance(0):
                last = [*self._empty().parameters()][-1:]
                width = next((len(tensor) for tensor in last if tensor.ndim), 1)
                for name in self.stateful:
                    if not states.adds_up(name, self.metrics[name], width):
                        return does_not_add_up(name)
        return ""

    def computed(self, name: str, state: Sequence[float]) -> float:
        """The value of a metric with this state, such as the sum of many devices'; NaN where it is undefined."""
        with torch.no_grad(), explained(f"at the sum of states of {name}"):
            return number(name, states.computed(name, self.metrics[name], state))

    def _score(self, module: nn.Module, data: Any, batch: int) -> Score:
        examples = as_examples(data, "held-out data")
        return score(
            module,
            examples,
            {"loss": self.loss, **self.metrics},
            batch=batch,
            floating=floating_of(module),
            what="held-out data",
        )

    def _filled(self, model: Tensors, *, new: bool = False) -> Filled:
        """A module with these tensors. ``new``: it has not been used before."""
        filled: Filled | None = None if new else self.__dict__.pop(_SPARE, None)
        if filled is None:
            module = self._empty()
            filled = Filled(module, copied=self.__dict__[_BUILD] is not None)
        filled.tensors.fill(model)
        return filled

    def _empty(self) -> nn.Module:
        """A new module, whose tensors a checkpoint will fill."""
        build: nn.Module | None = self.__dict__.get(_BUILD)
        if build is not None:
            return blank(build)
        module = self._made()
        if _BUILD not in self.__dict__:
            object.__setattr__(self, _BUILD, blueprint(module))
        return module

    def _made(self) -> nn.Module:
        with explained("while it made the model"):
            module = self.model()
        if not isinstance(module, nn.Module):
            raise LearnerFailed(f"The learner's model gave a {type(module).__name__}, not a torch module.")
        return module


def require_states(learner: Learner, score: Score) -> None:
    """Raise LearnerFailed where a metric has a state, and this score does not have it."""
    for name in learner.stateful:
        if name not in score.states:
            raise LearnerFailed(does_not_add_up(name))


def does_not_add_up(name: str) -> str:
    """What is said of a metric whose state cannot leave its device."""
    return (
        f"The metric {name} cannot be added up over devices: its state must be numbers of a fixed size, which its "
        "merge(other) adds; one that grows with the data becomes counts in bins of a fixed number."
    )


def freeze(tensors: Mapping[str, torch.Tensor], trained: Collection[str]) -> list[nn.Parameter]:
    """Disable the gradients of all parameters among ``tensors`` except ``trained``, and return those that have
    gradients."""
    params = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, nn.Parameter):
            continue
        if name not in trained:
            tensor.requires_grad_(False)
        if tensor.requires_grad:
            params.append(tensor)
    if not params:
        raise LearnerFailed("The plan averages no parameter that can be trained: nothing can be learned.")
    return params


def _names(own: Mapping[str, torch.Tensor], params: Sequence[nn.Parameter]) -> list[str]:
    """The names of ``params``, which are among the module's ``own`` tensors."""
    found = {id(tensor): name for name, tensor in own.items()}
    return [found[id(one)] for one in params]


def floating_of(module: nn.Module) -> torch.dtype:
    """The number type of the model's first floating-point parameter: the type that it expects of its inputs."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def _differences(trained: Tensors, received: Tensors, names: Sequence[str]) -> Tensors:
    """w - w_global in float32, by name: 16-bit numbers are widened first, float64 ones are rounded last. All
    arrays share one memory block."""
    flat = np.empty(sum(received[name].size for name in names), np.float32)
    found: Tensors = {}
    start = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for name in names:
            after, before = trained[name], received[name]
            stop = start + before.size
            difference = found[name] = flat[start:stop].reshape(before.shape)
            if after.dtype == np.float64:
                difference[...] = after - before
            else:
                np.subtract(widen(after), widen(before), out=difference)
            start = stop
        finite = math.isfinite(float(flat.dot(flat)))
    if not finite:  # or the sum of squares has overflowed
        for name, difference in found.items():
            if not np.isfinite(difference).all():
                raise Diverged(
                    f"After training {name} holds numbers that are not finite: "
                    "try a smaller learning rate, or max_grad_norm."
                )
    return found
