"""Noise on features that grows from client to client, made when a client's data is read.

Li, Diao, Chen, He 2022, arXiv:2102.02079, "noise-based feature imbalance": party i of N adds Gau(sigma * i / N). The
paper calls that the variance, its authors' code takes such a level as the standard deviation; so does this file.
The noise of an example is a function of (seed, its position in the data set) times its client's level: held-out or
training, array or torch dataset, read once or twice, it is the same. Values are not clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from client_sdk.data import Examples
from simulation.clients.pool import ArrayPool, Indices, Pool, TorchPool, is_torch_dataset


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
