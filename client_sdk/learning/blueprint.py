"""Copies the structure of a module without its values: drawing first weights that a checkpoint overwrites at once would
cost a sixth of a small model's training.

Only modules that consist of tensors and plain settings are copied: no hooks, only attributes such as numbers and
strings, no closures that might refer to the original module. All others have no blueprint and are built anew each time.
A blueprint allocates no memory for the tensors that a checkpoint fills.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type(None))

Fresh = Callable[[torch.Tensor], torch.Tensor]
"""Allocates uninitialised memory like that of a tensor."""


def blueprint(module: nn.Module) -> nn.Module | None:
    """The structure of ``module``, for ``blank``; None where a copy might not behave as a new module does."""
    seen: set[int] = set()
    storages: set[int] = set()
    if not all(_is_plain(part) for part in module.modules()):
        return None
    for tensor in [*module.parameters(), *module.buffers()]:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not _is_own(tensor, storages):
            return None
    return _copied(module, {}, partial(_like, device="meta"))


def blank(build: nn.Module) -> nn.Module:
    """A module of this structure, on the CPU: the caller must fill parameters and persistent buffers."""
    return _copied(build, {}, partial(_like, device="cpu"))


def _like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _copied(module: nn.Module, memo: dict[int, Any], fresh: Fresh) -> nn.Module:
    """A copy in which shared parts of ``module`` are shared too. ``memo``: the parts copied so far, by id."""
    if id(module) in memo:
        known: nn.Module = memo[id(module)]
        return known
    copy = memo[id(module)] = object.__new__(type(module))
    passing: set[str] = module.__dict__["_non_persistent_buffers_set"]
    for name, value in module.__dict__.items():
        if name == "_parameters":
            value = {key: _parameter(own, memo, fresh) for key, own in value.items()}
        elif name == "_buffers":
            value = {key: _buffer(own, memo, torch.clone if key in passing else fresh) for key, own in value.items()}
        elif name == "_modules":
            value = {key: None if part is None else _copied(part, memo, fresh) for key, part in value.items()}
        elif name == "_non_persistent_buffers_set":
            value = set(value)
        elif isinstance(value, dict):
            value = type(value)()
        copy.__dict__[name] = value
    return copy


def _parameter(own: nn.Parameter | None, memo: dict[int, Any], fresh: Fresh) -> nn.Parameter | None:
    if own is not None and id(own) not in memo:
        memo[id(own)] = nn.Parameter(fresh(own.detach()), own.requires_grad)
    return None if own is None else memo[id(own)]


def _buffer(own: torch.Tensor | None, memo: dict[int, Any], fresh: Fresh) -> torch.Tensor | None:
    if own is not None and id(own) not in memo:
        memo[id(own)] = fresh(own)
    return None if own is None else memo[id(own)]


def _is_plain(module: nn.Module) -> bool:
    """Whether the module holds only tensors, modules and immutable settings."""
    if any(vars(kind).get("__slots__") for kind in type(module).__mro__):
        return False
    for name, value in module.__dict__.items():
        if name in ("_parameters", "_buffers", "_modules"):
            if type(value) is not dict:
                return False
        elif name != "_non_persistent_buffers_set" and not _is_setting(value):
            return False
    return True


def _is_setting(value: Any) -> bool:
    if isinstance(value, dict):
        return not value  # only empty dictionaries, as those of hooks
    if type(value) is tuple:
        return all(map(_is_setting, value))
    return type(value) in _PLAIN


def _is_own(tensor: torch.Tensor, storages: set[int]) -> bool:
    """Whether the tensor is an ordinary one that shares no memory with an earlier one."""
    if type(tensor) not in (nn.Parameter, torch.Tensor) or tensor.__dict__ or tensor.grad is not None:
        return False
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.is_leaf:
        return False
    storage = tensor.untyped_storage().data_ptr()
    if storage in storages and tensor.numel():
        return False
    storages.add(storage)
    return True
