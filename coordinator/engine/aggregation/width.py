"""Holds a rule or a server optimizer of a package against its contract: how wide a block is changes no bit.

A rule sees the updates by blocks of columns. One that looks at whole updates, such as Krum, would choose in each block
anew, and the delta would be no device's: some columns of one device, the rest of another. What is asked again is a
sample of the columns: those of all blocks together, and some alone. Both are other widths than the block's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from client_sdk.chance import labelled, shake_bytes
from client_sdk.tensors import TensorError
from coordinator.engine.aggregation.combining import Columns, Updates, Weights
from coordinator.engine.aggregation.parameters import ExtensionError
from coordinator.engine.aggregation.rules import Vector

_SAMPLE = 4096
"""Columns of a round that are asked for again together, at most."""
_ALONE = 16
"""Columns that are asked for alone, at most; and values of a block of a server optimizer."""
_MADE_ROWS, _MADE_COLUMNS = 33, 33


class WidthProbe:
    """``take`` each block of a round, then ``require``. ``elements`` = 0: nothing is checked."""

    def __init__(self, elements: int) -> None:
        count = min(elements, _SAMPLE)
        self._at = np.linspace(0, elements - 1, count).astype(np.int64) if count else np.empty(0, np.int64)
        self._taken: list[Columns] = []

    def take(self, start: int, columns: Columns) -> None:
        """``columns`` [n, B]: the block that begins at column ``start``, before a rule has seen it."""
        first, last = np.searchsorted(self._at, (start, start + columns.shape[1]))
        if first < last:
            self._taken.append(columns[:, self._at[first:last] - start])

    def require(self, delta: Vector, combine: Callable[[Columns], Vector]) -> None:
        """ExtensionError unless ``combine`` gives the sample, and columns of it, as they stand in ``delta``."""
        if not self._taken:
            return
        columns, wanted = np.concatenate(self._taken, axis=1), delta[self._at]
        alone = np.linspace(0, len(wanted) - 1, min(len(wanted), _ALONE)).astype(np.int64)
        for part in (slice(None), *(slice(at, at + 1) for at in alone)):
            if combine(np.ascontiguousarray(columns[:, part])).tobytes() != wanted[part].tobytes():
                raise ExtensionError(
                    "the aggregation rule of the plan gives other values where a block of columns has another width: "
                    "it looks at whole updates, as Krum does, or adds with sum(), and blocks would be mixed. "
                    'A rule over whole updates says needs = "whole"'
                )


def require_on_made_columns(rows: int, combine: Callable[[Columns], Vector]) -> None:
    """Checks by drawn columns, before a run has any update, that a rule gives the same values for another width of
    block. ExtensionError; a rule that fails on drawn columns is not judged here."""
    columns = _made(min(rows, _MADE_ROWS))
    probe = WidthProbe(_MADE_COLUMNS)
    probe.take(0, columns.copy())
    try:
        delta = combine(columns)
        combine(columns[:, :1].copy())
    except ExtensionError:
        return
    probe.require(delta, combine)


def require_on_made_updates(weights: Weights, combine: Callable[[Updates], Vector]) -> None:
    """Checks by drawn updates, before a run has any, that a rule over whole updates gives the same values for another
    width of block, and for the updates in another order. ExtensionError; a rule that fails on drawn updates is not
    judged here."""
    made = _made(len(weights))
    try:
        delta = combine(Updates.of(made, _MADE_COLUMNS, weights=weights))
    except (ExtensionError, TensorError):
        return
    for turn, width, what in (
        (1, 1, "where a block of columns has another width"),
        (1, 8, "where a block of columns has another width"),
        (-1, _MADE_COLUMNS, "where the updates come in another order"),
    ):
        if combine(Updates.of(made[::turn], width, weights=weights[::turn])).tobytes() != delta.tobytes():
            raise ExtensionError(
                f"the aggregation rule of the plan gives other values {what}: take dot products by gram, norms and "
                "dots, add by Updates.sum, and let no choice depend on the row of an update"
            )


def _made(rows: int) -> Columns:
    """Drawn columns, [rows, 33], of magnitudes from 1e-6 to 1e2."""
    words = np.frombuffer(shake_bytes(labelled("columns", rows), 4 * rows * _MADE_COLUMNS), "<i4").reshape(rows, -1)
    made: Columns = (words * 2.0**-31 * 10.0 ** (words % 9 - 6)).astype(np.float32)
    return made


def sample_of(size: int) -> slice:
    """Some values of a block of a server optimizer, at even distances: fewer than the block has, where it has
    several."""
    return slice(0, size, max(2, -(-size // _ALONE)))
