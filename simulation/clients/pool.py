"""The pool of examples that all clients of a partition share: arrays or a torch dataset.

Torch is not imported here. If nothing else has imported it, no object can be a torch dataset.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from client_sdk.data import Examples

Indices = npt.NDArray[np.int64]


class Pool(Protocol):
    """Examples that can be taken by position."""

    labels: Indices | None
    """Integers [n], or None where there are none: then no method can use labels, and pictures have none."""

    def __len__(self) -> int:
        """How many there are."""

    def take(self, positions: Indices) -> Any:
        """The examples at ``positions``, in that order: ``Examples`` or a torch Dataset."""


class ArrayPool:
    """``x`` and ``y`` [n, ...]: numpy arrays (also memory-mapped), torch tensors, or objects that are indexed like
    an array and may make rows at each access; ``take`` copies rows."""

    def __init__(self, x: Any, y: Any, labels: Indices | None) -> None:
        self.x, self.y, self.labels = _array(x), _array(y), labels
        for name, values in (("x", self.x), ("y", self.y)):
            if values.ndim == 0:
                raise ValueError(f"{name} is a single number: its first dimension must count the examples")
        if len(self.x) != len(self.y):
            raise ValueError(f"there are {len(self.x)} inputs (x) and {len(self.y)} targets (y): they must be as many")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, positions: Indices) -> Examples:
        return Examples(_rows(self.x, positions), _rows(self.y, positions))


class TorchPool:
    """A map-style torch dataset; ``take`` returns a ``torch.utils.data.Subset``, so items are made when used."""

    def __init__(self, dataset: Any, labels: Indices | None) -> None:
        if not hasattr(dataset, "__len__"):
            raise ValueError("the dataset is a stream of unknown length: give one with a length and items by index")
        self.dataset, self.labels = dataset, labels

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, positions: Indices) -> Any:
        from torch.utils.data import Subset

        return Subset(self.dataset, positions.tolist())


def as_given(thing: Any) -> Any:
    """A list of pairs (input, target) as a torch Dataset of them; everything else as it is.

    ``[x, y]`` is such a list only where both are tuples of two: else it is inputs and targets.
    """
    if not isinstance(thing, list) or not thing:
        return thing
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in thing):
        return thing
    if len(thing) == 2 and not all(isinstance(item, tuple) for item in thing):
        return thing
    from simulation.clients.torch_datasets import ListDataset

    return ListDataset(thing)


def is_torch_dataset(thing: Any) -> bool:
    """Whether ``thing`` is a torch Dataset."""
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(thing, module.Dataset)


def labels_of(part: Any) -> Indices | None:
    """The labels of examples of any kind that clients may hold: int64 [n], or None where there are none.

    A torch dataset has them in ``.targets`` or ``.labels``; subsets and concatenations use those of their parts.
    """
    if is_torch_dataset(part):
        return _dataset_labels(part)
    if isinstance(part, tuple | list) and len(part) == 2:
        return as_labels(part[1])
    return as_labels(getattr(part, "y", None))


def labels_of_items(dataset: Any) -> Indices | None:
    """The targets of a dataset's items, each looked at once: int64 [n]; None where one of them is no whole number.

    For datasets without an attribute for labels. Errors of the dataset pass through.
    """
    found = np.empty(len(dataset), np.int64)
    for position in range(len(found)):
        item = dataset[position]
        target = item[1] if isinstance(item, tuple | list) and len(item) == 2 else None
        label = None if target is None else as_labels([target])
        if label is None:
            return None
        found[position] = label[0]
    return found


def as_labels(values: Any) -> Indices | None:
    """Integers [n] as int64; None for anything else."""
    if values is None or callable(values):
        return None
    try:
        array = _array(values)
        if array.ndim != 1:
            return None
        array = np.asarray(array)
    except (TypeError, ValueError, RuntimeError):
        return None
    if not (np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_):
        return None
    return array.astype(np.int64, copy=False)


def _dataset_labels(dataset: Any) -> Indices | None:
    from torch.utils.data import ConcatDataset, Subset, TensorDataset

    if isinstance(dataset, Subset):
        whole = labels_of(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        parts = [labels_of(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if known and len(known) == len(parts) else None
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return as_labels(dataset.tensors[1])
    found = as_labels(getattr(dataset, "targets", None))
    return found if found is not None else as_labels(getattr(dataset, "labels", None))


def _rows(values: Any, positions: Indices) -> Any:
    return values.take(positions, axis=0) if type(values) is np.ndarray else values[positions]


def _array(values: Any) -> Any:
    """A torch tensor is detached, an object like an array stays as it is; anything else becomes a numpy array."""
    if hasattr(values, "detach"):
        return values.detach()
    like = all(hasattr(values, name) for name in ("dtype", "ndim", "shape", "__len__", "__getitem__"))
    return values if like and not isinstance(values, np.ndarray) else np.asarray(values)
