"""Exchange 4, ConsistencyCheck: the list of survivors, and proof that enough others signed the same one.

Knows places and signatures. Has never heard of shares. A device reveals nothing until t of those who hold shares of its
secrets, and *signers* of the whole roster, have signed the very list that it signed, over its own h: no second list
finds as many, and in a ring they are all but those who may vanish (``parameters``). Errors: BadMessage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from client_sdk.secagg.errors import BadMessage, BadSignature
from client_sdk.secagg.roster import Cohort
from client_sdk.secagg.statement import SIGNATURE_BYTES, require_signed
from client_sdk.secagg.wire import WireReader, WireWriter, require_ascending

KIND = 6
PROOF_KIND = 7


@dataclass(frozen=True)
class Survivors:
    """Whose masked vectors are in the sum: places in ascending order."""

    places: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def members(self) -> frozenset[int]:
        """The places, for looking one up."""
        return frozenset(self.places)

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes: what survivors sign over h."""
        out = WireWriter(KIND).number(len(self.places), 4)
        for place in self.places:
            out.number(place, 4)
        return out.done()

    @classmethod
    def parse(cls, data: bytes, n: int) -> Survivors:
        """The list of these bytes, in a roster of ``n``. BadMessage otherwise."""
        read = WireReader(data, KIND, "survivor list")
        count = read.count(4, 4, 1)
        found = cls(tuple(place for (place,) in read.rows(">I", count)))
        read.end()
        require_ascending(found.places, "survivor list", n)
        return found

    def require_enough(self, cohort: Cohort) -> None:
        """BadMessage where fewer survived than the header lets a device sign for."""
        if len(self) < cohort.fewest_survivors:
            raise BadMessage(f"{len(self)} survivors are too few: it takes {cohort.fewest_survivors}")


@dataclass(frozen=True)
class Proof:
    """Survivors' signatures under one list."""

    signatures: tuple[tuple[int, bytes], ...]
    """(place, 64 bytes), ascending."""

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes."""
        out = WireWriter(PROOF_KIND).number(len(self.signatures), 4)
        for place, signature in self.signatures:
            out.number(place, 4).fixed(signature, SIGNATURE_BYTES)
        return out.done()

    @classmethod
    def parse(cls, data: bytes, n: int) -> Proof:
        """The proof of these bytes, in a roster of ``n``. BadMessage otherwise."""
        read = WireReader(data, PROOF_KIND, "proof of survivors")
        count = read.count(4, 4 + SIGNATURE_BYTES)
        found = cls(tuple(read.rows(f">I{SIGNATURE_BYTES}s", count)))
        read.end()
        require_ascending(tuple(place for place, _ in found.signatures), "proof of survivors", n)
        return found

    def require(self, cohort: Cohort, place: int, survivors: Survivors) -> None:
        """BadMessage unless, over this device's h, ``survivors`` is signed by t of those who hold shares of the
        secrets of the device at ``place``, and by ``signers`` of the whole roster.

        Only survivors' signatures count, and only right ones; others are passed over. Stops when there are enough.
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


def _signed(cohort: Cohort, signer: int, signature: bytes, survivors: Survivors) -> bool:
    whose = f"device {cohort.device(signer)}"
    try:
        require_signed(cohort.identities[signer], signature, cohort.h, "survivors", survivors.encoded, whose)
    except BadSignature:
        return False
    return True
