"""Exchange 4, ConsistencyCheck: the list of survivors, and the proof that enough others signed the same list.

A device reveals nothing until t of the holders of its shares, and *signers* of the whole roster, have signed the same
list as it did, over its own h: no second list can get as many, and in a ring they are all but those that may drop out
(``parameters``). Errors: BadMessage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from struct import calcsize, iter_unpack

from client_sdk.secagg.errors import BadMessage, BadSignature
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shamir import SHARE_BYTES, require_shares
from client_sdk.secagg.shares import MASK_KEY, SELF_MASK, SharePair
from client_sdk.secagg.statement import SIGNATURE_BYTES, WireReader, WireWriter, require_ascending, require_signed

KIND = 6
PROOF_KIND = 7
_ROW = f">I{SIGNATURE_BYTES}s"
"""Of a proof: the place (4 bytes) of who has signed, the signature."""


@dataclass(frozen=True)
class Survivors:
    """The devices whose masked vectors are in the sum: places in ascending order."""

    places: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def members(self) -> frozenset[int]:
        """The places as a set."""
        return frozenset(self.places)

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, which survivors sign together with h."""
        places = [(place,) for place in self.places]
        return WireWriter(KIND).number(len(places), 4).rows(">I", places).done()

    @classmethod
    def parse(cls, data: bytes, n: int) -> Survivors:
        """Decode a list of a roster of ``n``. BadMessage for malformed bytes."""
        read = WireReader(data, KIND, "survivor list")
        count = read.count(4, 4, 1)
        found = cls(tuple(place for (place,) in read.rows(">I", count)))
        read.end()
        require_ascending(found.places, "survivor list", n)
        return found

    def require_enough(self, cohort: MaskingCohort) -> None:
        """Raise BadMessage where the list is shorter than the header allows a device to sign."""
        if len(self) < cohort.fewest_survivors:
            raise BadMessage(f"{len(self)} survivors are too few: it takes {cohort.fewest_survivors}")


@dataclass(frozen=True)
class Proof:
    """Survivors' signatures of one list."""

    signatures: tuple[tuple[int, bytes], ...]
    """(place, 64 bytes), ascending."""

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes."""
        return WireWriter(PROOF_KIND).number(len(self.signatures), 4).rows(_ROW, self.signatures).done()

    @classmethod
    def parse(cls, data: bytes, n: int) -> Proof:
        """Decode a proof of a roster of ``n``. BadMessage for malformed bytes."""
        read = WireReader(data, PROOF_KIND, "proof of survivors")
        count = read.count(4, 4 + SIGNATURE_BYTES)
        found = cls(tuple(read.rows(_ROW, count)))
        read.end()
        require_ascending(tuple(place for place, _ in found.signatures), "proof of survivors", n)
        return found

    def require(self, cohort: MaskingCohort, place: int, survivors: Survivors) -> None:
        """Raise BadMessage unless, over this device's h, ``survivors`` is signed by t holders of the shares of the
        device at ``place``, and by ``signers`` of the whole roster.

        Only valid signatures of survivors count; others are ignored. Stops when there are enough.
        """
        wanted = cohort.parameters
        holders = set(cohort.graph.holders(place))
        near = total = 0
        for signer, signature in sorted(self.signatures, key=lambda item: item[0] not in holders):
            if near >= wanted.threshold and total >= wanted.signers:
                return
            if signer in survivors.members and _signed(cohort, signer, signature, survivors):
                near += signer in holders
                total += 1
        if near < wanted.threshold:
            raise BadMessage(f"{near} of this device's share holders signed the list; it takes {wanted.threshold}")
        if total < wanted.signers:
            raise BadMessage(f"{total} of the roster signed the list; it takes {wanted.signers}")


def _signed(cohort: MaskingCohort, signer: int, signature: bytes, survivors: Survivors) -> bool:
    whose = f"device {cohort.device(signer)}"
    try:
        require_signed(cohort.identities[signer], signature, cohort.h, "survivors", survivors.encoded, whose)
    except BadSignature:
        return False
    return True


# ------------------------------------------------------------ unmask
# Exchange 5, Unmask: one share for each peer, of its self-mask secret where it survived, else of its mask key.
#
# The format has room for one kind of share for each peer, never for both. Errors: BadMessage, BadShare.


UNMASK_KIND = 8
SURVIVED, GONE = SELF_MASK, MASK_KEY
"""The kind of share that is revealed of a survivor, and of a device that dropped out."""

_LAYOUT = f">IB{SHARE_BYTES}s"
"""The dealer's place (4 bytes), the kind (1 byte), the share."""
_SHARE_ROW = calcsize(_LAYOUT)

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
        return (
            WireWriter(UNMASK_KIND).number(self.place, 4).number(len(self.shares), 4).rows(_LAYOUT, self.shares).done()
        )

    @classmethod
    def parse(cls, data: bytes, survivors: Survivors, n: int) -> RevealedShares:
        """Decode the shares of a roster of ``n``. BadMessage also where a kind of share does not fit the list,
        BadShare for a malformed share."""
        read = WireReader(data, UNMASK_KIND, "unmask response")
        place = read.number(4)
        count = read.count(4, _SHARE_ROW)
        rows = read.fixed(count * _SHARE_ROW)
        read.end()
        shares = tuple(iter_unpack(_LAYOUT, rows))
        dealers, kinds = [dealer for dealer, _, _ in shares], rows[4::_SHARE_ROW]
        require_ascending(dealers, "unmask response", n)
        members = survivors.members
        if place not in members:
            raise BadMessage("unmask response: it comes from a device that is not among the survivors")
        survived = kinds.translate(_SURVIVED)
        if not members.issuperset(compress(dealers, survived)) or not members.isdisjoint(compress(dealers, kinds)):
            raise BadMessage("unmask response: a share is of the wrong kind for this list")
        if kinds.strip(b"\0\1"):
            raise BadMessage("unmask response: a kind of share is none")
        if any(rows[5::_SHARE_ROW]):  # nearly all begin with a zero byte: those are below PRIME
            require_shares([share for _, _, share in shares])
        return cls(place, shares)
