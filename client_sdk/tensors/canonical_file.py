"""The canonical bytes of a safetensors file, read in blocks: a file larger than memory can be hashed and sent."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import numpy as np

from client_sdk.tensors.manifest import MalformedTensors, TruncatedTensors, shown
from client_sdk.tensors.safetensors_file import Source, header_bytes, read_header

BLOCK = 4 << 20
"""Bytes that are read at once."""


class CanonicalFile:
    """A safetensors file, on disk or open for reading, as ``canonical_bytes`` gives it: without metadata, in the
    library's layout.

    The header is checked here, the data while ``blocks`` reads it. TensorError where it is not such a file; OSError
    where it cannot be read.
    """

    def __init__(self, source: Path | BinaryIO) -> None:
        self._source = source
        self._header = read_header(source)
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
        with self._source.open("rb") if isinstance(self._source, Path) else nullcontext(self._source) as file:
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


def canonical_digest(source: Source) -> str:
    """SHA-256, in lower-case hexadecimal, of the canonical bytes of a safetensors file: one for all files that hold the
    same names, dtypes, shapes and values, whatever the order of their tensors, their padding and their metadata.

    It is what the bytes of a checkpoint are named by where they are canonical already. Reads in blocks. TensorError
    where ``source`` is no such file; OSError where it cannot be read.
    """
    stream = io.BytesIO(source) if isinstance(source, bytes | bytearray | memoryview) else source
    return CanonicalFile(stream).digest()
