"""Codecs that are one linear map of the flat delta, the same for all devices of a round: a part of the coordinates is
drawn (``sampling``), or the vector is rotated (``rotation``), or the drawn part is rotated.

==================================== ================================================= =====================
name                                 what it sends                                     values sent of d
==================================== ================================================= =====================
rotated@1                            all values, rotated                               d
sampled-half@1                       every second coordinate on average                about d / 2
sampled-quarter@1                    every fourth                                      about d / 4
sampled-half-rotated@1               every second, the drawn ones rotated              about d / 2
sampled-quarter-rotated@1            every fourth, rotated                             about d / 4
sampled-half-unbiased@1, ...         as these four, and what is decoded is scaled up   the same
==================================== ================================================= =====================

Because the map is the same for all, sums of encoded deltas are encoded sums: these codecs work under masks, where a
rotation makes few bits a value enough. Of a sampled delta the coordinates that are not drawn are 0, so the model stays
as it is there (a server optimizer with a memory of its own, such as FedAvgM, may still move it). Only the *unbiased*
forms scale the others up, where they are decoded: what travels, and so its range, is that of the other forms.

The flat delta has its tensors in the order of their names. In the body of a plain update the encoded values are one
float32 tensor ``VALUES``, and the seed one tensor ``SEED`` of 32 bytes, so that a body can be decoded by itself. Each
tensor of the delta is there under its own name with a dimension of 0 before its shape: names and shapes without data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from client_sdk.codecs.port import BLOCK, Origin, fill, opened, require_encodable
from client_sdk.codecs.reading import Read
from client_sdk.codecs.rotation import rotate, rotated_back
from client_sdk.codecs.sampling import sampled, sampled_count, spread_out
from client_sdk.codecs.seed import SEED_BYTES, shared_seed
from client_sdk.tensors.flat import flatten, split
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Array, Manifest, ManifestMismatch, Tensors, TensorSpec, shown
from client_sdk.tensors.safetensors_file import Source, TensorHeader

VALUES = "linear.values"
SEED = "linear.seed"
"""The names under which values and seed travel; no tensor of a model may have them."""


@dataclass(frozen=True, slots=True)
class LinearMap:
    """One of the codecs of this file."""

    name: str
    rotated: bool
    """Whether the values are rotated, after the drawing."""
    one_in: int = 1
    """One in so many coordinates is sent; 1: all are."""
    unbiased: bool = False
    """Whether the expectation of what is decoded, over the draws of rounds, is the delta."""
    lossless: bool = False
    linear: bool = True
    seeded: bool = True

    # ------------------------------------------------------------ flat vectors

    def count(self, elements: int) -> int:
        """See ``LinearCodec.count``."""
        return sampled_count(elements, self.one_in)

    def forward(self, flat: Float32, seed: bytes) -> Float32:
        """See ``LinearCodec.forward``."""
        values = np.array(flat) if self.one_in == 1 else sampled(flat, self.one_in, seed)
        if self.rotated:
            rotate(values, seed)
        return values

    def back(self, read: Read, elements: int, seed: bytes) -> Read:
        """See ``LinearCodec.back``."""
        if self.rotated:
            read = rotated_back(read, self.count(elements), seed).read
        return read if self.one_in == 1 else spread_out(read, elements, self.one_in, seed, unbiased=self.unbiased).read

    # ------------------------------------------------------------ bodies of plain updates

    def encode(self, delta: Mapping[str, Array], origin: Origin) -> Tensors:
        """The values, the seed, and the names and shapes. Raises NotFinite, OutOfRange, ManifestMismatch (not float32,
        or a name that this codec keeps for itself)."""
        for name, array in delta.items():
            _require_free(name)
            require_encodable(name, array, self.name)
        seed = shared_seed(origin.plan, origin.round)
        values = self.forward(flatten(delta, Manifest.of(delta)), seed)
        shapes = {name: np.empty((0, *array.shape), np.float32) for name, array in delta.items()}
        return {**shapes, VALUES: values, SEED: np.frombuffer(seed, np.uint8)}

    def decode(self, tensors: Mapping[str, Array]) -> Tensors:
        """float32 of each. Raises ManifestMismatch when these are not the tensors that this codec writes."""
        manifest = self._manifest(Manifest.of(tensors))
        values = np.ascontiguousarray(tensors[VALUES], np.float32)
        read = self.back(lambda start, count: values[start : start + count], manifest.elements, _seed(tensors[SEED]))
        return split(np.array(read(0, manifest.elements)), manifest)

    def wire(self, manifest: Manifest) -> Manifest:
        """Names and shapes without data, the values, the seed. Raises ManifestMismatch for the two names."""
        for name in manifest:
            _require_free(name)
        shapes = {name: TensorSpec("F32", (0, *spec.shape)) for name, spec in manifest.items()}
        values = TensorSpec("F32", (self.count(manifest.elements),))
        return Manifest({**shapes, VALUES: values, SEED: TensorSpec("U8", (SEED_BYTES,))}).in_file_order()

    def seed_of(self, source: Path | BinaryIO, header: TensorHeader) -> bytes:
        """The seed in the body of an update, which has the manifest of ``wire``."""
        with opened(source) as file:
            file.seek(header.offsets[SEED][0])
            found = bytearray(SEED_BYTES)
            fill(file, memoryview(found))
        return bytes(found)

    def blocks(self, source: Source, header: TensorHeader, block: int = BLOCK) -> Iterator[Float32]:
        """See ``Codec.blocks``. Memory: a few blocks of the rotation and of the drawing."""
        return self._blocks(source, header, self._manifest(header.manifest), block)

    def _blocks(self, source: Source, header: TensorHeader, manifest: Manifest, block: int) -> Iterator[Float32]:
        (first, _), (seed_at, _) = header.offsets[VALUES], header.offsets[SEED]
        with ExitStack() as stack:
            if isinstance(source, bytes | bytearray | memoryview):
                view = memoryview(source).cast("B")

                def octets(begin: int, size: int) -> memoryview:
                    return view[begin : begin + size]
            else:
                file = stack.enter_context(opened(source))

                def octets(begin: int, size: int) -> memoryview:
                    file.seek(begin)
                    fill(file, found := memoryview(bytearray(size)))
                    return found

            def stored(start: int, count: int) -> Float32:
                return np.frombuffer(octets(first + 4 * start, 4 * count), "<f4").astype(np.float32, copy=False)

            read = self.back(stored, manifest.elements, bytes(octets(seed_at, SEED_BYTES)))
            for place in manifest.slices().values():
                for start in range(place.start, place.stop, block):
                    yield read(start, min(block, place.stop - start))

    def _manifest(self, travelled: Manifest) -> Manifest:
        """The manifest of the deltas in a body. ManifestMismatch where it is not one of this codec."""
        names = travelled.keys() - {VALUES, SEED}
        manifest = Manifest({name: TensorSpec("F32", travelled[name].shape[1:]) for name in names}).in_file_order()
        self.wire(manifest).require(travelled)
        return manifest


def _seed(array: Array) -> bytes:
    return np.ascontiguousarray(array, np.uint8).tobytes()


def _require_free(name: str) -> None:
    if name in (VALUES, SEED):
        raise ManifestMismatch(f"a tensor named {shown(name)} cannot travel in a codec that keeps its own data there")


ROTATED = LinearMap("rotated@1", rotated=True)
SAMPLED: tuple[LinearMap, ...] = tuple(
    LinearMap(
        f"sampled-{name}{'-rotated' * rotated}{'-unbiased' * unbiased}@1",
        rotated=rotated,
        one_in=one_in,
        unbiased=unbiased,
    )
    for unbiased in (False, True)
    for rotated in (False, True)
    for name, one_in in (("half", 2), ("quarter", 4))
)
