"""Exchange 3, MaskedInput: the packed vector, and the description of it that a device signs.

The vector itself is a blob. The signature covers its digest, so a server cannot present it as another device's, or
replace it.
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
