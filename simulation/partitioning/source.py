"""Converts a data set of any kind to a pool of examples with labels, users and classes, for a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.clients.pool import (
    ArrayPool,
    Indices,
    Pool,
    TorchPool,
    as_given,
    is_torch_dataset,
    labels_of,
    labels_of_items,
)
from simulation.partitioning.indices import checked_labels


@dataclass(frozen=True, kw_only=True)
class Source:
    """Examples, with their labels, users and classes where these are known."""

    pool: Pool
    users: Any | None
    """The user of each example, as the data set has it; not yet checked."""
    user_names: Sequence[str] | None
    """The names of the users 0, 1, ..., where ``users`` are such numbers."""
    classes: Sequence[str] | None
    """The names of the labels 0, 1, ...."""


def source_of(dataset: Any, labels: Any | None = None, *, by_labels: bool = False) -> Source:
    """``dataset`` as examples to partition; ``labels`` [n] replace its own. ``by_labels``: labels are needed, so that a
    torch dataset without an attribute for them is read once. ``ValueError`` for an object that is no data set, or that
    has no labels where they are needed."""
    part = as_given(dataset)
    if not _is_part(part):
        part = as_given(getattr(dataset, "train", None))
        if not _is_part(part):
            raise ValueError(
                f"a {type(dataset).__name__} cannot be partitioned{_fix(dataset)}; a data set is (x, y), an object "
                "with .x and .y, a torch Dataset, a list of pairs, or an object whose .train is one of these"
            )
    return Source(
        pool=_pool(part, labels, by_labels=by_labels),
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


def _pool(part: Any, labels: Any | None, *, by_labels: bool) -> Pool:
    found = labels_of(part) if labels is None else checked_labels(labels)
    pool: Pool
    if is_torch_dataset(part):
        tensors: Any = getattr(part, "tensors", ())
        pool = ArrayPool(tensors[0], tensors[1], found) if len(tensors) == 2 else TorchPool(part, found)
        if by_labels and pool.labels is None and isinstance(pool, TorchPool):
            found = pool.labels = labels_of_items(part)
    else:
        x, y = part if _pair(part) else (part.x, part.y)
        pool = ArrayPool(x, y, found)
    if found is not None and len(found) != len(pool):
        raise ValueError(f"there are {len(pool)} examples and {len(found)} labels: they must be as many")
    if by_labels and found is None and len(pool):
        raise ValueError(f"labels are needed to deal by them, integers [n]: {_instead(pool)}; labels= can give others")
    return pool


def _instead(pool: Pool) -> str:
    """A phrase for the error: what the data has instead of labels."""
    if isinstance(pool, ArrayPool):
        return f"y is {pool.y.dtype} of shape {list(pool.y.shape)}"
    item = pool.take(np.zeros(1, np.int64))[0]
    if not _pair(item):
        return f"an item is a {type(item).__name__}, not a pair (input, target)"
    return f"an item's target is a {type(item[1]).__name__}, not a whole number"


def _fix(dataset: Any) -> str:
    """How to make a data set of an object that is often mistaken for one; empty for other objects."""
    if isinstance(dataset, Mapping):
        keys = [repr(key) for key in list(dataset)[:2]]
        return f": give two of its columns, (d[{keys[0]}], d[{keys[1]}])" if len(keys) == 2 else ""
    if is_torch_dataset(getattr(dataset, "dataset", None)):
        return ": give its .dataset"
    item = None
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and not isinstance(dataset, str | bytes):
        with suppress(Exception):
            item = dataset[0]
    if isinstance(item, Mapping) and len(item) > 1:
        keys = [repr(key) for key in list(item)[:2]]
        return f", its items are dicts: make pairs of them, [(d[{keys[0]}], d[{keys[1]}]) for d in dataset]"
    return ""


def _is_part(thing: Any) -> bool:
    return is_torch_dataset(thing) or _pair(thing) or _arrays(thing)


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
