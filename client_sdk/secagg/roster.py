"""The roster of an attempt, its digest h, and the checks that both ends make of it.

Entries are in ascending order of device ids, so one set of devices has one roster. A device's *place* is its index in
it, from 0, and its Shamir x is place + 1. Errors: BadMessage, BadKey, BadSignature, BadParameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from client_sdk.secagg.advertisement import Advertisement
from client_sdk.secagg.errors import BadMessage
from client_sdk.secagg.graph import MaskGraph
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.parameters import LARGEST, Parameters
from client_sdk.secagg.statement import DOMAIN, SIGNATURE_BYTES, require_signed
from client_sdk.secagg.vouching import Vouching, certified
from client_sdk.secagg.wire import WireReader, WireWriter

KIND = 3


@dataclass(frozen=True)
class RosterEntry:
    """One device of the roster."""

    advertisement: Advertisement
    signature: bytes
    certificate: bytes
    """The authority's certificate of the device, opaque here: see ``Vouching``."""


@dataclass(frozen=True)
class Roster:
    """The devices of one attempt, with the threshold and the lane bits that the header's rules give for them."""

    threshold: int
    lane_bits: int
    entries: tuple[RosterEntry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def of(cls, header: AttemptHeader, entries: list[RosterEntry]) -> Roster:
        """The roster of these devices under ``header``, whatever their order in ``entries``."""
        parameters = header.rule.parameters(len(entries))
        ordered = tuple(sorted(entries, key=lambda entry: entry.advertisement.device))
        return cls(parameters.threshold, header.lane_bits(len(entries)), ordered)

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes."""
        out = WireWriter(KIND).number(len(self.entries), 4).number(self.threshold, 4).number(self.lane_bits, 1)
        for entry in self.entries:
            out.blob(entry.advertisement.encoded).fixed(entry.signature, SIGNATURE_BYTES).blob(entry.certificate)
        return out.done()

    @classmethod
    def parse(cls, data: bytes) -> Roster:
        """Decode a roster, of which ``encoded`` is ``data`` again: ids ascending, every key, commitment and nonce used
        once, no key of low order. ``join`` checks signatures, certificates and numbers. BadMessage, BadKey."""
        read = WireReader(data, KIND, "roster")
        count = read.count(4, SIGNATURE_BYTES + 8, 2)
        if count > LARGEST:
            raise BadMessage(f"a roster has at most {LARGEST} devices, not {count}")
        threshold, bits = read.number(4), read.number(1)
        entries = tuple(
            RosterEntry(Advertisement.parse(read.blob()), read.fixed(SIGNATURE_BYTES), read.blob())
            for _ in range(count)
        )
        read.end()
        devices = [entry.advertisement.device for entry in entries]
        if any(one >= other for one, other in pairwise(devices)):
            raise BadMessage("the roster's devices are not in ascending order, each once")
        shown = [entry.advertisement for entry in entries]
        keys = [key for one in shown for key in (one.share_key, one.mask_key)]
        for what, values in (
            ("key", keys),
            ("commitment", [one.commitment for one in shown]),
            ("nonce", [one.nonce for one in shown]),
        ):
            if len(set(values)) != len(values):
                raise BadMessage(f"a {what} stands in the roster twice")
        roster = cls(threshold, bits, entries)
        roster.__dict__["encoded"] = bytes(data)  # a message has one form
        return roster

    @staticmethod
    def size_of(data: bytes) -> int:
        """How many devices a roster has that was parsed before: nothing else of it is read."""
        return WireReader(data, KIND, "roster").number(4)

    def h(self, header: AttemptHeader) -> bytes:
        """The digest that binds everything after the roster: SHA-256 over the header's digest and the roster."""
        return hashlib.sha256(DOMAIN + b"roster" + header.digest + self.encoded).digest()


@dataclass(frozen=True, kw_only=True)
class MaskingCohort:
    """A roster that was checked under a header, with what the rest of the attempt needs."""

    header: AttemptHeader
    roster: Roster
    parameters: Parameters
    h: bytes
    identities: tuple[str, ...]
    """Ed25519 public keys in hexadecimal, by place."""
    graph: MaskGraph

    @property
    def n(self) -> int:
        """Devices of the roster."""
        return len(self.roster)

    @property
    def fewest_survivors(self) -> int:
        """The shortest list of survivors that may be signed."""
        return self.header.fewest_survivors(self.n)

    def device(self, place: int) -> str:
        """The id of the device at a place."""
        return self.roster.entries[place].advertisement.device

    def place_of(self, device: str) -> int:
        """The place of a device. BadMessage where it is not in the roster."""
        for place, entry in enumerate(self.roster.entries):
            if entry.advertisement.device == device:
                return place
        raise BadMessage("this device is not in the roster")


def join(header: AttemptHeader, roster: Roster, vouched: Vouching, *, near: str | None = None) -> MaskingCohort:
    """The cohort of a roster in which every entry is certified, no identity occurs twice, and threshold, lane bits and
    size are what the header's rules give; and in which every advertisement is signed for this header. Both ends call
    this. BadMessage, BadSignature, BadParameters.

    ``near``: a device, which on a ring checks the signatures of its own entry and of its neighbours' alone. Forged
    entries among the others count as devices that vanished: docs/decisions/2026-11-23-a-ring-device-checks-its-
    neighbours.md.
    """
    identities = tuple(vouched(entry.advertisement.device, entry.certificate) for entry in roster.entries)
    cohort = _cohort(header, roster, identities)
    checked: Iterable[int] = range(cohort.n)
    if near is not None:
        place = cohort.place_of(near)
        checked = (place, *cohort.graph.neighbours(place))
    for place in checked:
        entry = roster.entries[place]
        shown, whose = entry.advertisement, f"device {entry.advertisement.device}"
        require_signed(identities[place], entry.signature, header.digest, "advertise", shown.encoded, whose)
    return cohort


def rejoin(header: AttemptHeader, roster: Roster) -> MaskingCohort:
    """The cohort of a roster that this end has checked by ``join`` and stored itself. Certificates and signatures are
    not checked again: whom the authority has revoked since, or whose certificate has expired, stays in the attempt.
    BadMessage, BadParameters."""
    identities = tuple(certified(entry.advertisement.device, entry.certificate) for entry in roster.entries)
    return _cohort(header, roster, identities)


def _cohort(header: AttemptHeader, roster: Roster, identities: tuple[str, ...]) -> MaskingCohort:
    n = len(roster)
    if n < header.minimum_cohort:
        raise BadMessage(f"the roster has {n} devices; the round takes no fewer than {header.minimum_cohort}")
    parameters = header.rule.parameters(n)
    if roster.threshold != parameters.threshold:
        raise BadMessage(f"the roster says threshold {roster.threshold}; the rule says {parameters.threshold}")
    if roster.lane_bits != header.lane_bits(n):
        raise BadMessage(f"the roster says lanes of {roster.lane_bits} bits; the rule says {header.lane_bits(n)}")
    if len(set(identities)) != n:
        raise BadMessage("two devices of the roster have one identity")
    nonces = [entry.advertisement.nonce for entry in roster.entries]
    return MaskingCohort(
        header=header,
        roster=roster,
        parameters=parameters,
        h=roster.h(header),
        identities=identities,
        graph=MaskGraph.of(parameters.neighbours, nonces),
    )
