"""What is measured on a model's outputs, of the whole set whatever its batches: the loss, and a learner's metrics.

======================================= ================================ ============================================
a metric, or the loss                   is over batches                  is over clients and devices
======================================= ================================ ============================================
a function of (outputs, targets) that   called once, with all of them    the mean of its values, by examples
gives one number
a function that gives (sum, weight)     sum of sums / sum of weights     the same
an object with a state (``states``)     one object                       of the added states, where they add up
======================================= ================================ ============================================

The plain losses of torch and ``accuracy`` are known: they are computed batch by batch, as a pair. For the functions
that need all outputs these are kept, up to ``MOST_BYTES``.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from client_sdk.learning import states
from client_sdk.learning.classification import IGNORED, AccuracyBeside, accuracy, right_and_counted
from client_sdk.learning.errors import LearnerFailed
from client_sdk.tensors import Tensors, from_bytes, read_header, to_bytes

MOST_BYTES = 1 << 30
"""Of outputs and targets that are kept for functions of all of them."""

_ABOUT = "quorate.measures"

Pair = tuple[Any, float]
"""(sum, weight)"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of all examples."""

    value: float
    """NaN where it is undefined."""
    weight: float | None = None
    """What the value counts by beside others, where that is known to be other than the examples."""
    state: list[float] | None = None
    """Of an object whose state adds up."""


