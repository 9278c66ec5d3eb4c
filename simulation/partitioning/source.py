"""What there is to partition: a data set of any kind, as a pool of examples with labels, users and classes.

This file knows the forms that data comes in. It has never heard of clients or of ways to partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.clients.pool import ArrayPool, Indices, Pool, TorchPool, is_torch_dataset, labels_of
from simulation.partitioning.indices import checked_labels


@dataclass(frozen=True, kw_only=True)
class Source:
    """Examples, and what is known of them."""

    pool: Pool
    users: Any | None
    """Whose example each is, as the data set says it; not yet looked at."""
    user_names: Sequence[str] | None
    """The names of the users 0, 1, ..., where ``users`` are such numbers."""
    classes: Sequence[str] | None
    """The names of the labels 0, 1, ...."""


def source_of(dataset: Any, labels: Any | None = None) -> Source:
    """``dataset`` as examples to deal out; ``labels`` [n] stand in for its own. ``ValueError`` for what is none."""
    part = dataset
    if not is_torch_dataset(dataset) and not _pair(dataset) and not _arrays(dataset):
        part = getattr(dataset, "train", None)
        if not (is_torch_dataset(part) or _pair(part) or _arrays(part)):
            raise ValueError(
                f"a {type(dataset).__name__} cannot be partitioned; a data set is (x, y), an object with .x and .y, "
                "a torch Dataset, or an object whose .train is one of these"
            )
    return Source(
        pool=_pool(part, labels),
        users=_attribute(part, dataset, "users"),
        user_names=_texts(_attribute(part, dataset, "user_names")) or None,
        classes=_texts(_attribute(part, dataset, "classes")),
    )


def user_numbers(users: Any, n: int) -> tuple[Indices, npt.NDArray[Any]]:
    """(the client of each example [n], the users' names in ascending order). Numbers sort as numbers, texts as texts.

    Raises ``ValueError`` for anything but n whole numbers or n texts.
    """
    column = np.asarray(users)
    if column.dtype == object and all(isinstance(user, str) for user in column.ravel()):
        column = column.astype(np.str_)
    if column.ndim != 1 or column.dtype.kind not in "iuU":
        raise ValueError(
            f"users must be whole numbers or texts of shape [n], not {column.dtype} of shape {list(column.shape)}"
        )
    if len(column) != n:
        raise ValueError(f"there are {n} examples and {len(column)} users: say whose each example is")
    names, numbers = np.unique(column, return_inverse=True)
    return numbers.astype(np.int64), names


def _pool(part: Any, labels: Any | None) -> Pool:
    found = labels_of(part) if labels is None else checked_labels(labels)
    pool: Pool
    if is_torch_dataset(part):
        tensors: Any = getattr(part, "tensors", ())
        pool = ArrayPool(tensors[0], tensors[1], found) if len(tensors) == 2 else TorchPool(part, found)
    else:
        x, y = part if _pair(part) else (part.x, part.y)
        pool = ArrayPool(x, y, found)
    if found is not None and len(found) != len(pool):
        raise ValueError(f"there are {len(pool)} examples and {len(found)} labels: they must be as many")
    return pool


def _pair(thing: Any) -> bool:
    return isinstance(thing, tuple | list) and len(thing) == 2


def _arrays(thing: Any) -> bool:
    return hasattr(thing, "x") and hasattr(thing, "y")


def _attribute(part: Any, dataset: Any, name: str) -> Any | None:
    for holder in (part, dataset):
        found = None if isinstance(holder, tuple | list) else getattr(holder, name, None)
        if found is not None and not callable(found):
            return found
    return None


def _texts(found: Any | None) -> Sequence[str] | None:
    return tuple(map(str, found)) if isinstance(found, Sequence) and not isinstance(found, str) else None
