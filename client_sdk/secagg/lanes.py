"""Vectors of b-bit integers (lanes): the bits that a sum needs, packing into bytes, and addition modulo 2^b.

Lane i is bits i*b ... i*b + b - 1 of the bytes, read as one little-endian number. The bits after the last lane are
zero, so equal lanes have equal bytes. In memory a lane is a uint32 (b <= 32) or a uint64: both wrap modulo a multiple
of 2^b, so sums may wrap and are reduced to b bits once, at the end. Errors: BadVector, BadParameters.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, cast

import numpy as np

from client_sdk.secagg.errors import BadParameters, BadVector

Lanes = np.ndarray[tuple[int], np.dtype[Any]]
"""1-d, uint32 or uint64: see ``lane_dtype``."""

BITS_LIMIT = 48

_GROUPS = 1 << 15
"""Groups of 8 lanes processed at once: their scratch memory is at most 2 MiB."""

_SUM_GROUPS = 1 << 14
"""Groups of 8 lanes added at once in sums of vectors. Measured: half as many are 15 % slower, twice as many are
not faster."""


def lane_bits(n: int, q: int, noise: int = 0, largest: int = 0) -> int:
    """Bits that hold the sum of ``n`` values of ``q`` bits each: ceil(log2(n * (2^q - 1) + 1)); 25 for 300 of 16.
    ``noise``: how far below or above that it may be. ``largest``: of a value that has more bits than ``q``."""
    if n < 1 or q < 1:
        raise BadParameters(f"{n} values of {q} bits have no sum")
    bits = (n * max((1 << q) - 1, largest) + 2 * noise).bit_length()
    if bits > BITS_LIMIT:
        what = f"{q} bits with noise of up to {noise:,}" if noise else f"{q} bits"
        raise BadParameters(f"the sum of {n} values of {what} needs {bits} bits a lane; at most {BITS_LIMIT} fit")
    return bits


def lane_dtype(bits: int) -> np.dtype[Any]:
    """The dtype of lanes of ``bits`` bits in memory."""
    if not 1 <= bits <= BITS_LIMIT:
        raise BadParameters(f"a lane has from 1 to {BITS_LIMIT} bits, not {bits}")
    return np.dtype("<u4") if bits <= 32 else np.dtype("<u8")


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of ``count`` packed lanes."""
    return (count * bits + 7) // 8


def cut(lanes: Lanes, bits: int) -> None:
    """Take every lane modulo 2^bits, in place."""
    np.bitwise_and(lanes, lanes.dtype.type((1 << bits) - 1), out=lanes)


