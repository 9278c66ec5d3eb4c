"""The roster of an attempt, its groups, the digest h of each, and the checks that both ends make of it.

Entries are in ascending order of device ids, so one set of devices has one roster. A header divides it into groups
(``divided``), by all devices' nonces; each is a roster of its own, with masks, holders, a list and a sum of its own. A
device's *place* is its index in its group, from 0, and its Shamir x is place + 1. Errors: BadMessage, BadKey,
BadSignature, BadParameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from client_sdk.credentials.certificate import Certificate, RevocationList
from client_sdk.credentials.errors import CredentialError
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.identity import Entropy, Signer
from client_sdk.secagg.agreement import KEY_BYTES, AgreementKey, require_public
from client_sdk.secagg.errors import BadMessage, Refusal
from client_sdk.secagg.graph import NONCE_BYTES, MaskGraph, groups_of
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.parameters import LARGEST, Parameters
from client_sdk.secagg.statement import (
    DIGEST_BYTES,
    DOMAIN,
    SIGNATURE_BYTES,
    WireReader,
    WireWriter,
    require_signed,
    signed,
)

# ------------------------------------------------------------ vouching
# Vouching for the devices of a roster by the authority's certificates and its revocation list.


Vouching = Callable[[str, bytes], str]
"""(device id, certificate) -> the device's Ed25519 public key in hexadecimal, where the authority certified the device
and has not revoked it. Raises BadMessage otherwise."""

CACHED = 1 << 14
"""Certificates whose signatures are not checked again: more than the largest roster has, about 10 MB."""


def vouched_by(
    authority: TrustedAuthority, revocations: RevocationList, at: float, *, until: float | None = None
) -> Vouching:
    """A ``Vouching`` for one attempt: the certificate must be ``authority``'s for a device of that id, be valid at
    ``at`` (Unix seconds) and, where it is given, still at ``until``, and its key not be on the list.

    A coordinator gives when the attempt expires as ``until``, so that no certificate expires during the attempt and the
    devices, whose clocks differ, all judge alike. Raises as ``require_list``.
    """
    require_list(authority, revocations, at)
    return vouched_by_list(authority, revocations, at, until=until)


def require_list(authority: TrustedAuthority, revocations: RevocationList, at: float) -> None:
    """Raise Refusal where the list is not current at ``at`` (Unix seconds), BadMessage where it is not the
    authority's."""
    try:
        revocations.require_signed(authority)
    except CredentialError as error:
        raise BadMessage(str(error)) from None
    try:
        revocations.require_current(at)
    except CredentialError as error:
        raise Refusal(f"{error} Secure rounds wait for it.") from None


def vouched_by_list(
    authority: TrustedAuthority, revocations: RevocationList, at: float, *, until: float | None = None
) -> Vouching:
    """What vouches for devices by a list that ``require_list`` took when the attempt began: it stays the attempt's list
    until the attempt ends, also where it is current no longer."""

    def vouch(device: str, certificate: bytes) -> str:
        try:
            found = _signed(authority, bytes(certificate))
            for moment in (at, until):
                if moment is not None:
                    found.require_valid(moment)
            revocations.require_good(found.public_key)
        except CredentialError as error:
            raise BadMessage(f"the authority does not vouch for device {device}: {error}") from None
        return _identity(found, device)

    return vouch


def certified(device: str, certificate: bytes) -> str:
    """The key in a certificate of this device that was vouched for before: nothing but its form is checked.
    BadMessage."""
    try:
        return _identity(Certificate.parse(bytes(certificate)), device)
    except CredentialError as error:
        raise BadMessage(f"the certificate of device {device} cannot be read: {error}") from None


def _identity(found: Certificate, device: str) -> str:
    if (found.id, found.holder) != (device, "device"):
        raise BadMessage(f"the authority does not vouch for device {device}: the certificate is of another one")
    return found.public_key.hex()


@lru_cache(maxsize=CACHED)
def _signed(authority: TrustedAuthority, certificate: bytes) -> Certificate:
    """The certificate, which the authority has signed: checked once, since the same devices meet in many attempts.
    Whether it has expired or is revoked is another question, asked each time."""
    found = Certificate.parse(certificate)
    found.require_signed(authority)
    return found


# ------------------------------------------------------------ roster


# ------------------------------------------------------------ advertisement
# Exchange 1, AdvertiseKeys: the keys, the commitment and the nonce with which a device enters one attempt.
#
# All of it is drawn anew for each attempt; the device's permanent identity signs it.


ADVERTISEMENT_KIND = 2
SELF_MASK_BYTES = 32
DEALING_BYTES = 32

