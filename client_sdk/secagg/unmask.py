"""Exchange 5, Unmask: one share for each peer, of its self-mask secret where it survived, else of its mask key.

The format has room for one kind of share for each peer, never for both. Errors: BadMessage, BadShare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from struct import calcsize, iter_unpack

from client_sdk.secagg.errors import BadMessage
from client_sdk.secagg.shamir import SHARE_BYTES, require_shares
from client_sdk.secagg.share_digests import MASK_KEY, SELF_MASK
from client_sdk.secagg.shares import SharePair
from client_sdk.secagg.survivors import Survivors
from client_sdk.secagg.wire import WireReader, WireWriter, require_ascending

KIND = 8
SURVIVED, GONE = SELF_MASK, MASK_KEY
"""The kind of share that is revealed of a survivor, and of a device that dropped out."""

_LAYOUT = f">IB{SHARE_BYTES}s"
"""The dealer's place (4 bytes), the kind (1 byte), the share."""
_ROW = calcsize(_LAYOUT)

_SURVIVED = bytes([1]) + bytes(255)
"""Kind -> whether it is SURVIVED."""


@dataclass(frozen=True, repr=False)
class RevealedShares:
    """The shares that one device reveals, once the list is agreed on."""

    place: int
    """The device that reveals."""
    shares: tuple[tuple[int, int, bytes], ...]
    """(place of the dealer, SURVIVED or GONE, 33 bytes), ascending by dealer."""

    @classmethod
    def of(cls, place: int, held: Mapping[int, SharePair], survivors: Survivors) -> RevealedShares:
        """The shares that the device at ``place`` must reveal of the pairs that it holds (dealer's place -> pair), its
        own included where it holds one."""
        shares = []
        for dealer in sorted(held):
            alive = dealer in survivors.members
            share = held[dealer].self_mask if alive else held[dealer].mask_key
            shares.append((dealer, SURVIVED if alive else GONE, share))
        return cls(place, tuple(shares))

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, which the device signs together with h."""
        return WireWriter(KIND).number(self.place, 4).number(len(self.shares), 4).rows(_LAYOUT, self.shares).done()

    @classmethod
    def parse(cls, data: bytes, survivors: Survivors, n: int) -> RevealedShares:
        """Decode the shares of a roster of ``n``. BadMessage also where a kind of share does not fit the list,
        BadShare for a malformed share."""
        read = WireReader(data, KIND, "unmask response")
        place = read.number(4)
        count = read.count(4, _ROW)
        rows = read.fixed(count * _ROW)
        read.end()
        shares = tuple(iter_unpack(_LAYOUT, rows))
        dealers, kinds = [dealer for dealer, _, _ in shares], rows[4::_ROW]
        require_ascending(dealers, "unmask response", n)
        members = survivors.members
        if place not in members:
            raise BadMessage("unmask response: it comes from a device that is not among the survivors")
        survived = kinds.translate(_SURVIVED)
        if not members.issuperset(compress(dealers, survived)) or not members.isdisjoint(compress(dealers, kinds)):
            raise BadMessage("unmask response: a share is of the wrong kind for this list")
        if kinds.strip(b"\0\1"):
            raise BadMessage("unmask response: a kind of share is none")
        if any(rows[5::_ROW]):  # nearly all begin with a zero byte: those are below PRIME
            require_shares([share for _, _, share in shares])
        return cls(place, shares)
