"""X25519 key agreement (RFC 7748) and the derivation of keys from an agreed secret (HKDF-SHA256, RFC 5869).

Entropy is an argument. Errors: BadKey.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from client_sdk.identity import Entropy
from client_sdk.secagg.errors import BadKey

KEY_BYTES = 32
"""A private key, a public key and an agreed secret are all this long."""

_FIELD = 2**255 - 19
_ORDER_8 = (
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
)
LOW_ORDER = frozenset({0, 1, _FIELD - 1, *_ORDER_8})
"""The u-coordinates of the points of order 1, 2, 4 and 8, on the curve and on its twist: with each of them, every
private key gives the agreed secret zero (RFC 7748, section 6.1)."""


def require_public(public: bytes) -> None:
    """Raise BadKey where ``public`` is not the canonical encoding of a number below 2^255 - 19, or is a point of order
    1, 2, 4 or 8, with which every private key gives the secret zero.

    What this promises: no secret is agreed that is zero, and so known to everybody; and one number has one encoding
    (X25519 ignores the highest bit and takes numbers from the field's prime up), so a key that is shown twice is seen.
    What it does not: that the point is on the curve and not on its twist, on which X25519 is as hard; that whoever
    shows the key knows its private half; that two different keys give two different secrets. Points that differ by one
    of low order give the same secret, since private keys are multiples of 8: whatever is derived from a secret here
    depends on h and on both places as well.
    """
    if len(public) != KEY_BYTES:
        raise BadKey(f"a public key is {KEY_BYTES} bytes, not {len(public)}")
    u = int.from_bytes(public, "little")
    if u >= _FIELD:
        raise BadKey("a public key is not in its one canonical form")
    if u in LOW_ORDER:
        raise BadKey("a public key is a point of low order: whatever is agreed with it is known to everybody")


class AgreementKey:
    """A private X25519 key. Its ``repr`` shows the public half only."""

    def __init__(self, private: bytes) -> None:
        if len(private) != KEY_BYTES:
            raise BadKey(f"a private key is {KEY_BYTES} bytes, not {len(private)}")
        self.private = bytes(private)
        """The 32 secret bytes. They are shared among peers, who rebuild them if this device drops out."""
        self._key = X25519PrivateKey.from_private_bytes(private)
        self._agreed: dict[bytes, bytes] = {}
        self.public: bytes = self._key.public_key().public_bytes_raw()

    @classmethod
    def create(cls, entropy: Entropy) -> AgreementKey:
        """A new key from 32 bytes of ``entropy``."""
        return cls(entropy(KEY_BYTES))

    def agree(self, public: bytes) -> bytes:
        """The 32-byte secret that this key and the owner of ``public`` share. Use it only to derive keys from it.

        It is cached with this key, since a device seals for each peer and unseals what that peer sealed. BadKey for a
        key that is malformed, not canonical or of low order, or that gives the secret zero.
        """
        agreed = self._agreed.get(public)
        if agreed is None:
            require_public(public)
            try:
                agreed = self._key.exchange(X25519PublicKey.from_public_bytes(public))
            except ValueError:
                raise BadKey("nothing secret can be agreed with this public key") from None
            self._agreed[public] = agreed
        return agreed

    def __repr__(self) -> str:
        return f"AgreementKey(public={self.public.hex()[:16]}…)"


def derive(secret: bytes, *, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """``length`` bytes by HKDF-SHA256: extract with ``salt``, expand with ``info``. Different ``info`` gives
    independent keys."""
    return HKDF(SHA256(), length, salt, info).derive(secret)
