"""A few bytes for one peer's eyes, and proof of who wrote them for whom: AES-256-GCM (NIST SP 800-38D).

Knows keys, nonces and associated data. Has never heard of what is inside. Key and nonce belong to one direction between
two peers in one attempt, and seal one message: no nonce repeats.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from client_sdk.secagg.errors import BadParameters, BadShare

TAG_BYTES = 16
NONCE_BYTES = 12
SEALING_BYTES = 32 + NONCE_BYTES
"""What has to be derived for a direction: a key of 32 bytes, then its nonce."""


def seal(key_and_nonce: bytes, text: bytes, associated: bytes) -> bytes:
    """``text`` encrypted, then a tag over it and over ``associated``: 16 bytes longer than the text."""
    key, nonce = _split(key_and_nonce)
    return AESGCM(key).encrypt(nonce, text, associated)


def unseal(key_and_nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
    """The text, where ``sealed`` is what the holder of the key sealed with the same ``associated``. BadShare
    otherwise."""
    key, nonce = _split(key_and_nonce)
    if len(sealed) < TAG_BYTES:
        raise BadShare("a sealed share is shorter than its tag")
    try:
        return AESGCM(key).decrypt(nonce, sealed, associated)
    except InvalidTag:
        raise BadShare("a sealed share is not what its sender wrote for this receiver") from None


def _split(key_and_nonce: bytes) -> tuple[bytes, bytes]:
    if len(key_and_nonce) != SEALING_BYTES:
        raise BadParameters(f"sealing takes {SEALING_BYTES} bytes of key and nonce, not {len(key_and_nonce)}")
    return key_and_nonce[:32], key_and_nonce[32:]
