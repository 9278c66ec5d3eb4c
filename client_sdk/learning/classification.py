"""``accuracy``: the share of labels that a model's outputs give right, for the shapes that torch's losses take."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from client_sdk.learning.errors import LearnerFailed

IGNORED = -100
"""The label that torch's losses leave out unless told otherwise; it is not counted here either."""
_SUSPECTED = 32
"""Fewest outputs of one logit for which it is said that they look like probabilities."""


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The share of labels whose highest output is theirs, a scalar. As a learner's metric it is that of all labels, of
    all batches, clients and devices.

    =================== ============================= ===========================================================
    outputs             targets                       what is compared
    =================== ============================= ===========================================================
    [n, c], c > 1       [n], [n, 1]                   the class of the highest output with the label, 0 to c - 1
    [n, c, ...]         [n, ...], [n, 1, ...]         the same at each position, as in ``cross_entropy``
    [n, ..., c]         [n, ...]                      the same, where the shape is not the one above
    as [n, c, ...]      one-hot, of the same shape    the class of the highest output with that of the 1
    [n], [n, 1], one c  [n], [n, 1] of 0 and 1        one logit: above 0 is class 1; above 0.5 where a learner's loss
                                                      takes probabilities, as ``BCELoss`` and ``MSELoss`` do
    =================== ============================= ===========================================================

    Of [n, c, c] a learner's loss tells which dimension is that of the classes. Where nothing tells it, the first one is
    taken, with a warning; one-hot targets that are so along both are refused.

    Labels are whole numbers of any type; -100 is not counted. NaN where nothing counts. Raises LearnerFailed, in a
    sentence, for other shapes and labels.
    """
    right, counted = right_and_counted(outputs, targets)
    return right / counted


class AccuracyBeside:
    """``accuracy`` as a pair (right, counted), beside the learner's loss, which tells what shapes do not."""

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self._loss = loss
        self._middle: float | None = None
        self._last: bool | None = None

    def __call__(self, outputs: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises as ``accuracy``."""
        if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor) and outputs.ndim and len(outputs):
            shape = tuple(outputs.shape)
            if self._middle is None and (len(shape) == 1 or 1 in (shape[1], shape[-1])):
                self._middle = self._middle_of(outputs, targets)
            if self._last is None and len(shape) > 2 and shape[1] == shape[-1] > 1:
                self._last = self._is_last(outputs, targets)
        return right_and_counted(outputs, targets, self._middle, self._last)

    def _middle_of(self, outputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        """0.0 where the outputs are logits: of labels that are all 0, their loss at 0 is not near none, and less below.
        The losses of probabilities are near none there; below 0 they fail, or grow, or have no meaning."""
        nothing = torch.zeros_like(targets)
        below, at, above = (self._at(torch.full_like(outputs, value), nothing) for value in (-1.0, 0.0, 1.0))
        if at is None or above is None or at == above:
            return None
        return 0.0 if below is not None and below < at and at > above / 1000 else 0.5

    def _is_last(self, outputs: torch.Tensor, targets: torch.Tensor) -> bool | None:
        """Whether the last dimension is that of the classes: the loss of outputs that are right then is less than of
        those that are right else. None where it does not tell, nor do one-hot targets."""
        one_hot = targets.shape == outputs.shape
        for label in (0, outputs.shape[1] - 1):  # a loss may ignore one label
            last, first = torch.zeros_like(outputs), torch.zeros_like(outputs)
            last[..., label] = first[:, label] = 9.0
            every = torch.full_like(targets, label)
            found = [self._at(right, (right / 9).to(targets.dtype) if one_hot else every) for right in (last, first)]
            of_last, of_first = (math.inf if loss is None or math.isnan(loss) else loss for loss in found)
            if not math.isclose(of_last, of_first, rel_tol=1e-3):
                return of_last < of_first
        hot = [dim for dim in (1, -1) if one_hot and _is_one_hot(targets, dim)]
        return hot == [-1] if len(hot) == 1 else None

    def _at(self, outputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        try:
            with torch.no_grad():
                found = self._loss(outputs, targets)
            return float(found[0] / found[1]) if isinstance(found, tuple) else float(found)
        except Exception:  # noqa: BLE001 - a user's loss may raise anything, as BCELoss does below 0
            return None


def right_and_counted(
    outputs: Any, targets: Any, middle: float | None = None, last: bool | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many labels are right, and how many count. ``middle``: above which one output is class 1; None: not known,
    and 0. ``last``: whether the last dimension is that of the classes where the first may be, too; None: not known."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        raise LearnerFailed(
            f"accuracy takes a tensor of outputs and one of targets, not a {type(outputs).__name__} and a "
            f"{type(targets).__name__}: give a metric of your own."
        )
    if not outputs.ndim:
        raise LearnerFailed(
            "accuracy takes outputs of a batch, and these have no dimension: squeeze() of a batch of one example takes "
            "the batch's dimension too; use squeeze(-1)."
        )
    if not outputs.is_floating_point():
        raise LearnerFailed(f"accuracy takes scores of classes, and the model's outputs are {str(outputs.dtype)[6:]}.")
    shape = tuple(outputs.shape)
    if len(shape) == 1:
        outputs, shape = outputs.unsqueeze(1), (*shape, 1)
    if shape == tuple(targets.shape) and shape[1] != 1 and shape[-1] != 1:
        dims = [dim for dim in dict.fromkeys((1, len(shape) - 1)) if _is_one_hot(targets, dim)]
        if len(dims) == 2 and last is None and targets.numel():
            raise LearnerFailed(
                f"accuracy cannot tell which dimension of outputs of shape {list(shape)} is that of the classes: the "
                "targets are one-hot along both. Give labels, or a metric of your own."
            )
        if dims:
            dim = dims[-1] if last else dims[0]
            return _compared(outputs.argmax(dim), targets.to(torch.uint8).argmax(dim), shape[dim])
    columns = [targets.squeeze(dim) for dim in (1, -1) if targets.ndim > 1 and targets.shape[dim] == 1]
    for labels in (targets, *columns):
        readings = {1: shape[:1] + shape[2:], len(shape) - 1: shape[:-1]}
        dims = [dim for dim, positions in readings.items() if positions == tuple(labels.shape)]
        if len(dims) == 2 and last is None and shape[1] > 1:
            warnings.warn(
                f"accuracy takes the first dimension after the examples of outputs of shape {list(shape)} as that of "
                "the classes, as cross_entropy does, and it may be the last one: a learner's metric asks the loss.",
                stacklevel=3,
            )
        if dims:
            dim = dims[-1] if last else dims[0]
            if shape[dim] == 1:
                return _of_one_logit(outputs.squeeze(dim), labels, middle)
            return _compared(outputs.argmax(dim), labels, shape[dim])
    raise LearnerFailed(
        f"accuracy does not know outputs of shape {list(outputs.shape)} with targets of shape {list(targets.shape)}: "
        "it takes [n, classes] with labels [n] or one-hot, [n, classes, positions] or [n, positions, classes] with "
        "[n, positions], and one logit [n, 1] with 0 and 1; give a metric of your own for others."
    )


def _compared(found: torch.Tensor, labels: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    whole = labels.long()
    counted = whole != IGNORED
    known = whole[counted]
    if labels.is_floating_point() and not bool((whole == labels).all()):
        raise LearnerFailed("accuracy takes labels, and these targets are no whole numbers: use integers.")
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise LearnerFailed(
            f"accuracy found labels from {int(known.min())} to {int(known.max())} and {classes} classes: use integers "
            f"from 0 to {classes - 1} ({IGNORED} is not counted)."
        )
    return (found == whole).sum(), counted.sum()


def _of_one_logit(
    logits: torch.Tensor, labels: torch.Tensor, middle: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    counted = labels != IGNORED
    if not bool(((labels == 0) | (labels == 1) | ~counted).all()):
        raise LearnerFailed("accuracy of one logit takes targets 0 and 1, and there are others: use integers 0 and 1.")
    if middle is None and logits.numel() >= _SUSPECTED and 0 <= float(logits.min()) < float(logits.max()) <= 1:
        warnings.warn(
            "accuracy takes one logit, above 0 for class 1, and all these outputs are from 0 to 1: are they "
            "probabilities of a sigmoid? Then give a metric of your own, with 0.5.",
            stacklevel=2,
        )
    return (((logits > (middle or 0.0)) == (labels == 1)) & counted).sum(), counted.sum()


def _is_one_hot(targets: torch.Tensor, dim: int) -> bool:
    return bool(((targets == 0) | (targets == 1)).all()) and bool((targets.sum(dim) == 1).all())
