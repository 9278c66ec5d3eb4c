"""What is handed to ``simulate`` beside plan and clients, brought into one form: numbers, the learner, the first
checkpoint. A mistake is a ValueError of one sentence.

This file knows arrays and torch tensors where torch is there. It has never heard of rounds.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np

from client_sdk.tensors import Manifest, TensorError, Tensors


def require_whole(name: str, value: Any, least: int) -> None:
    """``value`` is a whole number from ``least`` up."""
    try:
        fits = not isinstance(value, bool) and index(value) >= least
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"{name}={value!r} must be a whole number, {least} or more")


def require_learner(learner: Any) -> None:
    """``learner`` is an object with ``train``, or a function."""
    what = ""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(learner, torch.nn.Module):
        what = f"a {type(learner).__name__} is a torch module"
    elif inspect.isclass(learner):
        what = f"{learner.__name__} is a class"
    elif not (callable(learner) or hasattr(learner, "train")):
        what = f"a {type(learner).__name__} is none"
    if what:
        raise ValueError(
            "a learner is a client_sdk.learning.Learner(model=lambda: ..., loss=...), an object with train(...), or a "
            f"function train(model, data, task); {what}"
        )


def first_tensors(init: Mapping[str, Any], learner: Any) -> Tensors:
    """A first checkpoint from arrays, or from torch tensors as ``state_dict()`` gives them. Must fit the learner, where
    the learner can tell."""
    tensors = {name: _array(name, value) for name, value in init.items()}
    require_fit(tensors, learner)
    return tensors


def require_fit(tensors: Tensors, learner: Any) -> None:
    """A checkpoint that can travel, and that the learner's ``load`` takes, where it has one."""
    try:
        Manifest.of(tensors)
        if hasattr(learner, "load"):
            learner.load(tensors)
    except TensorError as error:
        raise ValueError(f"init will not do: {error}") from None
    except Exception as error:
        raise ValueError(f"init does not fit the learner: {error}") from error


def _array(name: str, value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from client_sdk.learning.errors import LearningError
        from client_sdk.learning.state import host

        try:
            return host(name, value.detach().cpu()).copy()
        except LearningError as error:
            raise ValueError(f"init will not do: {error}") from None
    if not isinstance(name, str) or not isinstance(value, np.ndarray):
        raise ValueError(f"init is a dict name -> array; {name!r} is a {type(value).__name__}")
    return value.copy()
