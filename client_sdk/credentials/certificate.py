"""What the authority signs: a certificate, its word on whose key this is, and the list of the keys that are revoked.

Both have one canonical form. A certificate has at most 200 bytes::

    kind 1 | authority 16 | id 1 + up to 40 | class 1 | public key 32 | not before 8 | not after 8 | signature 64

The signature is the authority's, over ``canonical.CERTIFICATE`` and everything before it. Errors: BadCredential for
bytes that are no certificate of this authority, NotValidNow.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from client_sdk.credentials.canonical import (
    CERTIFICATE,
    REVOCATIONS,
    SIGNATURE_BYTES,
    TIME_BYTES,
    CredentialReader,
    CredentialWriter,
)
from client_sdk.credentials.errors import BadCredential, NotValidNow, RevokedKey, RolledBackList
from client_sdk.credentials.identity_keys import (
    AUTHORITY_ID_BYTES,
    KEY_BYTES,
    KEY_ID_BYTES,
    TrustedAuthority,
    key_id,
    require_identity_key,
)
from client_sdk.identity import Signer

KIND = 128
MOST_BYTES = 200

HolderClass = Literal["device", "worker"]
"""What the holder of a certificate is: the class is certified, so a device's key never acts as a worker."""
HOLDER_CLASSES: tuple[HolderClass, ...] = ("device", "worker")

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """One certificate, perhaps not checked yet: see ``require``."""

    authority: bytes
    """16 bytes: ``TrustedAuthority.id``."""
    id: str
    """The holder's id, given by the authority: a DeviceId or WorkerId of at most 40 characters."""
    holder: HolderClass
    public_key: bytes
    """The holder's Ed25519 key, 32 bytes."""
    not_before: int
    """Unix seconds; valid from this second on."""
    not_after: int
    """Unix seconds; no longer valid from this second on."""
    signature: bytes = b""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise BadCredential("The id in a certificate is not up to 40 lower-case letters, digits, dots and dashes.")
        if self.not_after <= self.not_before:
            raise BadCredential("A certificate that is valid at no time is none.")

    @cached_property
    def body(self) -> bytes:
        """Everything before the signature."""
        out = CredentialWriter(KIND).fixed(self.authority, AUTHORITY_ID_BYTES).text(self.id)
        out.number(HOLDER_CLASSES.index(self.holder) + 1, 1).fixed(self.public_key, KEY_BYTES)
        return out.number(self.not_before, TIME_BYTES).number(self.not_after, TIME_BYTES).done()

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, with the signature."""
        if len(self.signature) != SIGNATURE_BYTES:
            raise BadCredential("This certificate is not signed.")
        return self.body + self.signature

    @property
    def key_id(self) -> bytes:
        """16 bytes that name the holder's key."""
        return key_id(self.public_key)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.encoded).digest()

    @classmethod
    def parse(cls, data: bytes) -> Certificate:
        """Decode a certificate, of which ``encoded`` is ``data`` again. The signature is not checked: see
        ``require``."""
        if len(data) > MOST_BYTES:
            raise BadCredential(f"A certificate has at most {MOST_BYTES} bytes, not {len(data)}.")
        read = CredentialReader(data, KIND, "certificate")
        authority, name, number = read.fixed(AUTHORITY_ID_BYTES), read.text(), read.number(1)
        if not 1 <= number <= len(HOLDER_CLASSES):
            read.refuse("its class is not known")
        found = cls(
            authority=authority,
            id=name,
            holder=HOLDER_CLASSES[number - 1],
            public_key=read.fixed(KEY_BYTES),
            not_before=read.number(TIME_BYTES),
            not_after=read.number(TIME_BYTES),
            signature=read.fixed(SIGNATURE_BYTES),
        )
        read.end()
        return found

    def require(self, authority: TrustedAuthority, at: float) -> None:
        """Raise BadCredential unless ``authority`` has signed this, NotValidNow unless it is valid at ``at`` (Unix
        seconds). Whether the key is revoked is the list's matter."""
        self.require_signed(authority)
        self.require_valid(at)

    def require_signed(self, authority: TrustedAuthority) -> None:
        """Raise BadCredential unless ``authority`` has signed this."""
        authority.require_signed(self.authority, CERTIFICATE + self.body, self.signature, "certificate")

    def require_valid(self, at: float) -> None:
        """Raise NotValidNow unless this is valid at ``at`` (Unix seconds)."""
        if at < self.not_before:
            raise NotValidNow(f"The certificate of {self.id} is not valid yet; is the clock right?")
        if at >= self.not_after:
            raise NotValidNow(f"The certificate of {self.id} has expired.")


def certify(
    signer: Signer, *, id: str, holder: HolderClass, public_key: bytes, not_before: int, not_after: int
) -> Certificate:
    """A certificate signed by ``signer``, the authority's key. BadIdentityKey for a key that may not be certified."""
    require_identity_key(public_key)
    draft = Certificate(
        authority=key_id(bytes.fromhex(signer.public_hex)),
        id=id,
        holder=holder,
        public_key=public_key,
        not_before=not_before,
        not_after=not_after,
        signature=bytes(SIGNATURE_BYTES),
    )
    return Certificate.parse(draft.body + signer.sign(CERTIFICATE + draft.body))


