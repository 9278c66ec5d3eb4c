"""A module's build without its numbers, from which empty copies are made: drawing first weights that a checkpoint
overwrites at once would cost a sixth of a small model's training.

Only modules that are certainly nothing but their tensors and plain settings are copied: no hooks, no attributes but
numbers, texts and the like, no closures that might hold on to the module they were made for. Of all others there is no
blueprint, and they are made anew each time. A blueprint takes no memory for what a checkpoint fills.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type(None))

Fresh = Callable[[torch.Tensor], torch.Tensor]
"""Memory like that of a tensor, with whatever numbers are in it."""


def blueprint(module: nn.Module) -> nn.Module | None:
    """The build of ``module``, to be given to ``blank``; None where a copy might not behave as a new one does."""
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
    """A module of this build, on the CPU: parameters and persistent buffers are to be filled by the caller."""
    return _copied(build, {}, partial(_like, device="cpu"))


def _like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _copied(module: nn.Module, memo: dict[int, Any], fresh: Fresh) -> nn.Module:
    """What appears twice in ``module`` appears twice in the copy. ``memo``: what has been copied, by id."""
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
    """Whether the module holds nothing but tensors, modules and settings that cannot change."""
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
        return not value  # hooks, of which there are none
    if type(value) is tuple:
        return all(map(_is_setting, value))
    return type(value) in _PLAIN


def _is_own(tensor: torch.Tensor, storages: set[int]) -> bool:
    """Whether the tensor is an ordinary one that shares its memory with none before."""
    if type(tensor) not in (nn.Parameter, torch.Tensor) or tensor.__dict__ or tensor.grad is not None:
        return False
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.is_leaf:
        return False
    storage = tensor.untyped_storage().data_ptr()
    if storage in storages and tensor.numel():
        return False
    storages.add(storage)
    return True
