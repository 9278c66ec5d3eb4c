"""What all devices of an attempt have dealt, by who holds it, and the proof of the survivor list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from struct import Struct

from client_sdk.secagg.shares import DIGESTS_BYTES, SEALED_BYTES, Bundle, share_digests
from client_sdk.secagg.statement import DIGEST_BYTES
from client_sdk.secagg.survivors import Proof, RevealedShares

_ROW = Struct(f">I{SEALED_BYTES}s{DIGESTS_BYTES}s")
"""The place of the dealer, its sealed pair of shares, their digests."""
_DIGESTS = Struct(f">I{SEALED_BYTES}x{DIGEST_BYTES}s{DIGEST_BYTES}s")
"""Reads of such a row all but the pair: the place of the dealer, the digest of the self-mask share, that of the
mask-key share."""
_UNSEALED = bytes(SEALED_BYTES)
"""In place of the pair that a dealer holds itself."""


class DealtShares:
    """The bundles of all sharers, transposed: from each dealer's shares for its peers to each peer's shares. A peer is
    given them, and what it reveals is compared with their digests.

    Memory: the bundles' own (14 MB for 300 devices), however many devices ask.
    """

    def __init__(self, h: bytes, bundles: Iterable[Bundle]) -> None:
        """``h``: what the attempt's messages are bound to; ``bundles``: one of each dealer, checked when it arrived
        (``validation.shared``)."""
        self._h = h
        self._rows: defaultdict[int, bytearray] = defaultdict(bytearray)
        """By holder."""
        dealers = set()
        for bundle in bundles:
            dealers.add(bundle.owner)
            own = [(bundle.owner, _UNSEALED, bundle.own)] if bundle.own else []
            for holder, sealed, digests in (*bundle.rows, *own):
                self._rows[holder] += _ROW.pack(bundle.owner, sealed, digests)
        self.dealers = frozenset(dealers)
        """The places of the sharers."""

    def to(self, place: int) -> Bundle:
        """The shares that the neighbours of the device at ``place`` sealed for it, of those that shared, with the
        digests that they signed."""
        rows = sorted(_ROW.iter_unpack(self._rows.get(place, b"")))
        return Bundle(place, tuple(row for row in rows if row[0] != place))

    def rows_to(self, place: int) -> dict[int, tuple[bytes, bytes]]:
        """What was dealt to the device at ``place``: the dealer's place -> the sealed pair, its digests."""
        return {dealer: (sealed, digests) for dealer, sealed, digests in self.to(place).rows}

    def wrong(self, revealed: RevealedShares) -> list[int]:
        """The dealers of the revealed shares that are not those that were dealt. Each dealer must have dealt to the
        device that reveals."""
        dealt = {dealer: kinds for dealer, *kinds in _DIGESTS.iter_unpack(self._rows.get(revealed.place, b""))}
        digests = share_digests(self._h, revealed.place, revealed.shares)
        return [
            dealer
            for (dealer, kind, _), digest in zip(revealed.shares, digests, strict=True)
            if dealt[dealer][kind] != digest
        ]


def proof(signatures: Iterable[tuple[int, bytes]]) -> Proof:
    """The proof of these signatures (place, 64 bytes) of the survivor list, ascending by place."""
    return Proof(tuple(sorted(signatures)))
