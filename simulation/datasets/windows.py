"""`Windows`: rows that overlap in one text, made when asked for.

This file knows codes and positions. It has never heard of plays, labels or clients.

The 3.2 million samples of Shakespeare, 80 characters each, would fill 257 MB; their text fills 4.
"""

from __future__ import annotations

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
