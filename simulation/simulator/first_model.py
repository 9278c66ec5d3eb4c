"""Makes the first checkpoint of a run from the learner, from arrays, a torch ``state_dict()`` or a safetensors file.

Errors are ValueErrors of one sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from client_sdk.learners import LearnerError, roles_of, untied
from client_sdk.tensors import Manifest, Roles, TensorError, Tensors, from_bytes
from client_sdk.tensors.manifest import StatisticRole, by_name, doubted, stated, told
from simulation.simulator.checks import InitLike


def first_model(init: InitLike, learner: Any, seed: int) -> tuple[Callable[[], Tensors], str]:
    """(a function that makes the first checkpoint, its origin as text). ValueError where it cannot be made."""
    if isinstance(init, Mapping):
        tensors = first_tensors(init, learner)
        return lambda: tensors, "given"
    if init is not None and not isinstance(init, str | PathLike):
        hint = ": give its state_dict()" if hasattr(init, "state_dict") else ""
        raise ValueError(
            f"init is a dict of arrays, a state_dict() or a safetensors file; a {type(init).__name__} is none{hint}"
        )
    if init is not None:
        path = Path(init)
        try:
            body = path.read_bytes()
        except OSError as error:
            raise ValueError(f"the first checkpoint {path} cannot be read: {error.strerror or error}") from None
        try:
            read = _fitted(from_bytes(body), learner)
        except TensorError as error:
            raise ValueError(f"{path} is not a checkpoint: {error}") from None
        return lambda: read, path.name
    if not hasattr(learner, "initial"):
        raise ValueError(
            f"a {type(learner).__name__} makes no first checkpoint: give init=, a dict of arrays or a safetensors file"
        )
    return lambda: learner.initial(seed), f"learner, seed {seed}"


def first_roles(
    learner: Any, said: Mapping[str, StatisticRole] | None, tell: Callable[[str], None]
) -> Callable[[Manifest], Roles]:
    """A function that gives the roles of the first checkpoint's tensors: those that are ``said``, else the learner's,
    else those that names tell, of which ``tell`` gets a sentence. ValueError where what is said does not fit the model,
    or the learner."""

    def of(model: Manifest) -> Roles:
        try:
            known = roles_of(learner, model)
        except LearnerError as error:
            raise ValueError(str(error)) from error
        try:
            found = None if said is None else stated(model, said)
        except TensorError as error:
            raise ValueError(f"statistics: {error}") from None
        if found is not None and known is not None and found != known:
            raise ValueError(
                "statistics= says otherwise than the learner, which knows its model: leave it out, or give the Learner "
                f"statistics=[...]. The learner's are {', '.join(sorted(known)) or 'none'}"
            )
        if found is None and known is None:
            found = by_name(model)
            if found:
                tell(told(found))
        elif known is not None and (doubt := doubted(model, known)):
            tell(doubt)
        return found if found is not None else (known or {})

    return of


def first_tensors(init: Mapping[str, Any], learner: Any) -> Tensors:
    """A first checkpoint from arrays, or from torch tensors as ``state_dict()`` gives them. ValueError where it does
    not fit the learner, if the learner can check it."""
    return _fitted({name: _array(name, value) for name, value in init.items()}, learner)


def _fitted(tensors: Tensors, learner: Any) -> Tensors:
    """The checkpoint under the names that travel. ValueError unless it can be encoded, and the learner's ``load``
    accepts it, where it has ``load``."""
    try:
        Manifest.of(tensors)
        tensors = untied(learner, tensors)
        if hasattr(learner, "load"):
            learner.load(tensors)
        return tensors
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
