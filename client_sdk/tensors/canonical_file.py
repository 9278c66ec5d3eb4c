"""The canonical bytes of a safetensors file, read in blocks: a file larger than memory can be hashed and sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from client_sdk.tensors.manifest import MalformedTensors, TruncatedTensors, shown
from client_sdk.tensors.safetensors_file import header_bytes, read_header

BLOCK = 4 << 20
"""Bytes that are read at once."""


class CanonicalFile:
    """A safetensors file on disk as ``canonical_bytes`` gives it: without metadata, in the library's layout.

    The header is checked here, the data while ``blocks`` reads it. TensorError where it is not such a file; OSError
    where it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = read_header(path)
        self._manifest = self._header.manifest.in_file_order()
        self._head = header_bytes(self._manifest)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self._head) + self._manifest.nbytes

    def blocks(self) -> Iterator[bytes]:
        """The bytes in order. MalformedTensors for booleans that are neither 0 nor 1, TruncatedTensors where the file
        became shorter."""
        yield self._head
        with self._path.open("rb") as file:
            for name, spec in self._manifest.items():
                at, end = self._header.offsets[name]
                file.seek(at)
                while at < end:
                    block = file.read(min(BLOCK, end - at))
                    if not block:
                        raise TruncatedTensors("the file became shorter while it was read")
                    if spec.dtype == "BOOL" and int(np.frombuffer(block, np.uint8).max()) > 1:
                        raise MalformedTensors(f"{shown(name)} holds booleans that are neither 0 nor 1")
                    at += len(block)
                    yield block

    def digest(self) -> str:
        """SHA-256 of the bytes, in lower-case hexadecimal. Reads the whole file."""
        sha256 = hashlib.sha256()
        for block in self.blocks():
            sha256.update(block)
        return sha256.hexdigest()
