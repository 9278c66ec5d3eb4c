"""A torch dataset whose inputs carry noise, made item by item.

This file knows torch's map-style datasets. It has never heard of clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from simulation.clients.noise import Noise
    from simulation.clients.pool import Indices


class NoisyDataset(Dataset[Any]):
    """``dataset``'s pairs (input, target) with noise of standard deviation ``level`` on the input."""

    def __init__(self, dataset: Any, positions: Indices, noise: Noise, level: float) -> None:
        self._dataset, self._positions, self._noise, self._level = dataset, positions, noise, level

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = self._dataset[index]
        return self._noise.add(x[None], np.atleast_1d(self._positions[index]), self._level)[0], y