# ------------------------------------------------------------ revocations
# Which list is current, and which may follow which. A key is on the list until its last certificate has expired.
#
#     kind 1 | authority 16 | counter 8 | issued 8 | next update 8 | count 4 | key ids 16 each, ascending | signature 64
#
# The signature is the authority's, over ``canonical.REVOCATIONS`` and everything before it. Errors: BadCredential,
# NotValidNow, RolledBackList, RevokedKey.


REVOCATIONS_KIND = 129
CLOCKS_APART_S = 300
"""How far a list may have been issued in the future of its reader's clock. Further means that this clock is behind,
which could make a list that has expired seem current."""


@dataclass(frozen=True, kw_only=True)
class RevocationList:
    """One list, perhaps not checked yet: see ``require_signed``."""

    authority: bytes
    """16 bytes: ``TrustedAuthority.id``."""
    counter: int
    """One more than that of the list before, from 1."""
    issued: int
    """Unix seconds."""
    next_update: int
    """Unix seconds; no longer current from this second on."""
    revoked: tuple[bytes, ...]
    """Ids of revoked keys, 16 bytes each, ascending."""
    signature: bytes = b""

    def __post_init__(self) -> None:
        if any(len(key) != KEY_ID_BYTES for key in self.revoked):
            raise BadCredential(f"A revocation list holds ids of {KEY_ID_BYTES} bytes.")
        if any(one >= other for one, other in pairwise(self.revoked)):
            raise BadCredential("The ids of a revocation list are not in ascending order, each once.")
        if self.counter < 1 or self.next_update <= self.issued:
            raise BadCredential("A revocation list has a counter from 1, and its next update after its issue.")

    @cached_property
    def body(self) -> bytes:
        """Everything before the signature."""
        out = CredentialWriter(REVOCATIONS_KIND).fixed(self.authority, AUTHORITY_ID_BYTES).number(self.counter, 8)
        out.number(self.issued, TIME_BYTES).number(self.next_update, TIME_BYTES).number(len(self.revoked), 4)
        joined = b"".join(self.revoked)
        return out.fixed(joined, len(joined)).done()

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, with the signature."""
        if len(self.signature) != SIGNATURE_BYTES:
            raise BadCredential("This revocation list is not signed.")
        return self.body + self.signature

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes: what the header of a secure attempt names."""
        return hashlib.sha256(self.encoded).digest()

    @cached_property
    def _revoked(self) -> frozenset[bytes]:
        return frozenset(self.revoked)

    @classmethod
    def parse(cls, data: bytes) -> RevocationList:
        """Decode a list, of which ``encoded`` is ``data`` again. The signature is not checked: see
        ``require_signed``."""
        read = CredentialReader(data, REVOCATIONS_KIND, "revocation list")
        found = cls(
            authority=read.fixed(AUTHORITY_ID_BYTES),
            counter=read.number(8),
            issued=read.number(TIME_BYTES),
            next_update=read.number(TIME_BYTES),
            revoked=tuple(row[0] for row in read.rows(f">{KEY_ID_BYTES}s", read.count(4, KEY_ID_BYTES))),
            signature=read.fixed(SIGNATURE_BYTES),
        )
        read.end()
        return found

    def require_signed(self, authority: TrustedAuthority) -> None:
        """Raise BadCredential unless ``authority`` has signed this."""
        authority.require_signed(self.authority, REVOCATIONS + self.body, self.signature, "revocation list")

    def require_current(self, at: float) -> None:
        """Raise NotValidNow unless this list is current at ``at`` (Unix seconds)."""
        if at >= self.next_update:
            raise NotValidNow(f"Revocation list {self.counter} is out of date: a newer one was due.")
        if at < self.issued - CLOCKS_APART_S:
            raise NotValidNow(
                f"Revocation list {self.counter} was issued {self.issued - at:.0f} s in the future: this clock is "
                "behind the authority's."
            )

    def require_good(self, public_key: bytes) -> None:
        """Raise RevokedKey where this key (32 bytes) is on the list."""
        if self.revoked and key_id(public_key) in self._revoked:
            raise RevokedKey("The authority has revoked this key.")


def sign_revocations(
    signer: Signer, *, counter: int, issued: int, next_update: int, revoked: Iterable[bytes]
) -> RevocationList:
    """The list of these key ids, in whatever order, signed by ``signer``, the authority's key."""
    draft = RevocationList(
        authority=key_id(bytes.fromhex(signer.public_hex)),
        counter=counter,
        issued=issued,
        next_update=next_update,
        revoked=tuple(sorted(set(revoked))),
    )
    return RevocationList.parse(draft.body + signer.sign(REVOCATIONS + draft.body))


def following(held: RevocationList | None, offered: bytes, authority: TrustedAuthority) -> RevocationList:
    """The list to hold from now on, where ``offered`` is a list of ``authority`` that may follow ``held``.

    Raises RolledBackList for a lower counter, and for the same counter with other bytes; BadCredential for what is no
    list of this authority. Whether it is current is ``require_current``'s matter: an expired list with a higher counter
    still replaces the one that is held.
    """
    found = RevocationList.parse(offered)
    found.require_signed(authority)
    if held is None or held.authority != found.authority or found.counter > held.counter:
        return found
    if found.encoded == held.encoded:
        return held
    if found.counter == held.counter:
        raise RolledBackList(f"There are two revocation lists with number {held.counter}: do not trust their sender.")
    raise RolledBackList(f"Revocation list {found.counter} is older than {held.counter}, which was seen.")
