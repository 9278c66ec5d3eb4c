"""Hashes in place of X25519, Ed25519, HKDF and AES, for schedules of hundreds of messages. They protect nothing.

While ``quick_crypto()`` is entered, the modules of ``client_sdk`` that import those primitives have these classes
instead. The protocol's own code runs as it is shipped: what is agreed, derived, sealed and signed, over which bytes,
and what is compared. Alike are the rules by which a primitive accepts or refuses, so each check still has its effect:

====================  =================================================================================
X25519                two keys agree on one secret, a function of both public keys
HKDF                  another salt, info or secret gives another key
AES-GCM               opens only under the same key and nonce, with the same associated data, unchanged
AES-CTR               one key gives one key stream
Ed25519               a signature is valid for one key and one message; whoever knows the key's name can make it
====================  =================================================================================

No other room imports this module (an import contract), so no device and no coordinator can be given these by mistake.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cryptography.exceptions import InvalidTag

from client_sdk.secagg import agreement, shares, statement

TAG_BYTES = 16


def _hash(what: bytes, *parts: bytes, length: int = 32) -> bytes:
    """A digest of the parts, each with its length."""
    text = b"".join(len(part).to_bytes(8, "big") + part for part in (what, *parts))
    return hashlib.shake_128(text).digest(length)


class _PublicKey:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    @classmethod
    def from_public_bytes(cls, raw: bytes) -> _PublicKey:
        return cls(raw)

    def public_bytes_raw(self) -> bytes:
        return self.raw


class _PrivateKey:
    def __init__(self, raw: bytes) -> None:
        public = _hash(b"public", raw)
        self._public = _PublicKey(public[:31] + bytes([public[31] & 0x3F]))  # the canonical form of a number below p

    @classmethod
    def from_private_bytes(cls, raw: bytes) -> _PrivateKey:
        return cls(raw)

    def public_key(self) -> _PublicKey:
        return self._public

    def exchange(self, peer: _PublicKey) -> bytes:
        return _hash(b"agreed", *sorted((self._public.raw, peer.raw)))


class _Derivation:
    """HKDF(hash, length, salt, info)."""

    def __init__(self, algorithm: object, length: int, salt: bytes, info: bytes) -> None:
        self._length, self._salt, self._info = length, salt, info

    def derive(self, secret: bytes) -> bytes:
        return _hash(b"derived", secret, self._salt, self._info, length=self._length)


class _Sealing:
    """AES-GCM."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, nonce: bytes, text: bytes, associated: bytes) -> bytes:
        hidden = self._hidden(nonce, text)
        return hidden + self._tag(nonce, hidden, associated)

    def decrypt(self, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
        hidden, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        if tag != self._tag(nonce, hidden, associated):
            raise InvalidTag
        return self._hidden(nonce, hidden)

    def _hidden(self, nonce: bytes, text: bytes) -> bytes:
        pad = _hash(b"sealed", self._key, nonce, length=len(text))
        return bytes(one ^ other for one, other in zip(text, pad, strict=True))

    def _tag(self, nonce: bytes, hidden: bytes, associated: bytes) -> bytes:
        return _hash(b"tag", self._key, nonce, hidden, associated, length=TAG_BYTES)


class _Stream:
    """A key stream: hashed block by block, as it is asked for."""

    def __init__(self, key: bytes, at: int) -> None:
        self._key, self._at = key, at

    def update_into(self, zeros: memoryview, buffer: bytearray) -> None:
        """The next bytes of the stream, as many as there are zeros."""
        begin, end = self._at, self._at + len(zeros)
        whole = _hash(b"stream", self._key, length=end)
        buffer[: len(zeros)] = whole[begin:]
        self._at = end


def verify(public_hex: str, message: bytes, signature: bytes) -> bool:
    """In place of ``identity.verify``."""
    return signature == _hash(b"signed", public_hex.encode(), message, length=64)


class HashSigner:
    """Signs as the key of this name, for ``verify``."""

    def __init__(self, public_hex: str) -> None:
        self.public_hex = public_hex

    def sign(self, message: bytes) -> bytes:
        return _hash(b"signed", self.public_hex.encode(), message, length=64)


def _start(self: Any, key: bytes, at: int = 0) -> None:
    """In place of ``KeyStream.start``."""
    self._context = _Stream(key, at)


_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (agreement, "X25519PrivateKey", _PrivateKey),
    (agreement, "X25519PublicKey", _PublicKey),
    (agreement, "HKDF", _Derivation),
    (shares, "AESGCM", _Sealing),
    (statement, "verify", verify),
    (agreement.KeyStream, "start", _start),
)


@contextmanager
def quick_crypto() -> Iterator[None]:
    """While the block runs, secure rounds are played without real cryptography."""
    real = [(owner, name, getattr(owner, name)) for owner, name, _ in _REPLACED]
    for owner, name, instead in _REPLACED:
        setattr(owner, name, instead)
    try:
        yield
    finally:
        for owner, name, before in real:
            setattr(owner, name, before)
