"""`Examples`: inputs with their labels and users, in plain numpy; `Windows`: rows that overlap in one text.

The 3.2 million samples of Shakespeare, 80 characters each, would fill 257 MB as rows; their text fills 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


class Windows:
    """Stands for an array `[n, width]` of uint8 whose row i is `text[starts[i] : starts[i] + width]`.

    Indexing gives plain arrays, as copies; so does `numpy.asarray`, which makes all rows. `at` gives fewer windows of
    the same text, without making rows. Raises `ValueError` for windows that reach beyond the text.
    """

    dtype = np.dtype(np.uint8)
    ndim = 2

    def __init__(self, text: npt.NDArray[np.uint8], starts: npt.NDArray[np.integer], width: int) -> None:
        if text.dtype != np.uint8 or text.ndim != 1 or starts.ndim != 1 or width < 1:
            raise ValueError(
                f"windows need a text of uint8 codes [characters], starts [n] and a width, not {text.dtype}"
            )
        if len(starts) and not (starts.min() >= 0 and starts.max() + width <= len(text)):
            raise ValueError(f"windows of {width} reach beyond the text of {len(text)} characters")
        self._text, self._starts, self.width = text, starts, width

    @property
    def shape(self) -> tuple[int, int]:
        """(windows, width)"""
        return len(self._starts), self.width

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, where: Any) -> npt.NDArray[np.uint8]:
        """Rows, by a number, a slice, or an array of numbers or truths."""
        starts = np.asarray(self._starts[where], dtype=np.int64)
        rows: npt.NDArray[np.uint8] = self._text[starts[..., None] + np.arange(self.width)]
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("windows become an array only by copying")
        return self[:] if dtype is None else self[:].astype(dtype)

    def at(self, where: slice | npt.NDArray[np.integer]) -> Windows:
        """The windows at a slice or an array of numbers, still not made."""
        return Windows(self._text, self._starts[where], self.width)

    def range(self) -> tuple[int, int]:
        """The lowest and the highest code in the whole text; (0, 0) where it is empty."""
        return (int(self._text.min()), int(self._text.max())) if len(self._text) else (0, 0)


@dataclass(frozen=True, eq=False)
class LabelledExamples:
    """`n` inputs with their labels, in a fixed order.

    Raises `ValueError` when the arrays have different lengths or wrong types.
    """

    x: npt.NDArray[Any] | Windows
    """Inputs, `[n, ...]`: float32, or uint8 for codes of characters. Images of one channel are `[n, height, width]`,
    scaled to [0, 1]. `Windows` stand for an array whose rows are made at each access."""

    y: npt.NDArray[np.int64] | Windows
    """Labels, `[n]`: positions in `Dataset.classes`. As `Windows`, one label for each of a row's characters."""

    users: npt.NDArray[np.int32] | None = None
    """The user of each example, `[n]`: positions in `Dataset.user_names`. `None` where the data has no users."""

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
    def from_pixels(cls, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]) -> LabelledExamples:
        """Scale 8-bit pixels to [0, 1] by x / 255, in float32 (every quotient is the nearest float32)."""
        if pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be uint8, not {pixels.dtype}")
        x = pixels.astype(np.float32)
        x /= np.float32(255)
        return cls(x, labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> LabelledExamples:
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

    def span(self, start: int, stop: int) -> LabelledExamples:
        """The examples start..stop-1, as views where the data is arrays."""
        return self._at(slice(start, stop))

    def _at(self, where: slice | npt.NDArray[np.int64]) -> LabelledExamples:
        users = None if self.users is None else self.users[where]
        y = self.y.at(where) if isinstance(self.y, Windows) else self.y[where]
        x = self.x.at(where) if isinstance(self.x, Windows) else self.x[where]
        return LabelledExamples(x, y, users)
