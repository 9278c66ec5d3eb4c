"""The answers that differ from device to device, the sealed shares of its peers; the digests of shares, with which
revealed ones are compared; and the proof of the survivor list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from struct import Struct

from client_sdk.secagg.share_digests import DIGESTS_BYTES, share_digests
from client_sdk.secagg.shares import SEALED_BYTES, Bundle
from client_sdk.secagg.statement import DIGEST_BYTES
from client_sdk.secagg.survivors import Proof
from client_sdk.secagg.unmask import RevealedShares

_DELIVERED = Struct(f">I{SEALED_BYTES}s{DIGESTS_BYTES}s")
"""The place of the dealer, its sealed pair of shares, their digests."""
_DEALT = Struct(f">I{DIGEST_BYTES}s{DIGEST_BYTES}s")
"""The place of the dealer, and the digests of its self-mask share and of its mask-key share."""


class Deliveries:
    """The bundles of all sharers, transposed: from each dealer's shares for its peers to each peer's shares.

    Memory: the bundles' own (14 MB for 300 devices), however many deliveries are made.
    """

    def __init__(self, bundles: Iterable[Bundle]) -> None:
        """``bundles``: one of each dealer, checked when it arrived (``validation.shared``)."""
        self._rows: defaultdict[int, bytearray] = defaultdict(bytearray)
        """By receiver."""
        for bundle in bundles:
            for receiver, sealed, digests in bundle.rows:
                self._rows[receiver] += _DELIVERED.pack(bundle.owner, sealed, digests)

    def to(self, place: int) -> Bundle:
        """The shares that the neighbours of the device at ``place`` sealed for it, of those that shared, with the
        digests that they signed."""
        return Bundle(place, tuple(sorted(_DELIVERED.iter_unpack(self._rows.get(place, b"")))))


class DealtShares:
    """The digests of all shares that were dealt, as their dealers signed them: what a revealed share is compared with.

    Memory: 68 bytes a pair (6 MB for 300 devices).
    """

    def __init__(self, h: bytes, bundles: Iterable[Bundle]) -> None:
        """``h``: what the attempt's messages are bound to; ``bundles``: as for ``Deliveries``."""
        self._h = h
        self._rows: defaultdict[int, bytearray] = defaultdict(bytearray)
        """By holder."""
        dealers = set()
        for bundle in bundles:
            dealers.add(bundle.owner)
            own = [(bundle.owner, b"", bundle.own)] if bundle.own else []
            for holder, _, digests in (*bundle.rows, *own):
                self._rows[holder] += _DEALT.pack(bundle.owner, digests[:DIGEST_BYTES], digests[DIGEST_BYTES:])
        self.dealers = frozenset(dealers)
        """The places of the sharers."""

    def wrong(self, revealed: RevealedShares) -> list[int]:
        """The dealers of the revealed shares that are not those that were dealt. Each dealer must have dealt to the
        device that reveals."""
        dealt = {dealer: kinds for dealer, *kinds in _DEALT.iter_unpack(self._rows.get(revealed.place, b""))}
        digests = share_digests(self._h, revealed.place, revealed.shares)
        return [
            dealer
            for (dealer, kind, _), digest in zip(revealed.shares, digests, strict=True)
            if dealt[dealer][kind] != digest
        ]


def proof(signatures: Iterable[tuple[int, bytes]]) -> Proof:
    """The proof of these signatures (place, 64 bytes) of the survivor list, ascending by place."""
    return Proof(tuple(sorted(signatures)))
