"""The data of each client: positions in one pool, or the user's own objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from client_sdk import data as parts
from client_sdk.data import Examples, is_torch_dataset

# ------------------------------------------------------------ pool
# The pool of examples that all clients of a partition share: arrays or a torch dataset.


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
    """A map-style torch dataset; ``take`` returns a ``torch.utils.data.Subset``, so items are made when used; of a list
    of pairs, a list of pairs."""

    def __init__(self, dataset: Any, labels: Indices | None) -> None:
        if not hasattr(dataset, "__len__"):
            raise ValueError("the dataset is a stream of unknown length: give one with a length and items by index")
        self.dataset, self.labels = dataset, labels

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, positions: Indices) -> Any:
        from torch.utils.data import Subset

        from simulation.clients.torch_datasets import ListDataset

        if isinstance(self.dataset, ListDataset):
            return ListDataset([self.dataset[position] for position in positions.tolist()])
        return Subset(self.dataset, positions.tolist())


def as_given(thing: Any) -> Any:
    """A list of pairs (input, target) as a torch Dataset of them (``client_sdk.data.are_pairs``); everything else as it
    is."""
    if not parts.are_pairs(thing):
        return thing
    from simulation.clients.torch_datasets import ListDataset

    return ListDataset(thing)


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


# ------------------------------------------------------------ noise
# Noise on features that grows from client to client, made when a client's data is read.
#
# Li, Diao, Chen, He 2022, arXiv:2102.02079, "noise-based feature imbalance": party i of N adds Gau(sigma * i / N). The
# paper calls that the variance, its authors' code takes such a level as the standard deviation; so does this file.
# The noise of an example is a function of (seed, its position in the data set) times its client's level: held-out or
# training, array or torch dataset, read once or twice, it is the same. Values are not clipped.


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Gaussian noise of standard deviation ``sigma * (number + 1) / clients`` for client ``number``."""

    sigma: float
    clients: int
    seed: int

    def level(self, number: int) -> float:
        """The standard deviation of client ``number``, in the features' own unit."""
        return self.sigma * (number + 1) / self.clients

    def on(self, part: Any, positions: Indices, number: int) -> Any:
        """``part`` with noise; ``positions``: where its examples stand in the data set."""
        if is_torch_dataset(part):
            from simulation.clients.torch_datasets import NoisyDataset

            return NoisyDataset(part, positions, partial(self.add, level=self.level(number)))
        return Examples(self.add(part.x, positions, self.level(number)), part.y)

    def add(self, x: Any, positions: Indices, level: float) -> Any:
        """``x`` [k, ...] plus ``level`` times standard normal draws, in x's own type. Philox: one counter an example,
        so that each can be drawn alone."""
        single = np.float32 if x.dtype.itemsize <= 4 else np.float64
        noise = np.empty(tuple(x.shape), single)
        philox = np.random.Philox(key=np.random.SeedSequence(self.seed, spawn_key=(2,)).generate_state(2, np.uint64))
        generator, start = np.random.Generator(philox), philox.state
        for row, position in enumerate(positions.tolist()):
            start["state"]["counter"] = np.array([0, 0, 0, position], np.uint64)
            philox.state = start
            noise[row] = generator.standard_normal(noise.shape[1:], dtype=single)
        noise *= single(level)
        if isinstance(x, np.ndarray):
            noisy: npt.NDArray[Any] = (x + noise).astype(x.dtype, copy=False)
            return noisy
        return x + x.new_tensor(noise)


def check_features(pool: Pool) -> None:
    """Refuses, with ``ValueError``, examples whose features are not of a floating type. Looks at one item of a torch
    dataset."""
    if isinstance(pool, ArrayPool):
        _check_type(pool.x)
    elif isinstance(pool, TorchPool) and len(pool):
        item = pool.dataset[0]
        _check_type(item[0] if isinstance(item, tuple | list) and len(item) == 2 else item)


def _check_type(x: Any) -> None:
    dtype = getattr(x, "dtype", None)
    if not (getattr(dtype, "is_floating_point", False) or getattr(dtype, "kind", "") == "f"):
        found = type(x).__name__ if dtype is None else f"{dtype}"
        raise ValueError(f"noise needs features of a floating type, not {found}: convert or scale them first")


# ------------------------------------------------------------ holdings


class ClientData:
    """One client's data, in parts. Each part is gathered at the first access, and stays as long as this object.

    A part is ``Examples`` (``.x`` [n, ...] and ``.y`` [n, ...]), a torch Dataset, or the user's own object.
    """

    def __init__(self, train: Callable[[], Any], test: Callable[[], Any] | None = None) -> None:
        self._make_train, self._make_test = train, test

    @cached_property
    def train(self) -> Any:
        """The examples that the client trains on."""
        return self._make_train()

    @cached_property
    def test(self) -> Any | None:
        """The examples that the client holds out; None where there are none."""
        return None if self._make_test is None else self._make_test()

    @property
    def examples(self) -> int:
        """How many examples the client trains on."""
        return _count(self.train)

    def __repr__(self) -> str:
        held_out = "" if self.test is None else f", {_count(self.test):,} held out"
        return f"<ClientData: {_count(self.train):,} to train on{held_out}>"


