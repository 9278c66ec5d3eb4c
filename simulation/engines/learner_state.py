"""Finds a learner that remembers something from one training to the next.

Each process of the engine ``processes`` has its own copy of the learner, so what a client's training leaves behind in
it is found or not found by the next one, depending on which process trains it: results would be wrong without a word.

What is compared before and after a training are plain values (numbers, texts, arrays, torch tensors, and lists, sets
and dicts of these) in three places:

- the learner's own attributes (``vars(learner)``), and those of its class;
- the arguments of ``functools.partial``;
- of the learner that is a function, of its methods ``train`` and ``__call__``, and of functions among its attributes (a
  loss, a metric): their default values, the variables of enclosing functions, and the global variables that their code
  names, but for values above 16 MiB.

Three things are no state: what is made on first use (missing or None before), what has ``cache`` in its name, and
objects of any other class, such as a torch module, whose gradients change. Not found is what a function reaches only
through another function, an object or another module.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np

_TRAININGS = 3
"""Trainings that are watched in each process: state that clients leave behind changes with each of them."""
_LARGEST_BYTES = 1 << 24
"""Larger values of variables are data that a function looks at; to compare them would take longer than to train."""


class RemembersClients(Exception):
    """The learner changed one of its own attributes, or a variable of its functions, while it trained."""


class LearnerState:
    """``check`` after each training."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self._left = _TRAININGS
        self._before = _state(learner)

    def check(self) -> None:
        """RemembersClients where something has changed since the last call, or since this object was made."""
        if not self._left:
            return
        self._left -= 1
        after = _state(self._learner)
        for what, mark in after.items():
            if what in self._before and self._before[what] != mark:
                raise RemembersClients(
                    f"The learner changed {what} while it trained. In the engine 'processes' each "
                    "process has its own copy of the learner, so what a client leaves behind would reach some of its "
                    'later trainings and not others: use engine="serial", or put "cache" in the name where it is one.'
                )
        self._before = after


def _state(learner: Any) -> dict[str, bytes]:
    """What is compared, in words -> digest of its value."""
    found = {}
    for what, name, value in _values(learner):
        digest = hashlib.blake2b(digest_size=16)
        if value is not None and "cache" not in name.lower() and _added(digest, value):
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
