"""Converts a torch module's tensors by name to numpy and back.

The tensors are those of ``module.state_dict()``: parameters and persistent buffers, by the same names. Of *tied*
weights (one storage under several names) only the first name is sent; loading it sets all of them, since they share
their storage.

========================  ==================  =======================
kind                      in the checkpoint   in the update
========================  ==================  =======================
parameter, trained        yes                 yes, as a difference
parameter, frozen         yes                 when the plan averages it (then zero)
buffer, floating point    yes                 when the plan averages it
buffer, integer or bool   yes                 never
========================  ==================  =======================
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from client_sdk.learning.errors import CheckpointMismatch, LearnerFailed
from client_sdk.tensors import BF16, Array, Manifest, ManifestMismatch, TensorError, Tensors, named
from client_sdk.tensors.manifest import StatisticRole, of_model

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Number types that can be trained, sent and averaged (float64 in float32's precision)."""
CARRIED = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Number types of buffers that stay as they are in the checkpoint."""


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by ``state_dict`` name, in its order; tied ones once. They share memory with
    the module."""
    return _distinct(module)[0]


def tied_names(module: nn.Module) -> dict[str, str]:
    """The first name of every further name of tied weights."""
    return _distinct(module)[1]


def read(module: nn.Module) -> Tensors:
    """The module's tensors as numpy copies. Raises LearnerFailed for a tensor that cannot travel (complex, lazy, on a
    GPU)."""
    return {name: view.copy() for name, view in views(module).items()}


def views(module: nn.Module) -> Tensors:
    """The module's tensors as numpy views on their memory. Raises LearnerFailed as ``read``."""
    return {name: host(name, tensor) for name, tensor in named_tensors(module).items()}


class ModuleTensors:
    """A module's tensors by name, tied ones once, as long as they stay where they are."""

    def __init__(self, module: nn.Module) -> None:
        """Raises LearnerFailed for a tensor that cannot travel (complex, lazy, on a GPU)."""
        self.own, self._tied = _distinct(module)
        """Those of the module itself."""
        self.views = {name: host(name, tensor) for name, tensor in self.own.items()}
        """Numpy views on their memory."""
        self.manifest = Manifest.of(self.views)

    def fill(self, tensors: Tensors) -> None:
        """Copy ``tensors`` into the module. Names, shapes and dtypes must be the module's, else CheckpointMismatch says
        what differs."""
        if tensors.keys() != self.views.keys() or any(
            tensors[name].shape != view.shape or tensors[name].dtype != view.dtype for name, view in self.views.items()
        ):
            self._require(tensors)
        for name, view in self.views.items():
            np.copyto(view, tensors[name])

    def _require(self, tensors: Tensors) -> None:
        double = next((name for name in tensors if name in self._tied), None)
        if double is not None:
            raise CheckpointMismatch(
                f"The checkpoint does not fit the learner's model: it holds {double}, "
                f"which is tied to {self._tied[double]} and travels under that name only. "
                "A run that is started where the learner is installed leaves it out."
            )
        try:
            self.manifest.require(Manifest.of(tensors), "it")
        except TensorError as error:
            raise CheckpointMismatch(f"The checkpoint does not fit the learner's model: {error}.") from None


def arrays(tensors: Mapping[str, Any]) -> Tensors:
    """A checkpoint in which torch tensors, as ``state_dict()`` gives them, are numpy arrays, without a strategy's
    shared tensors. Those on the CPU are not copied. LearnerFailed for a tensor that cannot travel."""
    tensors = of_model(tensors)
    if not any(isinstance(value, torch.Tensor) for value in tensors.values()):
        return cast("Tensors", tensors)
    return {
        name: host(name, value.detach().cpu()) if isinstance(value, torch.Tensor) else value
        for name, value in tensors.items()
    }


def host(name: str, tensor: torch.Tensor) -> Array:
    """A numpy view on a tensor's memory, bfloat16 as ``BF16``."""
    if is_lazy(tensor):
        raise LearnerFailed(f"{name} has no shape yet: run lazy layers once before the model is handed over")
    if tensor.device.type != "cpu":
        raise LearnerFailed(f"{name} lies on {tensor.device}: a learner's model is made on the CPU")
    if tensor.dtype not in FLOATING + CARRIED:
        raise LearnerFailed(
            f"{name} is {_plain(tensor.dtype)}, which cannot travel: use floats of 16 to 64 bits, integers or bool"
        )
    plain = tensor.detach()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(BF16)
    array: Array = plain.numpy()
    return array


def statistics(module: nn.Module, patterns: Sequence[str] = ()) -> dict[str, StatisticRole]:
    """Which tensors of the module are statistics: its floating-point buffers, and the parameters that ``patterns`` name
    (``tensors.named``). Non-negative are those called ``running_var``, as torch's normalizing layers do. LearnerFailed
    for a pattern that matches nothing."""
    floating = {name: tensor for name, tensor in named_tensors(module).items() if tensor.dtype in FLOATING}
    try:
        said = named(floating, patterns)
    except ManifestMismatch as error:
        raise LearnerFailed(f"The learner's statistics do not fit its model: {error}.") from None
    found: dict[str, StatisticRole] = {}
    for name, tensor in floating.items():
        if name in said or not isinstance(tensor, nn.Parameter):
            found[name] = "non-negative" if name.rpartition(".")[2] == "running_var" else "statistic"
    return found


def sent_names(model: Manifest, planned: Sequence[str], trained: Sequence[str]) -> frozenset[str]:
    """Which tensors of a checkpoint an update holds: the floating-point ones that the plan averages (``planned``
    patterns).

    All of them must be among those that the learner trains (``trained`` patterns), or the device would send
    differences that it never meant to send. Raises CheckpointMismatch, with what to write into the plan.
    """
    return _sent(model, tuple(planned), tuple(trained))


@lru_cache(maxsize=64)
def _sent(model: Manifest, planned: tuple[str, ...], trained: tuple[str, ...]) -> frozenset[str]:
    """The names of the tensors that are sent; cached, as they are equal for every device of a run."""
    try:
        sent = model.select(planned)
    except ManifestMismatch as error:
        raise CheckpointMismatch(f"The plan cannot be trained: {error}.") from None
    try:
        own = named(model.keys(), trained)
    except ManifestMismatch as error:
        raise CheckpointMismatch(f"The learner's averaged does not fit its model: {error}.") from None
    withheld = [name for name in sent if name not in own]
    if withheld:
        raise CheckpointMismatch(
            f"The plan averages {_list(withheld)}, which this learner does not train: "
            f"write averaged = {json.dumps(list(trained))} in the plan's task."
        )
    return frozenset(sent)


def _distinct(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors under their first names, and the first name of every further name."""
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise LearnerFailed(f"{name} in the model's state is a {type(tensor).__name__}: only tensors travel")
        key = _identity(tensor)
        if key in first:
            tied[name] = first[key]
        else:
            first[key] = name
            tensors[name] = tensor
    return tensors, tied


def _identity(tensor: torch.Tensor) -> object:
    """Equal for tensors that are the same numbers in the same memory."""
    if is_lazy(tensor) or tensor.numel() == 0 or tensor.is_meta or hasattr(tensor, "to_local"):
        return id(tensor)  # the last has no memory of its own: it is a part on each rank
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _list(names: Sequence[str], most: int = 3) -> str:
    """At most ``most`` of the names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
