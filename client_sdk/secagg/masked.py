"""Exchange 3, MaskedInput: the packed vector, and the few bytes about it that a device signs.

Knows lengths and a digest. Has never heard of masks. The vector itself is a blob; the signature stands over its digest,
so a server cannot show it under another device's name, or show another in its place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from client_sdk.secagg.errors import BadMessage
from client_sdk.secagg.lanes import packed_bytes
from client_sdk.secagg.statement import DIGEST_BYTES
from client_sdk.secagg.wire import WireReader, WireWriter

KIND = 5


@dataclass(frozen=True)
class MaskedInput:
    """What a device says of its masked vector."""

    place: int
    lanes: int
    lane_bits: int
    digest: bytes
    """SHA-256 of the packed lanes."""

    @classmethod
    def of(cls, place: int, lanes: int, lane_bits: int, packed: bytes) -> MaskedInput:
        """About these packed lanes. BadMessage where their length is another."""
        if len(packed) != packed_bytes(lanes, lane_bits):
            raise BadMessage(f"{lanes} lanes of {lane_bits} bits are not {len(packed)} bytes")
        return cls(place, lanes, lane_bits, hashlib.sha256(packed).digest())

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes: what is signed over h."""
        out = WireWriter(KIND).number(self.place, 4).number(self.lanes, 8).number(self.lane_bits, 1)
        return out.fixed(self.digest, DIGEST_BYTES).done()

    @classmethod
    def parse(cls, data: bytes) -> MaskedInput:
        """What these bytes say. BadMessage otherwise."""
        read = WireReader(data, KIND, "masked input")
        found = cls(read.number(4), read.number(8), read.number(1), read.fixed(DIGEST_BYTES))
        read.end()
        return found
