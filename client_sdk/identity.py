"""The device's permanent key: Ed25519 (RFC 8032), drawn on the device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Entropy = Callable[[int], bytes]
"""Returns this number of unpredictable bytes: ``os.urandom`` on devices, a seeded stream in simulations and tests."""

SEED_BYTES = 32


class Signer(Protocol):
    """Whatever holds the device's key: ``DeviceKey``, or a phone's key store that never lets the key out."""

    @property
    def public_hex(self) -> str:
        """The public key, 32 bytes in lower-case hexadecimal."""

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature, 64 bytes."""


class DeviceKey:
    """An Ed25519 private key in memory. Its ``repr`` shows the public half only."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"A device key is {SEED_BYTES} bytes, not {len(seed)}.")
        self.seed = seed
        """The 32 secret bytes, from which ``DeviceKey(seed)`` gives the same key again."""
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_hex: str = self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def create(cls, entropy: Entropy = os.urandom) -> DeviceKey:
        """A new key from 32 bytes of ``entropy``."""
        return cls(entropy(SEED_BYTES))

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"DeviceKey(public={self.public_hex[:16]}…)"


def key_of(seed_hex: str) -> DeviceKey | None:
    """The key of a saved seed in hexadecimal; None of an empty one."""
    return DeviceKey(bytes.fromhex(seed_hex)) if seed_hex else None


def verify(public_hex: str, message: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is this key's over ``message``. False also for a malformed key."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_hex)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
