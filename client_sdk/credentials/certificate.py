"""A certificate: the authority's word on whose key this is. At most 200 bytes, in one canonical form.

::

    kind 1 | authority 16 | id 1 + up to 40 | class 1 | public key 32 | not before 8 | not after 8 | signature 64

The signature is the authority's, over ``domains.CERTIFICATE`` and everything before it. Errors: BadCredential for bytes
that are no certificate of this authority, NotValidNow.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from client_sdk.credentials.canonical import (
    CERTIFICATE,
    SIGNATURE_BYTES,
    TIME_BYTES,
    CredentialReader,
    CredentialWriter,
)
from client_sdk.credentials.errors import BadCredential, NotValidNow
from client_sdk.credentials.identity_keys import (
    AUTHORITY_ID_BYTES,
    KEY_BYTES,
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
