"""Torch datasets: a list of pairs, and pairs whose inputs carry noise. Imported only for torch data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset


class ListDataset(Dataset[Any]):
    """``items``: pairs (input, target). They are not copied."""

    holds_its_items = True
    """A learner's private copy of this has copies of all items (``client_sdk.isolation.private``)."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


class NoisyDataset(Dataset[Any]):
    """``dataset``'s pairs (input, target); ``add(x, positions)`` adds the noise to inputs x [k, ...], item by item."""

    def __init__(
        self, dataset: Any, positions: npt.NDArray[np.int64], add: Callable[[Any, npt.NDArray[np.int64]], Any]
    ) -> None:
        self._dataset, self._positions, self._add = dataset, positions, add

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = self._dataset[index]
        return self._add(x[None], np.atleast_1d(self._positions[index]))[0], y