class Holdings(Protocol):
    """Clients 0, 1, ... and their data."""

    @property
    def at_hand(self) -> bool:
        """Whether it costs little to ask for every client's size: no data is made for it."""

    @property
    def sizes(self) -> Indices:
        """Training examples of each client, [clients]."""

    def examples(self, number: int) -> int:
        """How many training examples a client holds."""

    def held_out(self, number: int) -> int:
        """How many examples a client holds out."""

    def data(self, number: int) -> ClientData:
        """A client's data; nothing is gathered yet."""

    def labels(self, number: int) -> Indices | None:
        """The labels of all examples of a client, int64 [n]; None where there are none."""

    def level(self, number: int) -> float | None:
        """The standard deviation of the noise on a client's features; None without noise."""


class Shares:
    """Clients that share one pool: 8 bytes an example and 8 or 16 a client, however many there are."""

    def __init__(
        self,
        pool: Pool,
        positions: Indices,
        offsets: Indices,
        train_ends: Indices | None = None,
        noise: Noise | None = None,
    ) -> None:
        """``positions`` [n]: client after client, training before held-out; client k's from ``offsets[k]`` (int64
        [clients + 1]) on, its held-out ones from ``train_ends[k]`` on (None: nothing is held out)."""
        self.pool, self.positions, self.offsets, self.noise = pool, positions, offsets, noise
        self._train_ends = offsets[1:] if train_ends is None else train_ends

    @property
    def at_hand(self) -> bool:
        return True

    @property
    def sizes(self) -> Indices:
        return self._train_ends - self.offsets[:-1]

    def examples(self, number: int) -> int:
        return int(self._train_ends[number] - self.offsets[number])

    def held_out(self, number: int) -> int:
        return int(self.offsets[number + 1] - self._train_ends[number])

    def data(self, number: int) -> ClientData:
        start, middle, end = self.offsets[number], self._train_ends[number], self.offsets[number + 1]
        train = partial(self._gather, number, int(start), int(middle))
        return ClientData(train, partial(self._gather, number, int(middle), int(end)) if end > middle else None)

    def labels(self, number: int) -> Indices | None:
        if self.pool.labels is None:
            return None
        return self.pool.labels[self.positions[self.offsets[number] : self.offsets[number + 1]]]

    def level(self, number: int) -> float | None:
        return None if self.noise is None else self.noise.level(number)

    def _gather(self, number: int, start: int, end: int) -> Any:
        positions = self.positions[start:end]
        part = self.pool.take(positions)
        return part if self.noise is None else self.noise.on(part, positions, number)


class Given:
    """Clients as the user gave them: ``values[keys[k]]`` is client k's data. A mapping may be lazy: a value is read
    each time it is needed."""

    def __init__(self, values: Mapping[Any, Any] | Sequence[Any], keys: Sequence[Any]) -> None:
        self._values, self._keys = values, keys

    @property
    def at_hand(self) -> bool:
        return isinstance(self._values, dict | list | tuple)

    @property
    def sizes(self) -> Indices:
        return np.array([self.examples(number) for number in range(len(self._keys))], dtype=np.int64)

    def examples(self, number: int) -> int:
        return _count(self._parts(number)[0])

    def held_out(self, number: int) -> int:
        test = self._parts(number)[1]
        return 0 if test is None else _count(test)

    def data(self, number: int) -> ClientData:
        train, test = self._parts(number)
        return ClientData(partial(_same, train), None if test is None or not _count(test) else partial(_same, test))

    def labels(self, number: int) -> Indices | None:
        found = [labels_of(part) for part in self._parts(number) if part is not None]
        known = [labels for labels in found if labels is not None]
        return np.concatenate(known) if known and len(known) == len(found) else None

    def level(self, number: int) -> float | None:
        return None

    def _parts(self, number: int) -> tuple[Any, Any | None]:
        key = self._keys[number]
        return parts_of(self._values[key], f"client {key!r}")


def parts_of(value: Any, who: str) -> tuple[Any, Any | None]:
    """(training part, held-out part or None) of one client's data. ``ValueError`` for any other object."""
    value = as_given(value)
    if is_torch_dataset(value):
        train, test = value, None
    else:
        train, test = as_given(parts.training_part(value)), as_given(parts.held_out_part(value))
    for part in (train,) if test is None else (train, test):
        pair = isinstance(part, tuple | list) and len(part) == 2 and all(hasattr(side, "__len__") for side in part)
        arrays = hasattr(part, "x") and hasattr(part, "y")
        if not (pair or arrays or (is_torch_dataset(part) and hasattr(part, "__len__"))):
            raise ValueError(
                f"the data of {who} is a {type(part).__name__}; it must be (x, y), an object with .x and .y, a torch "
                "Dataset with a length, a list of pairs, or an object with .train and perhaps .test"
            )
    return train, test


def _count(part: Any) -> int:
    if is_torch_dataset(part):
        return len(part)
    return len(part[0]) if isinstance(part, tuple | list) else len(part.x)


def _same(part: Any) -> Any:
    return part
