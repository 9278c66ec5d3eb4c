"""Between exchanges 2 and 4: rows that do not open, and how they are settled before a list of survivors is shown.

::

    holder        Complaint     the digests of the rows that do not open, signed over h (stage *complain*)
    coordinator   Accusations   each accused dealer gets the signed complaints, as the answer to what it waits for
    dealer        OpenedPairs   the pairs of shares of exactly those rows, in clear, signed over h (stage *open*)
    coordinator   Settlement    the holder gets each pair that matches its dealer's digests, or that the dealer is out

A dealer opens a pair only where the complaint, which the holder has signed, is of the very row that the dealer dealt.
What an honest dealer seals opens for an honest holder, so such a complaint is wrong, or the row was: one of the two
colludes, and the adversary has that pair already. A complaint of another row proves that the coordinator altered it on
the way: the dealer refuses the attempt, and opens nothing. Errors: BadMessage, Refusal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from struct import calcsize

from client_sdk.secagg.errors import BadMessage, Refusal
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shamir import SHARE_BYTES, require_shares
from client_sdk.secagg.shares import Row, SharePair
from client_sdk.secagg.statement import (
    DIGEST_BYTES,
    DOMAIN,
    SIGNATURE_BYTES,
    WireReader,
    WireWriter,
    require_ascending,
    require_signed,
)

COMPLAINT_KIND = 9
ACCUSATIONS_KIND = 10
OPENED_KIND = 11
SETTLEMENT_KIND = 12

_COMPLAINED = f">I{DIGEST_BYTES}s"
"""The dealer's place, the digest of its row."""
_PAIR = f">I{SHARE_BYTES}s{SHARE_BYTES}s"
"""A place, the self-mask share, the mask-key share."""
COMPLAINED_BYTES = calcsize(_COMPLAINED)
PAIR_BYTES = calcsize(_PAIR)


def row_digest(h: bytes, dealer: int, holder: int, sealed: bytes, digests: bytes) -> bytes:
    """SHA-256(domain, "row digest", h, dealer's place (4 bytes), holder's place (4 bytes), the 82 sealed bytes, the 64
    bytes of digests): what tells a row from every other one."""
    places = dealer.to_bytes(4, "big") + holder.to_bytes(4, "big")
    return hashlib.sha256(DOMAIN + b"row digest" + h + places + sealed + digests).digest()


@dataclass(frozen=True)
class Complaint:
    """The rows that were delivered to one holder and do not open, or are not what their digests say."""

    place: int
    """The holder's."""
    rows: tuple[tuple[int, bytes], ...]
    """(the dealer's place, ``row_digest``), ascending."""

    @classmethod
    def of(cls, h: bytes, holder: int, rows: Iterable[Row]) -> Complaint:
        """The complaint of the holder at this place about these rows of its delivery."""
        return cls(holder, tuple((dealer, row_digest(h, dealer, holder, *rest)) for dealer, *rest in rows))

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, which the holder signs together with h."""
        out = WireWriter(COMPLAINT_KIND).number(self.place, 4).number(len(self.rows), 4)
        return out.rows(_COMPLAINED, self.rows).done()

    @classmethod
    def parse(cls, data: bytes, n: int) -> Complaint:
        """Decode a complaint of a roster of ``n``. BadMessage for malformed bytes."""
        read = WireReader(data, COMPLAINT_KIND, "complaint")
        found = cls(read.number(4), tuple(read.rows(_COMPLAINED, read.count(4, COMPLAINED_BYTES, 1))))
        read.end()
        require_ascending([dealer for dealer, _ in found.rows], "complaint", n)
        if found.place >= n or found.place in dict(found.rows):
            raise BadMessage("complaint: its holder is not in the roster, or complains of itself")
        return found


@dataclass(frozen=True)
class Accusations:
    """Signed complaints that name one dealer, which has not answered them."""

    complaints: tuple[tuple[bytes, bytes], ...]
    """(the complaint's bytes, the holder's signature), ascending by holder."""

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes."""
        out = WireWriter(ACCUSATIONS_KIND).number(len(self.complaints), 4)
        for body, signature in self.complaints:
            out.blob(body).fixed(signature, SIGNATURE_BYTES)
        return out.done()

    @classmethod
    def parse(cls, data: bytes) -> Accusations:
        """Decode accusations. BadMessage for malformed bytes."""
        read = WireReader(data, ACCUSATIONS_KIND, "list of complaints")
        count = read.count(4, 4 + SIGNATURE_BYTES, 1)
        found = cls(tuple((read.blob(), read.fixed(SIGNATURE_BYTES)) for _ in range(count)))
        read.end()
        return found

    def holders(self, cohort: MaskingCohort, dealer: int, dealt: Iterable[Row]) -> tuple[int, ...]:
        """The places of the holders that complain of a row of ``dealt``, what the dealer at this place itself dealt,
        ascending. BadMessage where a holder has not signed its complaint, or does not complain of this dealer. Refusal
        where one complains of another row: somebody altered it between the two."""
        mine = {holder: row_digest(cohort.h, dealer, holder, *rest) for holder, *rest in dealt}
        found = []
        for body, signature in self.complaints:
            complaint = Complaint.parse(body, cohort.n)
            holder, complained = complaint.place, dict(complaint.rows)
            whose = f"device {cohort.device(holder)}"
            require_signed(cohort.identities[holder], signature, cohort.h, "complain", body, whose)
            if dealer not in complained or holder not in mine:
                raise BadMessage(f"a complaint of {whose} is shown to a device of which it does not complain")
            if complained[dealer] != mine[holder]:
                raise Refusal("A peer received other shares than this device dealt: they were altered on the way.")
            found.append(holder)
        require_ascending(found, "list of complaints", cohort.n)
        return tuple(found)


