"""The key stream of AES-256 in counter mode (NIST SP 800-38A, 128-bit big-endian counter), written into one reused
buffer: no allocation for each mask or block.

A key is used for one stream, so every stream begins at counter zero with the zero nonce. Reading may start further on,
for work on one part of a vector.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from client_sdk.secagg.errors import BadParameters

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
