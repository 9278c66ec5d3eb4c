"""`Dataset` and `Examples`: plain numpy, whatever the source.

This file knows shapes and types. It has never heard of files, networks, clients or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Examples:
    """`n` inputs with their labels, in a fixed order.

    Raises `ValueError` when the two arrays do not belong together.
    """

    x: npt.NDArray[np.float32]
    """Inputs, `[n, ...]`, scaled to [0, 1]. Images of one channel are `[n, height, width]`."""

    y: npt.NDArray[np.int64]
    """Labels, `[n]`: positions in `Dataset.classes`."""

    def __post_init__(self) -> None:
        if self.x.dtype != np.float32 or self.x.ndim < 1:
            raise ValueError(f"x must be float32 of shape [n, ...], not {self.x.dtype} of shape {list(self.x.shape)}")
        if self.y.dtype != np.int64 or self.y.ndim != 1:
            raise ValueError(f"y must be int64 of shape [n], not {self.y.dtype} of shape {list(self.y.shape)}")
        if len(self.x) != len(self.y):
            raise ValueError(f"x holds {len(self.x)} examples and y {len(self.y)}: they must agree")

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
        return Examples(self.x[chosen], self.y[chosen])


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

    def __post_init__(self) -> None:
        for part, examples in (("train", self.train), ("test", self.test)):
            if len(examples) and not (examples.y.min() >= 0 and examples.y.max() < len(self.classes)):
                low, high = examples.y.min(), examples.y.max()
                raise ValueError(f"{part} labels run from {low} to {high}; there are {len(self.classes)} classes")
