"""How near a model is to those into whose sums a device has put an update.

A device keeps of each a *sketch* (Charikar et al. 2002, doi 10.1007/3-540-45465-9_59): each parameter is added, with a
random sign, to one of 64 sums. The L2 norm of the difference of two sketches estimates that of the models: the square
is unbiased, with a relative standard deviation of at most sqrt(2 / 64); the sketches of equal parameters are equal.
Buckets and signs are a key stream of the device's secret, so nobody can make a model that looks far and is near.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from client_sdk.secagg.agreement import KeyStream, derive
from client_sdk.secagg.statement import DOMAIN

_BUCKETS = 64
_SIGN = np.uint8(64)
_BLOCK = 1 << 16
KIND_BYTES = 8
SKETCH_BYTES = KIND_BYTES + 4 * _BUCKETS


def sketch_of(parameters: Iterable[NDArray[np.floating]], kind: bytes, secret: bytes) -> bytes:
    """The sketch of a model's parameters, in their order, ``SKETCH_BYTES`` long. ``kind`` (8 bytes) tells models of
    other tensors apart; ``secret``: the device's."""
    stream, sums = KeyStream(_BLOCK), np.zeros(_BUCKETS)
    stream.start(derive(secret, salt=b"", info=DOMAIN + b"sketch"))
    for array in parameters:
        flat = array.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            values = flat[start : start + _BLOCK].astype(np.float64)
            drawn = stream.take(values.size)
            np.negative(values, out=values, where=(drawn & _SIGN).astype(bool))
            sums += np.bincount(drawn % _BUCKETS, weights=values, minlength=_BUCKETS)
    with np.errstate(over="ignore"):  # infinity is near to all
        return kind + sums.astype("<f4").tobytes()


def distance(one: bytes, other: bytes, *, unmeasured: float = 0.0) -> float:
    """The estimated L2 distance of two models by their sketches; infinity where they have other tensors. ``unmeasured``
    where a sketch holds infinity or NaN: by default 0, since nothing then says that the models are far apart."""
    if one[:KIND_BYTES] != other[:KIND_BYTES]:
        return float("inf")
    a, b = (np.frombuffer(sketch[KIND_BYTES:], "<f4").astype(np.float64) for sketch in (one, other))
    return float(np.linalg.norm(a - b)) if np.isfinite(a).all() and np.isfinite(b).all() else unmeasured
