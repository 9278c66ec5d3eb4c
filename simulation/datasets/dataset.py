"""`Dataset` and `Examples`: plain numpy, whatever the source.

This file knows shapes, types and whose an example is. It has never heard of files, networks or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.datasets.natural import NaturalClients
from simulation.datasets.windows import Windows


@dataclass(frozen=True, eq=False)
class Examples:
    """`n` inputs with their labels, in a fixed order.

    Raises `ValueError` when the two arrays do not belong together.
    """

    x: npt.NDArray[Any] | Windows
    """Inputs, `[n, ...]`: float32, or uint8 for codes of characters. Images of one channel are `[n, height, width]`,
    scaled to [0, 1]. `Windows` stand for an array whose rows are made when asked for."""

    y: npt.NDArray[np.int64] | Windows
    """Labels, `[n]`: positions in `Dataset.classes`. As `Windows`, one label for each of a row's characters."""

    users: npt.NDArray[np.int32] | None = None
    """Whose each example is, `[n]`: positions in `Dataset.user_names`. `None` where the data has no users."""

    def __post_init__(self) -> None:
        if self.x.dtype not in (np.float32, np.uint8) or self.x.ndim < 1:
            raise ValueError(
                f"x must be float32 (or uint8) of shape [n, ...], not {self.x.dtype} of shape {list(self.x.shape)}"
            )
        if not isinstance(self.y, Windows) and (self.y.dtype != np.int64 or self.y.ndim != 1):
            raise ValueError(f"y must be int64 of shape [n], not {self.y.dtype} of shape {list(self.y.shape)}")
        if len(self.x) != len(self.y):
            raise ValueError(f"x holds {len(self.x)} examples and y {len(self.y)}: they must agree")
        if self.users is not None and self.users.shape != (len(self.y),):
            raise ValueError(f"users are of shape {list(self.users.shape)} and y holds {len(self.y)}: they must agree")

    @classmethod
    def from_pixels(cls, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]) -> Examples:
        """Scale 8-bit pixels to [0, 1] by x / 255, in float32 (every quotient is the nearest float32)."""
        if pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be uint8, not {pixels.dtype}")
        x = pixels.astype(np.float32)
        x /= np.float32(255)
        return cls(x, labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> Examples:
        """The examples at `indices` (`[k]`, each in 0..n-1), in that order, as copies.

        Raises `IndexError` for an index outside, `ValueError` for anything that is not a list of integers.
        """
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or (chosen.size and not np.issubdtype(chosen.dtype, np.integer)):
            raise ValueError(f"indices must be a list of integers, not {chosen.dtype} of shape {list(chosen.shape)}")
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"indices run from {chosen.min()} to {chosen.max()}; there are {len(self)} examples")
        chosen = chosen.astype(np.int64)
        return self._at(chosen)

    def span(self, start: int, stop: int) -> Examples:
        """The examples start..stop-1, as views where the data is arrays."""
        return self._at(slice(start, stop))

    def _at(self, where: slice | npt.NDArray[np.int64]) -> Examples:
        users = None if self.users is None else self.users[where]
        y = self.y.at(where) if isinstance(self.y, Windows) else self.y[where]
        x = self.x.at(where) if isinstance(self.x, Windows) else self.x[where]
        return Examples(x, y, users)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set, split once and for all into train and test.

    Raises `ValueError` when a label has no class.
    """

    name: str
    """The registry's name, such as `fashion-mnist`."""

    train: Examples
    """What clients hold, after `simulation.partition`."""

    test: Examples
    """Held out: the evaluator's, never a client's."""

    classes: tuple[str, ...]
    """The name of each label; `len(classes)` is the number of outputs that a classifier needs."""

    licence: str
    """Under which terms the data may be used; shown when it is first fetched."""

    citation: str
    """What to cite; shown when it is first fetched."""

    user_names: tuple[str, ...] = ()
    """The name of each user, fit to be a client's id: `hamlet.horatio`. Empty where the data has no users."""

    def __post_init__(self) -> None:
        for part, examples in (("train", self.train), ("test", self.test)):
            low, high = _range(examples.y)
            if not (low >= 0 and high < len(self.classes)):
                raise ValueError(f"{part} labels run from {low} to {high}; there are {len(self.classes)} classes")
            low, high = _range(examples.users)
            if not (low >= 0 and high < max(1, len(self.user_names))):
                raise ValueError(f"{part} users run from {low} to {high}; there are {len(self.user_names)} names")

    def clients(self, min_examples: int = 2) -> NaturalClients:
        """The natural clients: user's name -> what this user has of `train` and `test`, made when asked for.

        Users with fewer than `min_examples` training examples (from 1) are left out. `test` is `None` where a user
        has nothing held out. Raises `ValueError` where the data has no users.
        """
        if self.train.users is None:
            raise ValueError(f"{self.name} has no users: simulation.partition splits it among clients")
        return NaturalClients(self.train, self.test, self.user_names, min_examples)


def _range(codes: npt.NDArray[Any] | Windows | None) -> tuple[int, int]:
    """The lowest and the highest code; (0, 0) where there are none."""
    if isinstance(codes, Windows):
        return codes.range()
    return (0, 0) if codes is None or not len(codes) else (int(codes.min()), int(codes.max()))