_FIELDS = f">{KEY_BYTES}s{KEY_BYTES}s{DIGEST_BYTES}s{NONCE_BYTES}s"


@dataclass(frozen=True)
class Advertisement:
    """The public values of one device that its peers need."""

    device: str
    """Its id, given by the authority."""
    share_key: bytes
    """X25519: peers seal their shares for this device under the secret agreed with this key."""
    mask_key: bytes
    """X25519: pairwise masks come from the secret agreed with this key; its private half is shared."""
    commitment: bytes
    """To the self-mask seed: ``commitment_to``. The seed that is rebuilt from shares is checked against it."""
    nonce: bytes
    """Contributes to the order of the devices in the mask graph."""

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, which the device signs together with the header's digest."""
        out = (
            WireWriter(ADVERTISEMENT_KIND)
            .text(self.device)
            .fixed(self.share_key, KEY_BYTES)
            .fixed(self.mask_key, KEY_BYTES)
        )
        return out.fixed(self.commitment, DIGEST_BYTES).fixed(self.nonce, NONCE_BYTES).done()

    @classmethod
    def parse(cls, data: bytes) -> Advertisement:
        """Decode an advertisement. BadMessage for malformed bytes, BadKey for an invalid or low-order key."""
        read = WireReader(data, ADVERTISEMENT_KIND, "advertisement")
        found = cls(read.text(), *next(read.rows(_FIELDS, 1)))
        read.end()
        require_public(found.share_key)
        require_public(found.mask_key)
        found.__dict__["encoded"] = bytes(data)  # a message has one form
        return found


@dataclass(frozen=True, repr=False)
class AttemptSecrets:
    """What a device draws for one attempt and keeps secret until the attempt ends."""

    share_key: AgreementKey
    mask_key: AgreementKey
    self_mask: bytes
    """The secret behind the device's own mask, 32 bytes."""
    nonce: bytes
    dealing: bytes
    """32 bytes, from which the shares of the two other secrets are computed: see ``device.deal``."""

    @classmethod
    def draw(cls, entropy: Entropy) -> AttemptSecrets:
        """Fresh secrets: five draws of 32 bytes, in the order of the fields."""
        return cls(
            AgreementKey.create(entropy),
            AgreementKey.create(entropy),
            entropy(SELF_MASK_BYTES),
            entropy(NONCE_BYTES),
            entropy(DEALING_BYTES),
        )

    def advertisement(self, device: str) -> Advertisement:
        """The public half."""
        return Advertisement(
            device, self.share_key.public, self.mask_key.public, commitment_to(self.self_mask), self.nonce
        )


def commitment_to(self_mask: bytes) -> bytes:
    """SHA-256 over the domain and the secret: hiding and binding, since the secret is uniform and 32 bytes long."""
    return hashlib.sha256(DOMAIN + b"commitment" + self_mask).digest()


def sign_advertisement(advertisement: Advertisement, header_digest: bytes, signer: Signer) -> bytes:
    """The device's signature of its advertisement for this header."""
    return signed(signer, header_digest, "advertise", advertisement.encoded)


