"""The mean from a sum of lanes, as a coordinator computes it block by block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from client_sdk.secagg.lanes import Lanes
from client_sdk.secagg.quantize import Quantizer


def mean_of_sum(quantizer: Quantizer, total: Lanes, survivors: int) -> tuple[npt.NDArray[np.float64], int]:
    """The mean of all values in a sum of lanes, and the survivors' total weight. BadVector as ``require_possible``."""
    weight = quantizer.require_possible(total, survivors)
    return quantizer.mean_of(total[: -quantizer.extra_lanes], survivors, weight), weight
