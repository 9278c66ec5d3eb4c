"""Learning on a device: a model, a loss and an optimizer written once, trained by local SGD, scored on held-out data.

Needs the extra ``torch`` (``pip install 'quorate[torch]'``). The errors alone do not: a driver may import them
without torch, so everything else is loaded when it is first named. A plain function ``train(model, data, task) ->
Update`` on numpy arrays needs nothing of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from client_sdk.learning.errors import (
    CheckpointMismatch,
    DataError,
    Diverged,
    LearnerFailed,
    LearningError,
    NoExamples,
    OutOfTime,
)

if TYPE_CHECKING:
    from client_sdk.learning.evaluation import accuracy as accuracy
    from client_sdk.learning.learner import Learner as Learner
    from client_sdk.learning.optimizer import PlainSGD as PlainSGD
    from client_sdk.learning.seeding import batch_order as batch_order

_HOME = {"Learner": "learner", "PlainSGD": "optimizer", "accuracy": "evaluation", "batch_order": "seeding"}

__all__ = [
    "CheckpointMismatch",
    "DataError",
    "Diverged",
    "Learner",
    "LearnerFailed",
    "LearningError",
    "NoExamples",
    "OutOfTime",
    "PlainSGD",
    "accuracy",
    "batch_order",
]


def __getattr__(name: str) -> object:
    """Load the parts that need torch when they are first asked for."""
    if name not in _HOME:
        raise AttributeError(f"client_sdk.learning has no {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(import_module(f"client_sdk.learning.{_HOME[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ImportError(f"client_sdk.learning.{name} needs torch: pip install 'quorate[torch]'") from None
