"""What the learners of this package share: cross-entropy, plain SGD, accuracy, and the distribution's version.

This file knows `Learner`. It has never heard of any one model.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import nn

from client_sdk.learning import Learner, accuracy


def classifier(model: Callable[[], nn.Module]) -> Learner:
    """A learner of classes: the model's outputs are logits [n, classes] (or [n, classes, positions]), trained on
    cross-entropy with plain SGD and scored by accuracy."""
    return Learner(
        model=model,
        loss=nn.functional.cross_entropy,
        metrics={"accuracy": accuracy},
        version=_installed_version(),
    )


def unit_pixels(images: torch.Tensor, floating: torch.dtype) -> torch.Tensor:
    """Images as numbers in [0, 1]: bytes are scaled by x / 255, floating-point images stay as they are."""
    return images if images.is_floating_point() else images.to(floating) / 255


def _installed_version() -> str:
    """Of the distribution, as the catalogue of learners says it."""
    try:
        return version("quorate")
    except PackageNotFoundError:
        return "0"
