"""What a round costs a device, by what the device itself has checked."""

from __future__ import annotations

import math
from functools import lru_cache

from client_sdk.privacy.accounting import rho_of_shares
from client_sdk.secagg.noise import LEAST_SHARE
from client_sdk.secagg.parameters import LARGEST

_VALUES = 1 << 40


@lru_cache(maxsize=64)
def rho_under_masks(noise: float) -> float:
    """The rho that a masked vector costs its device under a header with this ``noise``, whatever becomes of the
    attempt: that of the one sum of its group that can be opened. Infinite where sums have no noise.

    It is the same for every roster that a device accepts, and up to 2^40 values. The sum has sigma^2 = noise^2 norm^2
    at least, in shares of a variance of ``LEAST_SHARE`` or more; the fewer and the larger the shares are, the more it
    is like one discrete Gaussian."""
    if not noise:
        return math.inf
    norm = math.sqrt(LEAST_SHARE * LARGEST) / noise
    return rho_of_shares(norm, LEAST_SHARE, LARGEST, _VALUES)
