"""Metrics of each kind, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def f1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of class 1: no mean of examples."""
    found, true = outputs.argmax(1) == 1, targets == 1
    return 2 * (found & true).sum() / (found.sum() + true.sum()).clamp(min=1)


def auc(outputs: torch.Tensor, targets: torch.Tensor) -> Any:
    """Of class 1, over all pairs; NaN where all have one label."""
    scores = outputs[:, 1] - outputs[:, 0]
    positive, negative = scores[targets == 1], scores[targets == 0]
    if not len(positive) or not len(negative):
        return float("nan")
    return (positive[:, None] > negative[None, :]).float().mean()


class F1:
    """The metric ``f1``, as an object of its author's own."""

    def __init__(self, label: int = 1) -> None:
        self.label = label
        self.right = 0
        self.marked = torch.zeros(2, dtype=torch.int64)

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        found, true = outputs.argmax(1) == self.label, targets == self.label
        self.right += int((found & true).sum())
        self.marked = self.marked + torch.stack([found.sum(), true.sum()])

    def merge(self, other: F1) -> None:
        self.right += other.right
        self.marked = self.marked + other.marked

    def compute(self) -> float:
        return 2 * self.right / max(1, int(self.marked.sum()))


def weighted(weights: torch.Tensor) -> Callable[[Any, Any], tuple[torch.Tensor, torch.Tensor]]:
    """Cross-entropy with class weights, as a pair."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = nn.functional.cross_entropy(outputs, targets, weight=weights, reduction="sum")
        return total, weights[targets].sum()

    return loss
