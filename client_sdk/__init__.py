"""What a device runs, and the words both sides speak: the front door of Quorate's SDK.

An app needs these names::

    from client_sdk import Catalogue, Client, FileStorage, LearnerTrainer, Update

``Update`` is what a training function returns; ``Client`` drives a device's session over HTTP; ``participate`` is the
session itself, for drivers of your own. Each name is loaded when it is first used, so ``import client_sdk`` costs
nothing; none of them needs torch or a server's packages. ``client_sdk.learning`` has ``Learner``, for models in torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client_sdk.asking import Pacing as Pacing
    from client_sdk.client import Client as Client
    from client_sdk.client import Happening as Happening
    from client_sdk.identity import DeviceKey as DeviceKey
    from client_sdk.learners import Catalogue as Catalogue
    from client_sdk.learners import LearnerTrainer as LearnerTrainer
    from client_sdk.learners import Trainer as Trainer
    from client_sdk.operator import OperatorClient as OperatorClient
    from client_sdk.problems import Problem as Problem
    from client_sdk.problems import ProblemError as ProblemError
    from client_sdk.protocol import Policy as Policy
    from client_sdk.protocol import Score as Score
    from client_sdk.protocol import SecureBounds as SecureBounds
    from client_sdk.protocol import Task as Task
    from client_sdk.protocol import Work as Work
    from client_sdk.record import Storage as Storage
    from client_sdk.record import StorageError as StorageError
    from client_sdk.session import participate as participate
    from client_sdk.storage import FileStorage as FileStorage
    from client_sdk.storage import MemoryStorage as MemoryStorage
    from client_sdk.tensors import BF16 as BF16
    from client_sdk.tensors import Tensors as Tensors
    from client_sdk.update import Update as Update

_HOME = {
    "BF16": "tensors",
    "Catalogue": "learners",
    "Client": "client",
    "DeviceKey": "identity",
    "FileStorage": "storage",
    "Happening": "client",
    "LearnerTrainer": "learners",
    "MemoryStorage": "storage",
    "OperatorClient": "operator",
    "Pacing": "asking",
    "Policy": "protocol",
    "Problem": "problems",
    "ProblemError": "problems",
    "Score": "protocol",
    "SecureBounds": "protocol",
    "Storage": "record",
    "StorageError": "record",
    "Task": "protocol",
    "Tensors": "tensors",
    "Trainer": "learners",
    "Update": "update",
    "Work": "protocol",
    "participate": "session",
}

__all__ = [
    "BF16",
    "Catalogue",
    "Client",
    "DeviceKey",
    "FileStorage",
    "Happening",
    "LearnerTrainer",
    "MemoryStorage",
    "OperatorClient",
    "Pacing",
    "Policy",
    "Problem",
    "ProblemError",
    "Score",
    "SecureBounds",
    "Storage",
    "StorageError",
    "Task",
    "Tensors",
    "Trainer",
    "Update",
    "Work",
    "participate",
]


def __getattr__(name: str) -> object:
    """A public name, loaded when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"client_sdk has no {name!r}; it has {', '.join(__all__)}")
    found: object = getattr(import_module(f"client_sdk.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
