"""A random rotation of a flat vector, block by block, which spreads large coordinates over their block.

Each block x of 2^k values becomes H D x / sqrt(2^k): D has random signs on its diagonal, H is the Walsh-Hadamard matrix
(``transform``). That is the rotation of Suresh et al. 2017 (arXiv:1611.00429, section 3). It keeps norms. Whatever the
block was, a coordinate of it is then as a normal deviate of standard deviation norm / sqrt(2^k), or less far out:
beyond c times that with chance at most 2 exp(-c^2 / 2). So few bits a value are enough.

Blocks have ``BLOCK`` values, or in a shorter vector the largest power of two that fits. The values after the last whole
block are not padded: one more block is rotated that ends where the vector ends, and so overlaps the last whole one.
The length stays the same, the map stays orthogonal, and it is undone in the opposite order.

The signs of block i are the bits of SHAKE256 of the labelled (seed, i), the lowest bit of each byte first; a 1 changes
the sign.
"""

from __future__ import annotations

import numpy as np

from client_sdk.chance import labelled, shake_bytes
from client_sdk.codecs.port import Pieces, Read
from client_sdk.tensors.floats import Float32

BLOCK = 1 << 16
"""Values of a block: a power of two, of which float32 values stay in a core's cache."""


def rotate(values: Float32, seed: bytes, block: int = BLOCK) -> None:
    """Rotate ``values`` (1-d float32, contiguous) in place. ``block``: a power of two."""
    starts, size = _blocks(values.size, block)
    scratch = np.empty(size, np.float32)
    for place, start in enumerate(starts):
        part = values[start : start + size]
        _change_signs(part, seed, place)
        transform(part, scratch)


def rotated_back(read: Read, count: int, seed: bytes, block: int = BLOCK) -> Pieces:
    """The vector of ``count`` values of which ``read`` reads the rotated ones. Memory: a few blocks."""
    starts, size = _blocks(count, block)
    whole = count // size if size else 0
    scratch = np.empty(size, np.float32)

    def undone(place: int) -> Float32:
        start = starts[place]
        last = place == whole - 1
        piece = np.array(read(start, count - start if last else size))
        for other in reversed(range(place, len(starts) if last else place + 1)):
            part = piece[starts[other] - start :][:size]
            transform(part, scratch)
            _change_signs(part, seed, other)
        return piece

    return Pieces([*starts[:whole], count], undone)


def _blocks(count: int, block: int) -> tuple[list[int], int]:
    """(where each block begins, values of a block)."""
    if not count:
        return [], 0
    size = min(block, 1 << (count.bit_length() - 1))
    starts = list(range(0, count - size + 1, size))
    if count % size:
        starts.append(count - size)
    return starts, size


def _change_signs(part: Float32, seed: bytes, place: int) -> None:
    drawn = shake_bytes(labelled("rotation", seed.hex(), place), -(-part.size // 8))
    bits = np.unpackbits(np.frombuffer(drawn, np.uint8), count=part.size, bitorder="little")
    words = part.view(np.uint32)
    words ^= bits.astype(np.uint32) << np.uint32(31)


# ------------------------------------------------------------ the Walsh-Hadamard transform
# Of a block of 2^k values, orthonormal and in place: x <- H x / sqrt(2^k).
#
# H is Sylvester's matrix, H[i, j] = (-1)^(number of ones in i & j). H / sqrt(2^k) is its own inverse. The fast
# transform has k stages, each of which replaces pairs (a, b) by (a + b, a - b). Every operation is one float32
# addition, subtraction or multiplication of single values in a fixed order, so the bits are the same on every machine.
# There is no product of matrices here, because libraries add up its terms in an order of their own.
#
# Speed: the block is seen as a matrix of 2^floor(k/2) rows. The stages of the high half of the index run along its
# columns; then it is transposed, so that those of the low half do so too, and all loops run over contiguous memory.


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
