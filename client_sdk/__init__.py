"""What a device runs, and the words both sides speak: the front door of Quorate's SDK.

An app needs these names::

    from client_sdk import Catalogue, Client, FileStorage, LearnerTrainer, Update

``Update`` is what a training function returns; ``Client`` drives a device's session over HTTP; ``participate`` is the
session itself, for drivers of your own. Each name is loaded when it is first used, so ``import client_sdk`` costs
nothing; none of them needs torch or a server's packages. ``client_sdk.learning`` has ``Learner``, for models in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_sdk.imports import load

if TYPE_CHECKING:
    from client_sdk.commands.stopping import stopped_by_signals as stopped_by_signals
    from client_sdk.device.record import Storage as Storage
    from client_sdk.device.record import StorageError as StorageError
    from client_sdk.device.requests import Pacing as Pacing
    from client_sdk.device.session import participate as participate
    from client_sdk.device.storage import FileStorage as FileStorage
    from client_sdk.device.storage import MemoryStorage as MemoryStorage
    from client_sdk.http.client import Client as Client
    from client_sdk.http.client import Notice as Notice
    from client_sdk.http.operator import OperatorClient as OperatorClient
    from client_sdk.identity import DeviceKey as DeviceKey
    from client_sdk.learners import Catalogue as Catalogue
    from client_sdk.learners import LearnerTrainer as LearnerTrainer
    from client_sdk.learners import Trainer as Trainer
    from client_sdk.protocol.devices import Policy as Policy
    from client_sdk.protocol.devices import Score as Score
    from client_sdk.protocol.devices import SecureBounds as SecureBounds
    from client_sdk.protocol.devices import Task as Task
    from client_sdk.protocol.devices import Work as Work
    from client_sdk.protocol.problems import Problem as Problem
    from client_sdk.protocol.problems import ProblemError as ProblemError
    from client_sdk.tensors import BF16 as BF16
    from client_sdk.tensors import Tensors as Tensors
    from client_sdk.update import Update as Update

_HOMES = {
    "BF16": "client_sdk.tensors",
    "Catalogue": "client_sdk.learners",
    "Client": "client_sdk.http.client",
    "DeviceKey": "client_sdk.identity",
    "FileStorage": "client_sdk.device.storage",
    "Notice": "client_sdk.http.client",
    "LearnerTrainer": "client_sdk.learners",
    "MemoryStorage": "client_sdk.device.storage",
    "OperatorClient": "client_sdk.http.operator",
    "Pacing": "client_sdk.device.requests",
    "Policy": "client_sdk.protocol.devices",
    "Problem": "client_sdk.protocol.problems",
    "ProblemError": "client_sdk.protocol.problems",
    "Score": "client_sdk.protocol.devices",
    "SecureBounds": "client_sdk.protocol.devices",
    "Storage": "client_sdk.device.record",
    "StorageError": "client_sdk.device.record",
    "Task": "client_sdk.protocol.devices",
    "Tensors": "client_sdk.tensors",
    "Trainer": "client_sdk.learners",
    "Update": "client_sdk.update",
    "Work": "client_sdk.protocol.devices",
    "participate": "client_sdk.device.session",
    "stopped_by_signals": "client_sdk.commands.stopping",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    return load(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return __all__
