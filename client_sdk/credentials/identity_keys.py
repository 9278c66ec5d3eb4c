"""Which 32 bytes are an Ed25519 public key that the authority may certify (RFC 8032, section 5.1.3), and a key's id.

A key is the y of a point and the sign of its x. Accepted is the one canonical form of a point of the curve
-x^2 + y^2 = 1 + d x^2 y^2 over the field of 2^255 - 19, unless the point is of low order. With a key of low order,
signatures can be made that are valid for nearly every message without any private key; and of two forms of one point,
one could be revoked while the other is used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from client_sdk.credentials.errors import BadCredential, BadIdentityKey

KEY_BYTES = 32
KEY_ID_BYTES = 16

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_SIGN = 1 << 255
_Y_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
LOW_ORDER = frozenset({0, 1, _P - 1, _Y_ORDER_8, _P - _Y_ORDER_8})
"""The y of the eight points whose order divides 8: 1 (the neutral point), -1, 0 (two points), and four of order 8."""


@lru_cache(maxsize=1 << 12)
def require_identity_key(public: bytes) -> None:
    """Raise BadIdentityKey unless these bytes are the canonical form of a point that is not of low order. Cached: it
    costs as much as a verification, and an enrolment asks before and after the proof of possession."""
    if len(public) != KEY_BYTES:
        raise BadIdentityKey(f"An identity key is {KEY_BYTES} bytes, not {len(public)}.")
    y = int.from_bytes(public, "little") & ~_SIGN
    if y >= _P:
        raise BadIdentityKey("This identity key is not in its one canonical form.")
    if y in LOW_ORDER:
        raise BadIdentityKey("This identity key is a point of low order: anybody could sign for it.")
    # x^2 = u / v, and u / v is a square exactly where u v is. x is not 0 here: that is so for y = 1 and -1 only.
    u, v = (y * y - 1) % _P, (_D * y * y + 1) % _P
    if pow(u * v, (_P - 1) // 2, _P) != 1:
        raise BadIdentityKey("This identity key is no point of the curve.")


def key_id(public: bytes) -> bytes:
    """The first 16 bytes of the SHA-256 of a public key: how requests and revocation lists name it."""
    return hashlib.sha256(public).digest()[:KEY_ID_BYTES]


@lru_cache(maxsize=1 << 12)
def verifying_key(public: bytes) -> Ed25519PublicKey:
    """The key, ready to verify; cached, since reading it costs a fifth of a verification. BadIdentityKey."""
    try:
        return Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise BadIdentityKey(f"An identity key is {KEY_BYTES} bytes.") from None


def require_signed(public: bytes, message: bytes, signature: bytes, whose: str) -> None:
    """Raise BadCredential unless ``signature`` is this key's over ``message``; ``whose`` names it in the error."""
    try:
        verifying_key(public).verify(signature, message)
    except InvalidSignature:
        raise BadCredential(f"The signature of {whose} is not valid.") from None


# ------------------------------------------------------------ authority key
# The authority's public key, as everybody else holds it: pinned by its SHA-256, named by the first half of that.


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
