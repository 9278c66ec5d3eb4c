"""Pictures of runs for papers and notebooks, by matplotlib's object interface: no pyplot, no display.

========== ==============================================================================
panels     one function for each panel, and their colours, ticks and legends
run_figure the picture of one run, as ``quorate plot`` writes it, and the panel of lanes
========== ==============================================================================

This file needs no matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Curve(NamedTuple):
    """One metric over the versions of the model."""

    versions: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]]) -> Curve:
        """From (version, value), of which there is at least one."""
        versions, values = zip(*points, strict=True)
        return cls(np.array(versions, np.int64), np.array(values, np.float64))
