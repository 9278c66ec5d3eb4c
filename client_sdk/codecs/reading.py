"""A flat vector that is computed piece by piece where it is read. Memory: one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from client_sdk.tensors.floats import Float32

Read = Callable[[int, int], Float32]
"""``read(start, count)``: that many values of a flat vector, 1-d float32. The array may be the reader's own."""


class Pieces:
    """Reads a vector of which piece i, from ``bounds[i]`` to ``bounds[i + 1]``, is ``compute(i)``. The last piece that
    was read is kept, so reading in order computes each piece once."""

    def __init__(self, bounds: Sequence[int], compute: Callable[[int], Float32]) -> None:
        """``bounds`` begins with 0 and rises; it is empty of pieces where the vector is empty."""
        self._bounds = np.asarray(bounds, np.int64)
        self._compute = compute
        self._held, self._piece = -1, np.empty(0, np.float32)

    def read(self, start: int, count: int) -> Float32:
        """See ``Read``. What is returned is overwritten by nobody, and must not be changed."""
        found = []
        while count:
            place = int(np.searchsorted(self._bounds, start, side="right")) - 1
            if place != self._held:
                self._piece, self._held = self._compute(place), place
            part = self._piece[start - int(self._bounds[place]) :][:count]
            found.append(part)
            start, count = start + part.size, count - part.size
        if len(found) == 1:
            return found[0]
        return np.concatenate([np.empty(0, np.float32), *found])
