"""A random mask of coordinates that all devices of a round share: only those that are drawn are sent.

Konecny et al. 2016 (arXiv:1610.05492, section 2, "random mask"). The paper draws a mask for each device; here it is one
for all, so that the masked values of a round can be added. Coordinates that are not drawn have a delta of 0. Those that
are drawn come back as they were, so one round moves a part of the model by its mean, the next round another part, and
the expectation over draws is only that part of the delta; or *unbiased*, times (length of the stretch) / (values drawn
of it), the inverse of the probability of being drawn, so that the expectation is the delta itself.

Each stretch of ``STRETCH`` coordinates has the same part drawn, ceil(length / one_in), so the number of values that are
sent is known beforehand. Of a stretch those coordinates are drawn that have the smallest words; where words are equal,
the lower coordinates. Word j of stretch i is four bytes from byte 4 j on, little endian, of SHAKE256 of the labelled
(seed, i).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from client_sdk.chance import labelled, shake_bytes
from client_sdk.codecs.reading import Pieces, Read
from client_sdk.tensors.floats import Float32

STRETCH = 1 << 16


def sampled_count(elements: int, one_in: int) -> int:
    """How many of ``elements`` coordinates are drawn."""
    whole, rest = divmod(elements, STRETCH)
    return whole * _part(STRETCH, one_in) + _part(rest, one_in)


def sampled(flat: Float32, one_in: int, seed: bytes) -> Float32:
    """The drawn values of ``flat`` (1-d float32), in the order of their coordinates: a new array."""
    found = [
        flat[start : start + STRETCH][_drawn(min(STRETCH, flat.size - start), one_in, seed, place)]
        for place, start in enumerate(range(0, flat.size, STRETCH))
    ]
    return np.concatenate([np.empty(0, np.float32), *found])


def spread_out(read: Read, elements: int, one_in: int, seed: bytes, *, unbiased: bool = False) -> Pieces:
    """The vector of ``elements`` values of which ``read`` reads the drawn ones; the others are 0. ``unbiased``: the
    drawn ones are scaled up in float32."""

    def filled(place: int) -> Float32:
        size = min(STRETCH, elements - place * STRETCH)
        piece = np.zeros(size, np.float32)
        values = read(place * _part(STRETCH, one_in), _part(size, one_in))
        piece[_drawn(size, one_in, seed, place)] = values * np.float32(size / values.size) if unbiased else values
        return piece

    return Pieces([*range(0, elements, STRETCH), elements], filled)


def _part(size: int, one_in: int) -> int:
    return -(-size // one_in)


def _drawn(size: int, one_in: int, seed: bytes, place: int) -> npt.NDArray[np.bool_]:
    """Which coordinates of a stretch are drawn."""
    count = _part(size, one_in)
    words = np.frombuffer(shake_bytes(labelled("sampled coordinates", seed.hex(), place), 4 * size), "<u4")
    highest = np.partition(words, count - 1)[count - 1]
    drawn: npt.NDArray[np.bool_] = words < highest
    equal = np.flatnonzero(words == highest)
    drawn[equal[: count - int(np.count_nonzero(drawn))]] = True
    return drawn
