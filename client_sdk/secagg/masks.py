"""Masks: seeds expanded into lanes, added to a vector or subtracted from it.

A mask is the key stream of its 32-byte seed, read as one little-endian word for each lane: 4 bytes for lanes of up to
32 bits, 8 for longer ones. Only the lower b bits of a word count, since sums are reduced to b bits at the end. Both
ends expand a seed in the same way, so a mask that one adds and the other subtracts cancels exactly.

Of two peers, the one with the lower place in the roster adds their common mask and the other subtracts it.

Speed. Key stream and addition go block by block through one buffer that stays in a core's cache: the cost is that of
the cipher and of one addition, and memory beyond the vector is one block.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from client_sdk.secagg.agreement import BLOCK_BYTES, KeyStream, derive
from client_sdk.secagg.errors import BadMessage, BadVector
from client_sdk.secagg.lanes import Lanes, lane_dtype, packed_bytes
from client_sdk.secagg.statement import DIGEST_BYTES, DOMAIN, WireReader, WireWriter

Sign = Literal[1, -1]

_PAIR = DOMAIN + b"pair mask"


class Masker:
    """Adds masks to vectors of one round's lanes. One thread at a time."""

    def __init__(self, bits: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.bits = bits
        self.dtype = lane_dtype(bits)
        self._stream = KeyStream(block_bytes)
        self._words = self._stream.buffer.view(self.dtype)

    def apply(self, vector: Lanes, seed: bytes, sign: Sign, first: int = 0) -> None:
        """Add (or, with -1, subtract) the mask of ``seed`` in place; sums wrap, see ``lanes.cut``. ``first``: the lane
        at which ``vector`` begins, a multiple of 16, where it is a part of a longer one."""
        if vector.dtype != self.dtype or vector.ndim != 1:
            raise BadVector(f"lanes of {self.bits} bits are a flat array of {self.dtype}, not of {vector.dtype}")
        stream, words, width = self._stream, self._words, self.dtype.itemsize
        stream.start(seed, first * width)
        combine = np.add if sign == 1 else np.subtract
        for start in range(0, vector.size, words.size):
            part = vector[start : start + words.size]
            stream.fill(part.size * width)
            combine(part, words[: part.size], part)

    def wipe(self) -> None:
        """Overwrite the key stream that is left in the buffer."""
        self._stream.wipe()


def pair_sign(own: int, peer: int) -> Sign:
    """Whether the device at place ``own`` of the roster adds (1) or subtracts (-1) the mask shared with ``peer``."""
    if own == peer:
        raise BadVector("a device has no mask with itself")
    return 1 if own < peer else -1


def pair_seed(agreed: bytes, h: bytes, one: int, other: int) -> bytes:
    """The seed of the mask of two peers, from the secret that their mask keys agree on: HKDF with salt h and both
    places, the lower first."""
    low, high = (one, other) if one < other else (other, one)
    return derive(agreed, salt=h, info=_PAIR + low.to_bytes(4, "big") + high.to_bytes(4, "big"))


def self_seed(secret: bytes, h: bytes, place: int) -> bytes:
    """The seed of a device's own mask, from the secret that it committed to when it advertised."""
    return derive(secret, salt=h, info=DOMAIN + b"self mask" + place.to_bytes(4, "big"))


# ------------------------------------------------------------ masked
# Exchange 3, MaskedInput: the packed vector, and the description of it that a device signs.
#
# The vector itself is a blob. The signature covers its digest, so a server cannot present it as another device's, or
# replace it.


KIND = 5


@dataclass(frozen=True)
class MaskedInput:
    """The description of a device's masked vector."""

    place: int
    lanes: int
    lane_bits: int
    digest: bytes
    """SHA-256 of the packed lanes."""

    @classmethod
    def of(cls, place: int, lanes: int, lane_bits: int, packed: bytes) -> MaskedInput:
        """The description of these packed lanes. BadMessage where their length is wrong."""
        if len(packed) != packed_bytes(lanes, lane_bits):
            raise BadMessage(f"{lanes} lanes of {lane_bits} bits are not {len(packed)} bytes")
        return cls(place, lanes, lane_bits, hashlib.sha256(packed).digest())

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, which the device signs together with h."""
        out = WireWriter(KIND).number(self.place, 4).number(self.lanes, 8).number(self.lane_bits, 1)
        return out.fixed(self.digest, DIGEST_BYTES).done()

    @classmethod
    def parse(cls, data: bytes) -> MaskedInput:
        """Decode a description. BadMessage for malformed bytes."""
        read = WireReader(data, KIND, "masked input")
        found = cls(read.number(4), read.number(8), read.number(1), read.fixed(DIGEST_BYTES))
        read.end()
        return found