class Measurement:
    """``update`` with each batch, then ``results`` once. Raises LearnerFailed, and what the learner's code raises."""

    def __init__(self, metrics: Mapping[str, Any], loss: Callable[[Any, Any], Any] | None = None) -> None:
        """``metrics`` by name, one called ``loss`` among them or not. ``loss``: the learner's, by which
        ``accuracy`` reads outputs."""
        self._metrics, self._loss = dict(metrics), loss
        self._states = {name: states.fresh(name, one) for name, one in metrics.items() if states.has_state(one)}
        self._functions = {name: _pairing(one, loss) for name, one in metrics.items() if name not in self._states}
        self._pairs: dict[str, list[float]] = {}
        self._first: dict[str, float] = {}
        """The values of functions of all examples, on the first batch; NaN where a function failed on it."""
        self._kept: list[tuple[Any, Any]] = []
        self._bytes = self._examples = self._batches = 0
        self._passed_on = False
        """Whether objects with a state have got outputs that are not kept any more."""

    def update(self, outputs: Any, targets: Any, size: int) -> None:
        """Take a batch of ``size`` examples into account. Outputs are copied where they are kept."""
        wide = widened(outputs)
        for name, function in self._functions.items():
            if name in self._first:
                continue
            try:
                found = function(_seen(name, function, outputs, wide), targets)
            except (ZeroDivisionError, ValueError):
                if name == "loss" or name in self._pairs:
                    raise
                found = math.nan  # as of one label: on all examples it may have a value
            if isinstance(found, tuple):
                total, weight = pair_of(name, found)
                mine = self._pairs.setdefault(name, [0.0, 0.0])
                mine[0] += number(name, total)
                mine[1] += weight
            elif name in self._pairs:
                raise LearnerFailed(f"{name} gave a pair (sum, weight) for one batch, and no pair for another")
            else:
                self._first[name] = number(name, found)
        self._examples, self._batches = self._examples + size, self._batches + 1
        if self._first or self._states:
            self._keep(outputs, targets)

    def results(self) -> dict[str, Measured]:
        """Each measure of all examples so far."""
        values = dict(self._first)
        if self._kept:
            outputs, targets = self._joined()
            wide = widened(outputs)
            for name, function in self._functions.items():
                if name in self._pairs or (self._batches == 1 and not math.isnan(values[name])):
                    continue
                with suppress(ZeroDivisionError):  # undefined
                    values[name] = math.nan
                    values[name] = number(name, function(_seen(name, function, outputs, wide), targets))
            for state in self._states.values():
                state.update(wide, targets)
            self._kept = []
        found = {name: Measured(value) for name, value in values.items()}
        for name, (total, weight) in self._pairs.items():
            found[name] = Measured(total / weight if weight else math.nan, None if weight == self._examples else weight)
        for name, state in self._states.items():
            metric = self._metrics[name]
            value = number(name, states.value_of(state))
            found[name] = Measured(value, state=states.numbers_of(name, metric, state))
        return {name: found[name] for name in self._metrics}

    def exported(self) -> bytes:
        """What was measured so far, for ``absorbed`` by the other ranks of a group. Outputs and targets must be tensors
        where they are kept, and no more than ``MOST_BYTES``."""
        if self._passed_on:
            raise LearnerFailed(
                f"in a group, the outputs and targets on which a rank computes {', '.join(self._states)} may take "
                f"{MOST_BYTES >> 20} MiB: leave out training_metrics, or train for fewer steps"
            )
        kept: Tensors = {}
        if self._kept:
            for name, part in zip(("outputs", "targets"), self._joined(), strict=True):
                if not isinstance(part, torch.Tensor):
                    raise LearnerFailed(f"in a group, metrics of all examples need {name} that are a tensor")
                kept[name] = widened(part).numpy()
        about = {"pairs": self._pairs, "examples": self._examples, "batches": self._batches}
        return to_bytes(kept, {_ABOUT: json.dumps(about)})

    def absorbed(self, parts: Sequence[bytes]) -> Measurement:
        """What the processes measured that exported ``parts``, together."""
        total = Measurement(self._metrics, self._loss)
        for part in parts:
            about, kept = json.loads(read_header(part).metadata[_ABOUT]), from_bytes(part)
            for name, (found, weight) in about["pairs"].items():
                mine = total._pairs.setdefault(name, [0.0, 0.0])
                mine[:] = mine[0] + found, mine[1] + weight
            total._examples += about["examples"]
            total._batches += 2 * about["batches"]  # no value of a single batch is that of all
            if kept:
                total._keep(torch.from_numpy(kept["outputs"]), torch.from_numpy(kept["targets"]))
        return total

    def _keep(self, outputs: Any, targets: Any) -> None:
        self._kept.append((_own(outputs), _own(targets)))
        self._bytes += _bytes(self._kept[-1])
        if self._bytes <= MOST_BYTES:
            return
        if unpaired := self._functions.keys() - self._pairs.keys():
            raise LearnerFailed(
                f"{min(unpaired)} is a function of the outputs of all examples, and those of the first "
                f"{self._examples} take more than {MOST_BYTES >> 20} MiB: where it is a mean, let it give (sum, weight)"
                " of a batch, which are added up; else make it an object with update(outputs, targets) and compute()"
            )
        joined = self._joined()
        for state in self._states.values():
            state.update(widened(joined[0]), joined[1])
        self._kept, self._bytes, self._passed_on = [], 0, True

    def _joined(self) -> tuple[Any, Any]:
        outputs, targets = zip(*self._kept, strict=True)
        return _together(outputs), _together(targets)


def number(name: str, value: Any) -> float:
    """A measure's value as a float. Raises LearnerFailed where it is not one number."""
    if isinstance(value, torch.Tensor | np.ndarray):
        if math.prod(value.shape) != 1:
            raise LearnerFailed(
                f"{name} gave a tensor of shape {list(value.shape)}: it must give one number, or a pair (sum, weight)"
            )
        return float(value.item())
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LearnerFailed(
            f"{name} gave a {type(value).__name__}: it must give one number, or a pair (sum, weight)"
        ) from None


def pair_of(name: str, found: Sequence[Any]) -> Pair:
    """(sum, weight) as a function gave them. LearnerFailed where they are none."""
    if len(found) != 2:
        raise LearnerFailed(f"{name} gave {len(found)} values: it must give one number, or a pair (sum, weight)")
    weight = number(name, found[1])
    if not (math.isfinite(weight) and weight >= 0):
        raise LearnerFailed(f"{name} gave the weight {weight:g}: it must be finite, and 0 or more")
    return found[0], weight


