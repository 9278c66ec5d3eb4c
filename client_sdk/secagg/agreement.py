"""X25519 key agreement (RFC 7748) and the derivation of keys from an agreed secret (HKDF-SHA256, RFC 5869).

Entropy is an argument. Errors: BadKey.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from client_sdk.identity import Entropy
from client_sdk.secagg.errors import BadKey, BadParameters

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


# ------------------------------------------------------------ stream
# The key stream of AES-256 in counter mode (NIST SP 800-38A, 128-bit big-endian counter), written into one reused
# buffer: no allocation for each mask or block.
#
# A key is used for one stream, so every stream begins at counter zero with the zero nonce. Reading may start further
# on, for work on one part of a vector.


CIPHER = "aes-256-ctr"
"""Its name in an attempt's header."""

BLOCK_BYTES = 1 << 19
"""Bytes generated at once. Measured: 512 KiB stay in a core's cache and take few calls; 256 KiB are 2 % slower, 64 KiB
10 %, and 1 MiB is 2 % faster where nothing else uses the cache."""

_ZEROS = memoryview(bytes(BLOCK_BYTES))
"""The plaintext: its encryption is the key stream itself."""

_UNIT = 64
"""Bytes: four blocks. A stream can start at multiples of it."""

_FROM_ZERO = modes.CTR(bytes(16))

_SPARE = 16
"""Bytes after the output that a cipher may need."""


class KeyStream:
    """Key streams, one after another, through one buffer. One thread at a time."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        if block_bytes < _UNIT or block_bytes % _UNIT:
            raise BadParameters(f"a block of key stream is a multiple of {_UNIT} bytes, not {block_bytes}")
        self.block_bytes = block_bytes
        self._block = _ZEROS if block_bytes <= BLOCK_BYTES else memoryview(bytes(block_bytes))
        self._zeros = self._block
        self._buffer = bytearray(block_bytes + _SPARE)
        self._bytes = np.frombuffer(self._buffer, np.uint8, block_bytes)
        self._context: CipherContext | None = None

    def start(self, key: bytes, at: int = 0) -> None:
        """Start the stream of ``key`` (32 bytes) at byte ``at`` (a multiple of 64, below 2^38) in place of the one
        before."""
        if len(key) != 32:
            raise BadParameters(f"a stream's key is 32 bytes, not {len(key)}")
        if at % _UNIT or not 0 <= at < _UNIT << 32:
            raise BadParameters(f"a stream begins at a multiple of {_UNIT} bytes below 2^38, not at {at}")
        mode = modes.CTR((at // 16).to_bytes(16, "big")) if at else _FROM_ZERO
        self._context = Cipher(algorithms.AES(key), mode).encryptor()

    def fill(self, length: int) -> None:
        """Write the next ``length`` bytes of the stream, at most ``block_bytes``, to the beginning of ``buffer``."""
        if self._context is None:
            raise BadParameters("no stream was begun")
        if length != len(self._zeros):
            if not 0 <= length <= self.block_bytes:
                raise BadParameters(f"at most {self.block_bytes} bytes of key stream are taken at once, not {length}")
            self._zeros = self._block[:length]
        self._context.update_into(self._zeros, self._buffer)

    @property
    def buffer(self) -> npt.NDArray[np.uint8]:
        """``block_bytes`` bytes, which ``fill`` overwrites."""
        return self._bytes

    def take(self, length: int) -> npt.NDArray[np.uint8]:
        """The next ``length`` bytes of the stream, at most ``block_bytes``: a view that the next call overwrites."""
        self.fill(length)
        return self._bytes[:length]

    def wipe(self) -> None:
        """Overwrite the buffer and drop the key. (Copies made by the cipher's library and CPython remain.)"""
        self._context = None
        self._bytes[:] = 0
