"""Finds a learner that remembers something from one training to the next.

Each process of the engine ``processes`` has its own copy of the learner, so what a client's training leaves behind in
it is found or not found by the next one, depending on which process trains it: results would be wrong without a word.

What is compared before and after a training are the learner's own attributes (``vars(learner)``) with plain values:
numbers, texts, arrays, torch tensors, and lists, sets and dicts of these. Three things are no state: an attribute that
is made on first use (missing or None before), one whose name contains ``cache``, and objects of any other class, such
as a torch module, whose gradients change. State outside the object (a global, a closure, another object) is not found.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

_TRAININGS = 3
"""Trainings that are watched in each process: state that clients leave behind changes with each of them."""


class RemembersClients(Exception):
    """The learner changed one of its own attributes while it trained."""


class LearnerState:
    """``check`` after each training."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self._left = _TRAININGS
        self._before = _attributes(learner)

    def check(self) -> None:
        """RemembersClients where an attribute has changed since the last call, or since this object was made."""
        if not self._left:
            return
        self._left -= 1
        after = _attributes(self._learner)
        for name, mark in after.items():
            if name in self._before and self._before[name] != mark:
                raise RemembersClients(
                    f"The learner changed its attribute {name!r} while it trained. In the engine 'processes' each "
                    "process has its own copy of the learner, so what a client leaves behind would reach some of its "
                    'later trainings and not others: use engine="serial", or put "cache" in the name of an attribute '
                    "that is one."
                )
        self._before = after


def _attributes(learner: Any) -> dict[str, bytes]:
    """Attribute -> digest of its value, for those that are compared."""
    found = {}
    for name, value in getattr(learner, "__dict__", {}).items():
        digest = hashlib.blake2b(digest_size=16)
        if value is not None and "cache" not in name.lower() and _added(digest, value):
            found[name] = digest.digest()
    return found


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
