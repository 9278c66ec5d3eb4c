"""The codecs that send every value by itself, in one dtype for all tensors: as float32, or rounded to float16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from client_sdk.codecs.port import BLOCK, Origin, Read, fill, opened, require_encodable
from client_sdk.tensors.floats import Float32, narrow, pieces, widen
from client_sdk.tensors.manifest import NUMPY_DTYPES, Array, Manifest, OutOfRange, Tensors, shown
from client_sdk.tensors.safetensors_file import Source, TensorHeader

NOBODY = Origin()


@dataclass(frozen=True, slots=True)
class Identity:
    """Deltas as they are, in one dtype: rounded to nearest, ties to even, when it is narrower than float32."""

    name: str
    dtype: str
    """F32 or F16."""
    seeded: bool = False

    @property
    def lossless(self) -> bool:
        return self.dtype == "F32"

    @property
    def linear(self) -> bool:
        """Rounding is not linear, so only float32 can be added under masks."""
        return self.lossless

    def count(self, elements: int) -> int:
        """Values of an encoded delta of so many elements: one for each."""
        return elements

    def forward(self, flat: Float32, seed: bytes) -> Float32:
        """The encoded values of ``flat``: a copy."""
        return np.array(flat)

    def back(self, read: Read, elements: int, seed: bytes) -> Read:
        """Reads the flat delta: its values are the encoded ones."""
        return read

    def encode(self, delta: Mapping[str, Array], origin: Origin = NOBODY) -> Tensors:
        """float32 deltas in this codec's dtype, for any origin. Raises NotFinite, OutOfRange (float16 ends at
        65504), ManifestMismatch.
        """
        return {name: self._encoded(name, array) for name, array in delta.items()}

    def _encoded(self, name: str, array: Array) -> Array:
        require_encodable(name, array, self.name)
        try:
            return narrow(array, self.dtype)
        except OutOfRange as error:
            raise OutOfRange(f"the delta of {shown(name)} does not fit {self.name}: {error}") from None

    def decode(self, tensors: Mapping[str, Array]) -> Tensors:
        """float32 of each. Raises ManifestMismatch when a tensor has another dtype than this codec writes."""
        manifest = Manifest.of(tensors)
        self.wire(manifest).require(manifest)
        return {name: widen(array) for name, array in tensors.items()}

    def wire(self, manifest: Manifest) -> Manifest:
        """The manifest of an encoded update: the model's names and shapes, in this codec's dtype."""
        return manifest.with_dtype(self.dtype)

    def blocks(self, source: Source, header: TensorHeader, block: int = BLOCK) -> Iterator[Float32]:
        """See ``Codec.blocks``. float32 in memory is given as views of ``source``."""
        self.wire(header.manifest).require(header.manifest)
        if isinstance(source, bytes | bytearray | memoryview):
            return self._from_memory(source, header, block)
        return self._from_file(source, header, block)

    def _from_memory(
        self, source: bytes | bytearray | memoryview, header: TensorHeader, block: int
    ) -> Iterator[Float32]:
        for begin, elements in self._places(header):
            if not elements:
                continue
            stored: Array = np.frombuffer(source, NUMPY_DTYPES[self.dtype], elements, begin)
            for part in pieces(stored, block):
                yield widen(part)

    def _from_file(self, source: Path | BinaryIO, header: TensorHeader, block: int) -> Iterator[Float32]:
        buffer: Array = np.empty(block, NUMPY_DTYPES[self.dtype])
        with opened(source) as file:
            for begin, elements in self._places(header):
                file.seek(begin)
                for start in range(0, elements, block):
                    part = buffer[: min(block, elements - start)]
                    fill(file, part.view(np.uint8).data)
                    yield widen(part)

    @staticmethod
    def _places(header: TensorHeader) -> list[tuple[int, int]]:
        """(first byte, elements) of each tensor, in the order of the names: that of float32 deltas, whatever the
        file's.
        """
        return [(header.offsets[name][0], header.manifest[name].elements) for name in sorted(header.manifest)]


FLOAT32 = Identity("float32@1", "F32")
FLOAT16 = Identity("float16@1", "F16")
