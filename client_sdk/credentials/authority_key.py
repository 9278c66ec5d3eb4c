"""The authority's public key, as everybody else holds it: pinned by its SHA-256, named by the first half of that."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.identity_keys import require_identity_key, require_signed

AUTHORITY_ID_BYTES = 16


@dataclass(frozen=True)
class TrustedAuthority:
    """The authority whose word is taken. BadIdentityKey where these bytes are no public key."""

    public_key: bytes
    """Ed25519, 32 bytes."""

    def __post_init__(self) -> None:
        require_identity_key(self.public_key)

    @classmethod
    def pinned(cls, public_key: bytes, digest: bytes) -> TrustedAuthority:
        """The authority of this key, where SHA-256 of the key is ``digest`` (32 bytes). BadCredential otherwise: who
        sent the key is another authority than that of the enrolment token."""
        if hashlib.sha256(public_key).digest() != digest:
            raise BadCredential("This is the key of another authority than the one that was named.")
        return cls(public_key)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the public key, 32 bytes: what an enrolment token carries."""
        return hashlib.sha256(self.public_key).digest()

    @property
    def id(self) -> bytes:
        """The first 16 bytes of ``digest``: how certificates and lists name their authority."""
        return self.digest[:AUTHORITY_ID_BYTES]

    def require_signed(self, authority: bytes, message: bytes, signature: bytes, what: str) -> None:
        """Raise BadCredential unless ``what`` names this authority and is signed by it."""
        if authority != self.id:
            raise BadCredential(f"This {what} is of another authority.")
        require_signed(self.public_key, message, signature, f"the authority under this {what}")
