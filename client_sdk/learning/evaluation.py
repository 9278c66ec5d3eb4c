"""Scores a model on examples: means over all examples, independent of the batches. Defines ``accuracy``.

A metric takes a batch's outputs and targets and returns their mean, one number. A metric that is undefined on the data
(NaN, such as a recall without positive examples) is left out of the score, which has ``recall.undefined`` = 1 in its
place; a loss that is not finite is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from client_sdk.learning.data import TensorExamples, cast
from client_sdk.learning.errors import Diverged, LearnerFailed, LearningError
from client_sdk.metrics import undefined
from client_sdk.protocol.devices import Score

Measure = Callable[[Any, Any], Any]
"""(outputs, targets) of a batch -> their mean: a number or a tensor with one element."""


def score(
    module: nn.Module,
    examples: TensorExamples,
    measures: Mapping[str, Measure],
    *,
    batch: int,
    floating: torch.dtype,
    what: str,
) -> Score:
    """The mean of each measure over all examples, in eval mode and without gradients: sum_b n_b m_b / sum_b n_b over
    batches b of n_b.

    The sum is in float64. ``floating`` is the model's number type. Measures other than the loss whose mean is not
    finite are left out and named: see ``defined``. Raises Diverged for a loss that is not finite, naming ``what`` was
    scored, and LearnerFailed when model or measure fails. The module stays in eval mode.
    """
    total, sums = len(examples), dict.fromkeys(measures, 0.0)
    module.eval()
    with torch.no_grad():
        for start in range(0, total, batch):
            stop = min(start + batch, total)
            with explained(f"on examples {start} to {stop - 1} of the {what}"):
                inputs, targets = cast(examples.span(start, stop), floating)
                outputs = module(inputs)
                for name, measure in measures.items():
                    sums[name] += number(name, measure(outputs, targets)) * (stop - start)
    means = {name: value / total for name, value in sums.items()}
    if not math.isfinite(loss := means.get("loss", 0.0)):
        raise Diverged(f"The model's loss on the {what} is {loss}: its weights or the data are not finite.")
    found = defined(means)
    return Score(examples=total, metrics=found | {undefined(name): 1.0 for name in means if name not in found})


def defined(means: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are finite. A metric may have no value on a client's data: an AUC where all examples have one
    label. That says nothing about the weights, which a loss that is not finite does."""
    return {name: value for name, value in means.items() if math.isfinite(value)}


def number(name: str, value: Any) -> float:
    """A measure's value as a float. Raises LearnerFailed where it is not one number."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise LearnerFailed(
                f"{name} gave a tensor of shape {list(value.shape)}: it must give one number, the batch's mean"
            )
        return float(value.item())
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LearnerFailed(
            f"{name} gave a {type(value).__name__}: it must give one number, the batch's mean"
        ) from None


class explained:  # noqa: N801
    """Turns any error of the learner's code into LearnerFailed with its place. A class, for speed: entered once a
    step."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LearningError):
            return
        if isinstance(error, Exception):
            line = (str(error).strip() or "no message").split("\n", 1)[0].rstrip(".")
            raise LearnerFailed(f"The learner failed {self._where}: {type(error).__name__}: {line}.") from error


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Share of examples whose highest output is the target's. ``outputs`` [examples, classes], ``targets`` [examples]
    -> scalar."""
    return (outputs.argmax(dim=1) == targets).float().mean()
