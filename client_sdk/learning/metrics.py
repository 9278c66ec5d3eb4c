"""Metrics ready to use. A metric takes a batch's outputs and targets and returns their mean, one number."""

from __future__ import annotations

import torch


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Share of examples whose highest output is the target's. ``outputs`` [examples, classes], ``targets`` [examples]
    -> scalar."""
    return (outputs.argmax(dim=1) == targets).float().mean()
