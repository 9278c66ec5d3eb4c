"""A round's step in few bits, which makes the difference of two checkpoints short
(``client_sdk.tensors.checkpoint_delta``): the next model is its parent and whole multiples of a power of two, one for
each block of values.

With x a value's step and s the block's power of two, the multiple is n = floor(x / s + u), u uniform on [0, 1): its
expectation is x / s, so that of n s is x. s is the least power of two for which all |x| are below 2^(bits - 1) s.
The step of the next round begins at the model as it was committed, so errors do not add up: a model is off by the
rounding of its last steps, as by the noise of a batch.
"""

from __future__ import annotations

import numpy as np

from client_sdk.chance import labelled, shake_bytes
from client_sdk.codecs.stochastic8 import uniform
from client_sdk.tensors import Float32


def coarse(before: Float32, after: Float32, bits: int, seed: bytes, place: int) -> Float32:
    """The block ``after``, whose steps from ``before`` have so many bits, with their signs. ``place``: where the block
    begins, which draws apart. The operations are of single values, so the bits are the same on every machine."""
    step = after.astype(np.float64) - before
    largest = float(np.abs(step).max(initial=0.0))
    if not 0 < largest < np.inf:
        return after
    exponent = int(np.frexp(largest)[1]) - (bits - 1)
    key = np.frombuffer(shake_bytes(labelled("coarse step", seed.hex(), place), 16), "<u8").astype(np.uint64)
    whole = np.floor(np.ldexp(step, -exponent) + uniform(np.random.Philox(key=key), step.size))
    found: Float32 = (before + np.ldexp(whole, exponent)).astype(np.float32)
    return found