def is_accusation(answer: bytes) -> bool:
    """Whether the coordinator's answer to a message holds complaints against the device, in place of what the device
    waits for."""
    return answer[:1] == bytes([ACCUSATIONS_KIND])


def _pairs(read: WireReader, count: int, what: str, n: int) -> dict[int, SharePair]:
    rows = list(read.rows(_PAIR, count))
    require_ascending([place for place, _, _ in rows], what, n)
    require_shares([share for _, *shares in rows for share in shares])
    return {place: SharePair(self_mask, mask_key) for place, self_mask, mask_key in rows}


def _rows(pairs: dict[int, SharePair]) -> list[tuple[int, bytes, bytes]]:
    return [(place, pairs[place].self_mask, pairs[place].mask_key) for place in sorted(pairs)]


@dataclass(frozen=True, repr=False)
class OpenedPairs:
    """The pairs that a dealer opens, since their holders have complained of its rows."""

    place: int
    """The dealer's."""
    pairs: dict[int, SharePair]
    """By the holder's place."""

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, which the dealer signs together with h."""
        out = WireWriter(OPENED_KIND).number(self.place, 4).number(len(self.pairs), 4)
        return out.rows(_PAIR, _rows(self.pairs)).done()

    @classmethod
    def parse(cls, data: bytes, n: int) -> OpenedPairs:
        """Decode opened pairs of a roster of ``n``. BadMessage for malformed bytes, BadShare for a malformed share."""
        read = WireReader(data, OPENED_KIND, "list of opened shares")
        place = read.number(4)
        found = cls(place, _pairs(read, read.count(4, PAIR_BYTES, 1), "list of opened shares", n))
        read.end()
        return found


@dataclass(frozen=True, repr=False)
class Settlement:
    """How a holder's complaint was settled: of each dealer the opened pair, or the word that it is out of the round."""

    place: int
    """The holder's."""
    pairs: dict[int, SharePair]
    """By the dealer's place."""
    out: tuple[int, ...]
    """The places of the dealers that are out, ascending."""

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes."""
        head = WireWriter(SETTLEMENT_KIND).number(self.place, 4).number(len(self.pairs), 4)
        return (
            head.rows(_PAIR, _rows(self.pairs))
            .number(len(self.out), 4)
            .rows(">I", [(dealer,) for dealer in self.out])
            .done()
        )

    @classmethod
    def parse(cls, data: bytes, n: int) -> Settlement:
        """Decode a settlement of a roster of ``n``. BadMessage for malformed bytes, BadShare for a malformed share."""
        read = WireReader(data, SETTLEMENT_KIND, "settlement of a complaint")
        place = read.number(4)
        pairs = _pairs(read, read.count(4, PAIR_BYTES), "settlement of a complaint", n)
        out = tuple(dealer for (dealer,) in read.rows(">I", read.count(4, 4)))
        read.end()
        require_ascending(out, "settlement of a complaint", n)
        return cls(place, pairs, out)

    def pairs_for(self, h: bytes, complaint: Complaint, delivered: dict[int, Row]) -> dict[int, SharePair]:
        """The pairs that the holder now holds, each compared with the digests of the row that was ``delivered`` (by
        dealer). BadMessage unless each dealer of the complaint is settled, and nobody else; BadShare for another pair
        than the dealer signed the digests of."""
        dealers = [dealer for dealer, _ in complaint.rows]
        if self.place != complaint.place or sorted([*self.pairs, *self.out]) != dealers:
            raise BadMessage("the settlement is not of what this device complained of")
        for dealer, pair in self.pairs.items():
            pair.require_dealt(h, dealer, self.place, delivered[dealer][2])
        return dict(self.pairs)
