"""Learning on a device: a model, a loss and an optimizer written once, trained by local SGD, scored on held-out data.

Needs the extra ``torch`` (``pip install 'quorate[torch]'``). The errors do not need torch; all other
names are imported on first use. A plain function ``train(model, data, task) -> Update`` on numpy arrays does not need
this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_sdk.imports import load
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
    from client_sdk.learning.classification import accuracy as accuracy
    from client_sdk.learning.learner import Learner as Learner
    from client_sdk.learning.local_sgd import PlainSGD as PlainSGD
    from client_sdk.learning.local_sgd import batch_order as batch_order

_HOMES = {
    "Learner": "client_sdk.learning.learner",
    "PlainSGD": "client_sdk.learning.local_sgd",
    "accuracy": "client_sdk.learning.classification",
    "batch_order": "client_sdk.learning.local_sgd",
}

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
    """Import the parts that need torch on first use."""
    return load(__name__, name, _HOMES, extra="torch")