def objective_of(found: Any, size: int) -> tuple[Any, float, float]:
    """What is differentiated of a loss on a batch of ``size`` examples, and its (sum, weight) as numbers. A pair gives
    sum / weight; of the weight 0 the sum, whose gradient is zero."""
    if not isinstance(found, tuple):
        return found, number("loss", found) * size, float(size)
    total, weight = pair_of("loss", found)
    return total / weight if weight else total, number("loss", total), weight


def widened(tree: Any) -> Any:
    """Outputs of 16 bits as float32: means of thousands of examples have more digits."""
    return _mapped(tree, lambda one: one.float() if one.dtype in (torch.bfloat16, torch.float16) else one)


def _seen(name: str, function: Any, outputs: Any, wide: Any) -> Any:
    """What a function gets: a loss of the author's own may hold tensors of the model's own number type."""
    return outputs if name == "loss" and not hasattr(function, "of_torch") else wide


# ------------------------------------------------------------ known functions


def _pairing(function: Callable[[Any, Any], Any], loss: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
    """The function as one that gives pairs, where it is known to be a mean."""
    if function is accuracy:
        return AccuracyBeside(loss) if loss is not None else right_and_counted
    if any(function is one for one in OF_LABELS):
        return _Mean(function, by_labels=True)
    return _Mean(function, by_labels=False) if any(function is one for one in _OF_EXAMPLES) else function


OF_LABELS = (functional.cross_entropy, functional.nll_loss)
"""The losses that leave out examples whose label is ``IGNORED``."""
_OF_EXAMPLES = (
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
    functional.huber_loss,
    functional.l1_loss,
    functional.mse_loss,
    functional.smooth_l1_loss,
)


@dataclass(frozen=True, slots=True)
class _Mean:
    """A loss of torch with its usual arguments, as a pair."""

    function: Callable[[Any, Any], Any]
    by_labels: bool
    """Whether it is a mean over the labels that are not -100, rather than over examples of equal size."""
    of_torch: bool = True

    def __call__(self, outputs: Any, targets: Any) -> tuple[float, float]:
        weight = len(targets)
        if self.by_labels and not targets.is_floating_point():
            weight = int((targets != IGNORED).sum())
        if not weight:
            return 0.0, 0.0
        return number("loss", self.function(outputs, targets)) * weight, float(weight)


# ------------------------------------------------------------ trees of tensors


def detached(tree: Any) -> Any:
    """The outputs of a model without their gradients."""
    return _mapped(tree, torch.Tensor.detach)


def _own(tree: Any) -> Any:
    """A copy without gradients on the CPU: a model may use its buffer again, and a part of it holds the whole."""
    return _mapped(tree, lambda one: one.detach().to("cpu", copy=True))


def _mapped(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        made = copy.copy(tree)
        for key, value in tree.items():
            made[key] = _mapped(value, change)
        return made
    if isinstance(tree, tuple | list):
        items = [_mapped(item, change) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree


def _bytes(tree: Any) -> int:
    if isinstance(tree, dict):
        return sum(map(_bytes, tree.values()))
    return sum(map(_bytes, tree)) if isinstance(tree, tuple | list) else int(getattr(tree, "nbytes", 0))


def _together(parts: Sequence[Any]) -> Any:
    """Batches of one kind as one batch. LearnerFailed where they are not of one shape."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, torch.Tensor) and first.ndim and len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(list(parts))
    if isinstance(first, dict):
        made = copy.copy(first)
        for key in first:
            made[key] = _together([part[key] for part in parts])
        return made
    if isinstance(first, list) and not any(isinstance(item, torch.Tensor | dict | tuple | list) for item in first):
        return [item for part in parts for item in part]  # such as texts
    if isinstance(first, tuple | list):
        items = [_together(items) for items in zip(*parts, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    kinds = sorted({str(list(part.shape)) if hasattr(part, "shape") else type(part).__name__ for part in parts})
    raise LearnerFailed(
        f"the batches of outputs or targets ({', '.join(kinds[:3])}) do not make one batch, as a function of all "
        "examples needs it: let the loss and each metric give (sum, weight) of a batch"
    )