# ------------------------------------------------------------ roster


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
    """The devices of one attempt, or of one group, with the threshold and the lane bits that the header's rules give
    for them; of several groups, those of the largest."""

    threshold: int
    lane_bits: int
    entries: tuple[RosterEntry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def of(cls, header: AttemptHeader, entries: list[RosterEntry]) -> Roster:
        """The roster of these devices under ``header``, whatever their order in ``entries``."""
        ordered = tuple(sorted(entries, key=lambda entry: entry.advertisement.device))
        return cls._of(header, ordered, header.groups)

    @classmethod
    def _of(cls, header: AttemptHeader, entries: tuple[RosterEntry, ...], groups: int) -> Roster:
        largest = -(-len(entries) // groups)
        return cls(header.rule.parameters(largest).threshold, header.lane_bits(largest), entries)

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

    def divided(self, header: AttemptHeader) -> tuple[tuple[Roster, bytes], ...]:
        """Each group with its h: SHA-256 over the whole roster's and the group's number. A single group is the whole
        roster. BadMessage where the numbers are not those that the header's rules give."""
        n, smallest = len(self), len(self) // header.groups
        if smallest < header.minimum_cohort:
            least = header.minimum_cohort * header.groups
            raise BadMessage(f"the roster has {n} devices; the round takes no fewer than {least}")
        said = Roster._of(header, self.entries, header.groups)
        if self.threshold != said.threshold:
            raise BadMessage(f"the roster says threshold {self.threshold}; the rule says {said.threshold}")
        if self.lane_bits != said.lane_bits:
            raise BadMessage(f"the roster says lanes of {self.lane_bits} bits; the rule says {said.lane_bits}")
        h = self.h(header)
        if header.groups == 1:
            return ((self, h),)
        divided = groups_of([entry.advertisement.nonce for entry in self.entries], header.groups)
        return tuple(
            (
                Roster._of(header, tuple(self.entries[place] for place in places), 1),
                hashlib.sha256(DOMAIN + b"group" + h + number.to_bytes(2, "big")).digest(),
            )
            for number, places in enumerate(divided)
        )


@dataclass(frozen=True, kw_only=True)
class MaskingCohort:
    """A group of a roster that was checked under a header, with what the rest of the attempt needs."""

    header: AttemptHeader
    roster: Roster
    """The group's devices."""
    parameters: Parameters
    h: bytes
    identities: tuple[str, ...]
    """Ed25519 public keys in hexadecimal, by place."""
    graph: MaskGraph

    @property
    def n(self) -> int:
        """Devices of the group."""
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
    """The cohort of the group of the device ``near`` in a roster: every entry of it is certified, no identity occurs
    twice, and threshold, lane bits and size are what the header's rules give; and every advertisement is signed for
    this header. None: of the only group. Devices call this. BadMessage, BadSignature, BadParameters.

    On a ring a device checks the signatures of its own entry and of its neighbours' alone. Forged entries among the
    others count as devices that vanished: docs/decisions/2026-11-23-a-ring-device-checks-its-neighbours.md. Nothing is
    checked of the other groups: whoever they are, this group is a random one of all, and each of it is checked.
    """
    return _joined(header, *_group_of(header, roster, near), vouched, near)


def join_all(header: AttemptHeader, roster: Roster, vouched: Vouching) -> tuple[MaskingCohort, ...]:
    """The cohorts of all groups, each checked as by ``join``, and all signatures. The coordinator calls this."""
    return tuple(_joined(header, *group, vouched, None) for group in roster.divided(header))


def _group_of(header: AttemptHeader, roster: Roster, near: str | None) -> tuple[Roster, bytes]:
    found = roster.divided(header)
    if near is None and len(found) == 1:
        return found[0]
    for group, h in found:
        if any(entry.advertisement.device == near for entry in group.entries):
            return group, h
    raise BadMessage("this device is not in the roster")


def _joined(header: AttemptHeader, roster: Roster, h: bytes, vouched: Vouching, near: str | None) -> MaskingCohort:
    identities = tuple(vouched(entry.advertisement.device, entry.certificate) for entry in roster.entries)
    cohort = _cohort(header, roster, h, identities)
    checked: Iterable[int] = range(cohort.n)
    if near is not None:
        place = cohort.place_of(near)
        checked = (place, *cohort.graph.neighbours(place))
    for place in checked:
        entry = roster.entries[place]
        shown, whose = entry.advertisement, f"device {entry.advertisement.device}"
        require_signed(identities[place], entry.signature, header.digest, "advertise", shown.encoded, whose)
    return cohort


def rejoin(header: AttemptHeader, roster: Roster, *, near: str | None = None) -> MaskingCohort:
    """The cohort of a roster that this end has checked by ``join`` and stored itself. Certificates and signatures are
    not checked again: whom the authority has revoked since, or whose certificate has expired, stays in the attempt.
    BadMessage, BadParameters."""
    return _rejoined(header, *_group_of(header, roster, near))


def rejoin_all(header: AttemptHeader, roster: Roster) -> tuple[MaskingCohort, ...]:
    """The cohorts of all groups of a roster that this end has checked by ``join_all`` and stored itself."""
    return tuple(_rejoined(header, *group) for group in roster.divided(header))


def _rejoined(header: AttemptHeader, roster: Roster, h: bytes) -> MaskingCohort:
    identities = tuple(certified(entry.advertisement.device, entry.certificate) for entry in roster.entries)
    return _cohort(header, roster, h, identities)


def _cohort(header: AttemptHeader, roster: Roster, h: bytes, identities: tuple[str, ...]) -> MaskingCohort:
    n = len(roster)
    parameters = header.rule.parameters(n)
    if len(set(identities)) != n:
        raise BadMessage("two devices of the roster have one identity")
    nonces = [entry.advertisement.nonce for entry in roster.entries]
    return MaskingCohort(
        header=header,
        roster=roster,
        parameters=parameters,
        h=h,
        identities=identities,
        graph=MaskGraph.of(parameters.neighbours, nonces),
    )