def pack(lanes: Lanes, bits: int) -> bytes:
    """The lanes, tightly packed. BadVector where one does not fit into ``bits``: ``cut`` a wrapped sum first.

    Eight lanes fill ``bits`` whole bytes, so lane 8 g + i begins ``g * bits`` bytes after lane i. Each of the eight is
    shifted and or-ed into all groups at once, through a view with a stride of ``bits`` bytes.
    """
    if lanes.dtype != lane_dtype(bits) or lanes.ndim != 1:
        raise BadVector(f"lanes of {bits} bits are a flat array of {lane_dtype(bits)}, not of {lanes.dtype}")
    if lanes.size and int(lanes.max()) >> bits:
        raise BadVector(f"a lane does not fit into {bits} bits")
    word = _word(bits)
    packed = BytesIO(bytes(-(-lanes.size // 8) * bits + word.itemsize))  # getvalue() makes no copy
    out = packed.getbuffer()
    for place in range(8):
        column = lanes[place::8]
        offset, shift = divmod(place * bits, 8)
        for first in range(0, column.size, _GROUPS):
            piece = column[first : first + _GROUPS].astype(word)
            piece <<= word.type(shift)
            view = np.ndarray(piece.shape, word, out, first * bits + offset, (bits,))
            view |= piece
            del view  # a buffer with a view cannot be truncated
    out.release()
    packed.truncate(packed_bytes(lanes.size, bits))
    return packed.getvalue()


def unpack(packed: bytes | memoryview, count: int, bits: int) -> Lanes:
    """The ``count`` lanes of these bytes: a new array. BadVector for another length, or where bits after the last lane
    are not zero."""
    _require_packed(packed, count, bits)
    lanes = np.empty(count, lane_dtype(bits))
    word = _word(bits)
    groups = -(-count // 8)
    for first in range(0, groups, _GROUPS):
        here = min(_GROUPS, groups - first)
        source, base = _padded(packed, first * bits, here * bits + word.itemsize)
        for place in range(8):
            offset, shift = divmod(place * bits, 8)
            target = lanes[8 * first + place : 8 * (first + here) : 8]
            view = np.ndarray(target.shape, word, source, base + offset, (bits,))
            target[:] = view >> word.type(shift)
    cut(lanes, bits)
    return cast("Lanes", lanes)


class LaneSum:
    """The sum of packed vectors, reduced modulo 2^bits only at the end.

    Lane 8 g + i is in row i, column g: the eight lanes of each group are added to eight contiguous rows. Bits above a
    lane are added too, since the end's reduction drops them. Memory: the sum, and a copy when ``total`` is called.
    """

    def __init__(self, count: int, bits: int) -> None:
        """``count`` lanes of ``bits``."""
        self.count, self.bits = count, bits
        self._rows = np.zeros((8, -(-count // 8)), lane_dtype(bits))
        self._scratch = np.empty(min(_SUM_GROUPS, self._rows.shape[1]), _word(bits))
        self._tail = bytearray(self._scratch.size * bits + self._scratch.itemsize)

    def add(self, packed: bytes | bytearray | memoryview) -> None:
        """Add one vector. BadVector, with nothing added, for another length or bits after the last lane."""
        _require_packed(packed, self.count, self.bits)
        bits, word = self.bits, self._scratch.dtype
        groups = self._rows.shape[1]
        for first in range(0, groups, _SUM_GROUPS):
            here = min(_SUM_GROUPS, groups - first)
            source, base = self._readable(packed, first * bits, here * bits + word.itemsize)
            scratch = self._scratch[:here]
            for place in range(8):
                offset, shift = divmod(place * bits, 8)
                np.copyto(scratch, np.ndarray((here,), word, source, base + offset, (bits,)))
                if shift:
                    np.right_shift(scratch, word.type(shift), out=scratch)
                row = self._rows[place, first : first + here]
                np.add(row, scratch, out=row, casting="unsafe")

    def _readable(self, packed: bytes | bytearray | memoryview, start: int, length: int) -> tuple[Any, int]:
        """(bytes, offset) where ``length`` bytes from ``start`` on can be read; bytes past the end are undefined."""
        if start + length <= len(packed):
            return packed, start
        rest = memoryview(packed)[start:]
        self._tail[: len(rest)] = rest
        return self._tail, 0

    def total(self) -> Lanes:
        """The sum modulo 2^bits: a new array."""
        lanes = self._rows.T.flatten()[: self.count]
        cut(lanes, self.bits)
        return cast("Lanes", lanes)


def _require_packed(packed: bytes | bytearray | memoryview, count: int, bits: int) -> None:
    wanted = packed_bytes(count, bits)
    if len(packed) != wanted:
        raise BadVector(f"{count} lanes of {bits} bits are {wanted} bytes, not {len(packed)}")
    if (count * bits) % 8 and packed[-1] >> ((count * bits) % 8):
        raise BadVector("the bits behind the last lane are not zero")


def _padded(
    packed: bytes | bytearray | memoryview, start: int, length: int
) -> tuple[bytes | bytearray | memoryview, int]:
    """(bytes, offset) where ``length`` bytes of ``packed`` from ``start`` on can be read, zeros after its end."""
    if start + length <= len(packed):
        return packed, start
    return bytes(packed[start:]).ljust(length, b"\0"), 0


def _word(bits: int) -> np.dtype[Any]:
    """The shortest word that holds a lane shifted by up to 7 bits. It is never longer than ``bits`` bytes, so the
    words of different groups do not overlap."""
    return np.dtype("u1" if bits == 1 else "<u2" if bits <= 9 else "<u4" if bits <= 25 else "<u8")
