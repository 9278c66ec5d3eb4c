"""One metric over the versions of the model."""

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
