"""How long the messages of devices may be: known from the roster before a byte of them is read.

Of *mask* the length is exact. The others have these as upper bounds, since their lengths vary with who shared.
"""

from __future__ import annotations

from typing import Literal, assert_never

from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import packed_bytes
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.share_digests import DIGESTS_BYTES
from client_sdk.secagg.shares import SEALED_BYTES
from coordinator.engine.secure.state import SecureRound

_HEAD = 512
"""Bytes of a message without its rows."""
_ROW = 16
"""Bytes of a row beside what is named below."""


def most_advertised() -> int:
    """Bytes of an advertisement: keys, a commitment, a nonce and the device's id."""
    return _HEAD


def most_bytes(
    stage: Literal["share", "mask", "survivors", "unmask"], secure: SecureRound, header: AttemptHeader
) -> int:
    """Bytes of the longest body of this stage for the roster of ``secure``."""
    n = len(secure.order)
    holders = secure.neighbours or n
    match stage:
        case "share":
            return _HEAD + holders * (_ROW + SEALED_BYTES + DIGESTS_BYTES)
        case "mask":
            return packed_bytes(header.lanes, header.lane_bits(n))
        case "survivors":
            return _HEAD + n * _ROW
        case "unmask":
            return _HEAD + holders * (_ROW + SHARE_BYTES)
        case _:
            assert_never(stage)
