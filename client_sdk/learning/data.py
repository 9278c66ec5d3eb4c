"""Converts a device's examples to torch batches.

A device may supply ``(x, y)`` as two arrays, an object with ``.x`` and ``.y``, a map-style torch ``Dataset`` or a list
of pairs, or an object with parts: ``.train``, and ``.test`` or ``.held_out``, each one of these. Arrays (numpy, also
memory-mapped ones, or torch) are never copied as a whole: a batch gathers its rows. Inputs of a floating type become
the model's own; integer inputs stay what they are (images of bytes, tokens). Integer targets become int64, torch's
type for indices; float64 targets become float32, except for models of float64.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from client_sdk.data import are_pairs
from client_sdk.learning.errors import DataError, NoExamples


class TensorExamples(Protocol):
    """Examples that can be counted and taken by index."""

    def __len__(self) -> int:
        """How many there are."""

    def take(self, indices: torch.Tensor) -> tuple[Any, Any]:
        """The batch (inputs, targets) at ``indices`` (int64 [k]), in that order."""

    def span(self, start: int, stop: int) -> tuple[Any, Any]:
        """The batch of the examples start..stop-1."""


class ArrayExamples:
    """``x`` and ``y`` held as tensors of shape [examples, ...]."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: torch.Tensor) -> tuple[Any, Any]:
        return self.x.index_select(0, indices), self.y.index_select(0, indices)

    def span(self, start: int, stop: int) -> tuple[Any, Any]:
        return self.x[start:stop].clone(), self.y[start:stop].clone()


class DatasetExamples:
    """A map-style torch dataset, or a list, whose items are pairs (input, target), collated by torch's
    ``default_collate``."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._count = len(dataset)

    def __len__(self) -> int:
        return self._count

    def take(self, indices: torch.Tensor) -> tuple[Any, Any]:
        return self._collate(indices.tolist())

    def span(self, start: int, stop: int) -> tuple[Any, Any]:
        return self._collate(list(range(start, stop)))

    def _collate(self, indices: list[int]) -> tuple[Any, Any]:
        items = [self._dataset[index] for index in indices]
        if not isinstance(items[0], (tuple, list)) or len(items[0]) != 2:
            raise DataError(
                f"The dataset's items must be pairs (input, target), but item {indices[0]} is {_kind(items[0])}."
            )
        try:
            inputs, targets = default_collate(items)
        except (RuntimeError, TypeError, ValueError) as error:
            raise DataError(
                f"The dataset's items cannot make a batch ({_first_line(error)}): they must be of one shape and one "
                "kind; pad what is shorter, or make tensors of all."
            ) from error
        return inputs, targets


def as_examples(data: Any, what: str = "training data") -> TensorExamples:
    """Data of any kind above in one form. Raises DataError, and NoExamples where there are none; ``what`` names the
    data in errors."""
    examples: TensorExamples
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        examples = _arrays(*data.tensors, what)
    elif isinstance(data, Dataset):
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise DataError(
                f"The {what} is a stream of unknown length: use a dataset with a length and items by index."
            )
        examples = DatasetExamples(data)
    elif are_pairs(data):
        examples = DatasetExamples(data)
    elif isinstance(data, (tuple, list)) and len(data) == 2:
        examples = _arrays(data[0], data[1], what)
    elif hasattr(data, "x") and hasattr(data, "y"):
        examples = _arrays(data.x, data.y, what)
    else:
        raise DataError(
            f"The {what} must be (x, y), an object with .x and .y, a torch Dataset or a list of pairs, not "
            f"{_kind(data)}."
        )
    if len(examples) == 0:
        raise NoExamples(f"The {what} holds no example.")
    return examples


def cast(batch: tuple[Any, Any], floating: torch.dtype) -> tuple[Any, Any]:
    """Convert inputs to the model's number type, and targets to the types that losses accept. Inputs that are no tensor
    stay unchanged."""
    inputs, targets = batch
    if isinstance(inputs, torch.Tensor) and inputs.dtype != floating and inputs.is_floating_point():
        inputs = inputs.to(floating)
    if isinstance(targets, torch.Tensor):
        if targets.dtype is torch.float64 and floating != torch.float64:
            targets = targets.float()
        elif targets.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
            targets = targets.long()
    return inputs, targets


def _arrays(x: Any, y: Any, what: str) -> ArrayExamples:
    inputs, targets = _tensor(x, f"x of the {what}"), _tensor(y, f"y of the {what}")
    if len(inputs) != len(targets):
        raise DataError(
            f"The {what} has {len(inputs)} inputs (x) and {len(targets)} targets (y): they must be as many."
        )
    return ArrayExamples(inputs, targets)


def _tensor(array: Any, what: str) -> torch.Tensor:
    """A tensor on the array's own memory where torch can read it."""
    try:
        tensor = array.detach() if isinstance(array, torch.Tensor) else _from_numpy(np.asarray(array))
    except (TypeError, ValueError) as error:
        advice = ": where they are labels, use integers" if what.startswith("y ") else ""
        reason = _first_line(error).split(". The only", 1)[0]
        raise DataError(f"The {what} is no array of numbers ({reason}){advice}.") from error
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        raise DataError(
            f"The {what} is of {str(tensor.dtype)[6:]}, with which torch does not compute: convert it, as by "
            ".astype('int64') of numpy."
        )
    if tensor.ndim == 0:
        raise DataError(f"The {what} is a single number: its first dimension must count the examples.")
    return tensor


def _from_numpy(array: npt.NDArray[Any]) -> torch.Tensor:
    """Shares memory unless bytes are swapped or strides are negative; nothing here writes, so the array may
    be read-only."""
    plain = np.require(array, array.dtype.newbyteorder("="), "C")
    if plain.flags.writeable:
        return torch.from_numpy(plain)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(plain)


def _kind(thing: Any) -> str:
    length = f" of {len(thing)}" if isinstance(thing, (tuple, list)) else ""
    return f"a {type(thing).__name__}{length}"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")
