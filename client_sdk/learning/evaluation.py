"""Scores a model on examples: the loss and a learner's metrics of the whole set, independent of the batches.

``measures`` has what a metric may be. A metric that is undefined on the data (NaN, such as a recall without positive
examples) is left out of the score, which has ``recall.undefined`` = 1 in its place; a loss that is not finite is an
error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from client_sdk.learning.classification import IGNORED
from client_sdk.learning.data import TensorExamples, cast
from client_sdk.learning.errors import Diverged, LearnerFailed, LearningError
from client_sdk.learning.measures import Measurement
from client_sdk.metrics import undefined
from client_sdk.protocol.devices import MOST_STATE, Score


def score(
    module: nn.Module,
    examples: TensorExamples,
    metrics: Mapping[str, Any],
    *,
    batch: int,
    floating: torch.dtype,
    what: str,
) -> Score:
    """Each of ``metrics`` (the loss among them) of all examples, in eval mode and without gradients, and what it adds
    up by over clients.

    ``floating`` is the model's number type. Metrics other than the loss that are not finite are left out and named: see
    ``defined``. Raises Diverged for a loss that is not finite, naming ``what`` was scored, and LearnerFailed when model
    or metric fails. The module stays in eval mode.
    """
    total, measures = len(examples), Measurement(metrics, metrics.get("loss"))
    module.eval()
    with torch.no_grad():
        for start in range(0, total, batch):
            stop = min(start + batch, total)
            with explained(f"on examples {start} to {stop - 1} of the {what}") as here:
                inputs, targets = cast(examples.span(start, stop), floating)
                here.inputs = inputs
                outputs = here.outputs, here.targets = module(inputs), targets
                measures.update(*outputs, stop - start)
        with explained(f"on all examples of the {what}"):
            measured = measures.results()
    values = {name: one.value for name, one in measured.items()}
    if not math.isfinite(loss := values.get("loss", 0.0)):
        raise Diverged(f"The model's loss on the {what} is {loss}: its weights or the data are not finite.")
    found = defined(values)
    vectors = {name: one.state for name, one in measured.items() if one.state is not None}
    return Score(
        examples=total,
        metrics=found | {undefined(name): 1.0 for name in values if name not in found},
        weights={name: one.weight for name, one in measured.items() if one.weight and name in found},
        states=vectors if sum(map(len, vectors.values())) <= MOST_STATE else {},
    )


def defined(means: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are finite. A metric may have no value on a client's data: an AUC where all examples have one
    label. That says nothing about the weights, which a loss that is not finite does."""
    return {name: value for name, value in means.items() if math.isfinite(value)}


class explained:  # noqa: N801
    """Turns any error of the learner's code into LearnerFailed with its place. A class, for speed: entered once a
    step."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.inputs: Any = None
        """What the model got."""
        self.outputs: Any = None
        self.targets: Any = None
        """What the loss and the metrics got, where that is known: wrong labels are named."""

    def __enter__(self) -> explained:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LearningError):
            return
        if isinstance(error, Exception):
            line = (str(error).strip() or "no message").split("\n", 1)[0].rstrip(".")
            failed = f"The learner failed {self._where}: {type(error).__name__}: {line}."
            at_fault = _inputs_at_fault(self.inputs) if self.outputs is None else ""
            raise LearnerFailed(failed + at_fault + _labels_at_fault(self.outputs, self.targets)) from error


def _inputs_at_fault(inputs: Any) -> str:
    """A sentence about inputs of whole numbers, on which a model has failed; empty for others."""
    if not isinstance(inputs, torch.Tensor) or inputs.is_floating_point() or inputs.is_complex():
        return ""
    return (
        f" The inputs are {str(inputs.dtype)[6:]}, and reach the model as they are: give floats, as by "
        "x.astype('float32') / 255 of bytes, or let the model convert them."
    )


def _labels_at_fault(outputs: Any, targets: Any) -> str:
    """A sentence about labels that no loss of classes takes; empty where they are fine, or are no labels."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor) or outputs.ndim < 2:
        return ""
    classes = outputs.shape[1]
    if targets.shape != outputs.shape[:1] + outputs.shape[2:] or classes < 2 or not targets.numel():
        return ""
    if targets.is_floating_point() or targets.dtype is torch.bool:
        return f" The targets are {str(targets.dtype)[6:]}: where they are labels of classes, use integers."
    known = targets[targets != IGNORED]
    low, high = (int(known.min()), int(known.max())) if known.numel() else (0, 0)
    if 0 <= low <= high < classes:
        return ""
    most = classes - 1
    return f" The labels go from {low} to {high} and the model has {classes} outputs: use integers from 0 to {most}."
