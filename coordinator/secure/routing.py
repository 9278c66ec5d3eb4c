"""The answers that differ from device to device, the sealed shares of its peers; the digests of shares, with which
revealed ones are compared; and the proof of the survivor list."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.share_digests import DIGESTS_BYTES, share_digests
from client_sdk.secagg.shares import SEALED_BYTES, Bundle
from client_sdk.secagg.statement import DIGEST_BYTES
from client_sdk.secagg.survivors import Proof
from client_sdk.secagg.unmask import RevealedShares


class _Table:
    """Rows of one width by dealer and holder. Memory: 4 bytes a row besides the rows."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: dict[int, tuple[array[int], bytes]] = {}

    def add(self, dealer: int, rows: Iterable[tuple[int, bytes]]) -> None:
        """A dealer's rows, (holder, bytes), ascending by holder."""
        places, pieces = array("I"), []
        for place, piece in rows:
            places.append(place)
            pieces.append(piece)
        self._rows[dealer] = (places, b"".join(pieces))

    @property
    def dealers(self) -> frozenset[int]:
        return frozenset(self._rows)

    def part(self, dealer: int, holder: int, at: int, length: int) -> bytes:
        """So many bytes from there on of the row of a dealer for one of its holders."""
        places, pieces = self._rows[dealer]
        start = bisect_left(places, holder) * self._width + at
        return pieces[start : start + length]


class Deliveries:
    """The bundles of all sharers, transposed: from each dealer's shares for its peers to each peer's shares.

    Memory: the bundles' own (13 MB for 300 devices), however many deliveries are made.
    """

    def __init__(self, cohort: MaskingCohort, bundles: Iterable[Bundle]) -> None:
        """``bundles``: one of each dealer, checked when it arrived (``validation.shared``)."""
        self._cohort = cohort
        self._table = _Table(SEALED_BYTES + DIGESTS_BYTES)
        for bundle in bundles:
            self._table.add(bundle.owner, ((place, sealed + digests) for place, sealed, digests in bundle.rows))

    def to(self, place: int) -> Bundle:
        """The shares that the neighbours of the device at ``place`` sealed for it, of those that shared, with the
        digests that they signed."""
        dealers, found = self._table.dealers, []
        for dealer in self._cohort.graph.neighbours(place):
            if dealer in dealers:
                row = self._table.part(dealer, place, 0, SEALED_BYTES + DIGESTS_BYTES)
                found.append((dealer, row[:SEALED_BYTES], row[SEALED_BYTES:]))
        return Bundle(place, tuple(found))


class DealtShares:
    """The digests of all shares that were dealt, as their dealers signed them: what a revealed share is compared with.

    Memory: 68 bytes a pair (6.1 MB for 300 devices).
    """

    def __init__(self, cohort: MaskingCohort, bundles: Iterable[Bundle]) -> None:
        """``bundles``: as for ``Deliveries``."""
        self._h = cohort.h
        self._table = _Table(DIGESTS_BYTES)
        for bundle in bundles:
            own = [(bundle.owner, bundle.own)] if bundle.own else []
            self._table.add(bundle.owner, sorted([(place, digests) for place, _, digests in bundle.rows] + own))
        self.dealers: frozenset[int] = self._table.dealers
        """The places of the sharers."""

    def wrong(self, revealed: RevealedShares) -> list[int]:
        """The dealers of the revealed shares that are not those that were dealt. Each dealer must have dealt to the
        device that reveals."""
        digests = share_digests(self._h, revealed.place, revealed.shares)
        return [
            dealer
            for (dealer, kind, _), digest in zip(revealed.shares, digests, strict=True)
            if self._table.part(dealer, revealed.place, DIGEST_BYTES * kind, DIGEST_BYTES) != digest
        ]


def proof(signatures: Iterable[tuple[int, bytes]]) -> Proof:
    """The proof of these signatures (place, 64 bytes) of the survivor list, ascending by place."""
    return Proof(tuple(sorted(signatures)))
