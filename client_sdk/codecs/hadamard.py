"""The Walsh-Hadamard transform of a block of 2^k values, orthonormal and in place: x <- H x / sqrt(2^k).

H is Sylvester's matrix, H[i, j] = (-1)^(number of ones in i & j). H / sqrt(2^k) is its own inverse. The fast transform
has k stages, each of which replaces pairs (a, b) by (a + b, a - b). Every operation is one float32 addition,
subtraction or multiplication of single values in a fixed order, so the bits are the same on every machine. There is no
product of matrices here, because libraries add up its terms in an order of their own.

Speed: the block is seen as a matrix of 2^floor(k/2) rows. The stages of the high half of the index run along its
columns; then it is transposed, so that those of the low half do so too, and all loops run over contiguous memory.
"""

from __future__ import annotations

import numpy as np

from client_sdk.tensors.floats import Float32


def transform(values: Float32, scratch: Float32) -> None:
    """Replace ``values`` (1-d float32, contiguous, a power of two long) by H values / sqrt(length). ``scratch``: of the
    same shape, overwritten.

    The values are multiplied by 1 / sqrt(length) first, so that nothing below 1e33 overflows in a block of 2^16.
    """
    size = values.size
    rows = 1 << ((size.bit_length() - 1) // 2)
    columns = size // rows
    values *= np.float32(size**-0.5)
    _stages(values, scratch, columns)
    scratch.reshape(columns, rows)[:] = values.reshape(rows, columns).T
    _stages(scratch, values, rows)
    values.reshape(rows, columns)[:] = scratch.reshape(columns, rows).T


def _stages(values: Float32, scratch: Float32, first: int) -> None:
    """The stages with distances ``first``, twice ``first`` and so on within pairs. The result is in ``values``."""
    source, target, distance = values, scratch, first
    while distance < values.size:
        pairs, found = source.reshape(-1, 2, distance), target.reshape(-1, 2, distance)
        np.add(pairs[:, 0], pairs[:, 1], out=found[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=found[:, 1])
        source, target = target, source
        distance *= 2
    if source is not values:
        values[:] = source
