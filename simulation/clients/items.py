"""A list of pairs (input, target) as a torch dataset.

This file knows torch's map-style datasets. It has never heard of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset


class Items(Dataset[Any]):
    """``items``: pairs (input, target). They are not copied."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]
