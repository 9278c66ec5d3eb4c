"""The plain values that a learner keeps, by name: those that a training changes are likely where its state is.

Looked at are values (numbers, texts, arrays, torch tensors, and lists, sets and dicts of these) in the learner's own
attributes and those of its class, in the arguments of ``functools.partial``, and of the learner that is a function, of
its methods ``train`` and ``__call__``, and of functions among its attributes: default values, the variables of
enclosing functions, and the global variables that their code names, but for values above 16 MiB. ``checked`` finds
state in any other place too, and cannot name it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np

_LARGEST_BYTES = 1 << 24
"""Larger values of variables are data that a function looks at; to compare them would take longer than to train."""


def state_of(learner: Any) -> dict[str, bytes]:
    """What is compared, in words -> digest of its value."""
    found = {}
    for what, _, value in _values(learner):
        digest = hashlib.blake2b(digest_size=16)
        if value is not None and _added(digest, value):
            found[what] = digest.digest()
    return found


def _values(learner: Any) -> Iterator[tuple[str, str, Any]]:
    """(what it is, name, value) of the learner's attributes, and of the variables that its functions name."""
    while isinstance(learner, partial):
        for place, value in [*enumerate(learner.args, 1), *learner.keywords.items()]:
            yield f"the argument {place} of functools.partial", str(place), value
        learner = learner.func
    for owner in reversed(type(learner).__mro__):
        for name, value in vars(owner).items():
            if not name.startswith("__") and not _is_large(value):
                yield f"the attribute {name!r} of the class {owner.__name__}", name, value
    attributes = getattr(learner, "__dict__", {})
    for name, value in attributes.items():
        yield f"its attribute {name!r}", name, value
    nested = [item for value in attributes.values() if isinstance(value, Mapping) for item in value.values()]
    methods = [getattr(getattr(learner, name, None), "__func__", None) for name in ("train", "__call__")]
    for function in (learner, *methods, *attributes.values(), *nested):
        if isinstance(function, FunctionType):
            yield from _variables(function)


def _variables(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    """The default values of a function, and the variables of enclosing functions and the global ones that its code
    names."""
    code, defaults = function.__code__, function.__defaults__ or ()
    last = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    for name, value in [*zip(last, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]:
        if not _is_large(value):
            yield f"the default value of the argument {name!r} of {function.__name__}", name, value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if not _is_large(value):
            yield f"the variable {name!r} of the function around {function.__name__}", name, value
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        if not _is_large(value := function.__globals__[name]):
            yield f"the global variable {name!r}", name, value


def _names(code: CodeType) -> set[str]:
    """The names that a code, and the functions that are defined in it, look up."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _is_large(value: Any) -> bool:
    return _bytes(value, _LARGEST_BYTES) > _LARGEST_BYTES


def _bytes(value: Any, most: int) -> int:
    """About how many bytes a plain value has. It stops counting above ``most``."""
    if not isinstance(value, dict | list | tuple | set | frozenset):
        size = getattr(value, "nbytes", 8)  # of a class that has it: a descriptor
        return size if isinstance(size, int) else 8
    total = 0
    for item in value.values() if isinstance(value, dict) else value:
        total += _bytes(item, most - total)
        if total > most:
            break
    return total


def _added(digest: Any, value: Any) -> bool:
    """Whether the value is plain; it is then in the digest."""
    if isinstance(value, bool | int | float | complex | str | bytes) or value is None:
        digest.update(repr(value).encode())
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy() if value.layout is torch.strided else None
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return False
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        return True
    items: Any = value.items() if isinstance(value, Mapping) else value
    if isinstance(value, dict | list | tuple | set | frozenset):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        if isinstance(value, set | frozenset):
            items = sorted(value, key=repr)
        plain = [_added(digest, item) for item in items]
        return all(plain)
    return False
