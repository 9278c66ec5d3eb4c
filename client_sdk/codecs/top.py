"""Codecs that send the largest values alone: ``top-tenth@1``, ``top-hundredth@1`` (top-k: Aji and Heafield 2017,
arXiv:1704.05021; Lin et al. 2018, arXiv:1712.01887).

Of the flat delta of n values the ceil(n / 10) or ceil(n / 100) of largest magnitude travel, as float32 with their
places; the others are 0. Of equal magnitudes those that come first in the order of the names are sent. It is biased:
what is small is never sent, unless the device adds it to its next update, as the strategy ``error-feedback`` has it do.

In the body are the places, rising, uint32; the values; and names and shapes without data. A mean of the largest values
of devices is not the largest values of a mean, so these codecs do not work under masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client_sdk.codecs.port import (
    BLOCK,
    Origin,
    Read,
    beside_shapes,
    by_tensor,
    octets_of,
    of_shapes,
    require_delta,
    shapes_alone,
)
from client_sdk.tensors.floats import Float32, flatten, split
from client_sdk.tensors.manifest import Array, Manifest, ManifestMismatch, OutOfRange, Tensors, TensorSpec
from client_sdk.tensors.safetensors_file import Source, TensorHeader

PLACES, VALUES = "top.places", "top.values"
MOST = 2**32
"""Values that a place can count."""


@dataclass(frozen=True, slots=True)
class Top:
    """See ``Codec``."""

    name: str
    one_of: int
    """One value of so many is sent."""
    lossless: bool = False

    def encode(self, delta: Mapping[str, Array], origin: Origin) -> Tensors:
        """Places and values of the largest, for any origin. Raises NotFinite, OutOfRange, ManifestMismatch."""
        require_delta(delta, (PLACES, VALUES), self.name)
        manifest = Manifest.of(delta)
        self.wire(manifest)
        values = flatten(delta, manifest)
        places = _largest(np.abs(values), self._count(manifest))
        return {**shapes_alone(delta), PLACES: places.astype(np.uint32), VALUES: values[places]}

    def decode(self, tensors: Mapping[str, Array]) -> Tensors:
        """float32 of each. Raises ManifestMismatch and OutOfRange as ``blocks``."""
        manifest = self._manifest(Manifest.of(tensors))
        read = self._read(manifest, tensors[PLACES], tensors[VALUES])
        return split(np.array(read(0, manifest.elements)), manifest)

    def wire(self, manifest: Manifest) -> Manifest:
        """Names and shapes without data, places and values. Raises ManifestMismatch for the names of these, and for
        more values than a place can count."""
        if manifest.elements > MOST:
            raise ManifestMismatch(f"{self.name} takes at most {MOST:,} values, not {manifest.elements:,}")
        count = (self._count(manifest),)
        own = {PLACES: TensorSpec("U32", count), VALUES: TensorSpec("F32", count)}
        return beside_shapes(manifest, own, self.name)

    def blocks(self, source: Source, header: TensorHeader, block: int = BLOCK) -> Iterator[Float32]:
        """See ``Codec.blocks``. Memory: what travels. OutOfRange where places do not rise, or are beyond the last
        value."""
        return self._blocks(source, header, self._manifest(header.manifest), block)

    def _blocks(self, source: Source, header: TensorHeader, manifest: Manifest, block: int) -> Iterator[Float32]:
        with octets_of(source) as octets:
            places, values = (
                np.frombuffer(octets(header.offsets[name][0], header.manifest[name].nbytes), dtype)
                for name, dtype in ((PLACES, "<u4"), (VALUES, "<f4"))
            )
            yield from by_tensor(self._read(manifest, places, values.astype(np.float32)), manifest, block)

    def _read(self, manifest: Manifest, places: Array, values: Float32) -> Read:
        wide = places.astype(np.int64)
        if (np.diff(wide) <= 0).any() or (wide.size and wide[-1] >= manifest.elements):
            raise OutOfRange(f"the places of {self.name} do not rise, or are beyond {manifest.elements} values")

        def read(start: int, count: int) -> Float32:
            found = np.zeros(count, np.float32)
            first, stop = np.searchsorted(wide, (start, start + count))
            found[wide[first:stop] - start] = values[first:stop]
            return found

        return read

    def _count(self, manifest: Manifest) -> int:
        return -(-manifest.elements // self.one_of)

    def _manifest(self, travelled: Manifest) -> Manifest:
        """The manifest of the deltas in a body. ManifestMismatch where it is not one of this codec."""
        manifest = of_shapes(travelled, (PLACES, VALUES))
        self.wire(manifest).require(travelled)
        return manifest


def _largest(magnitudes: Float32, count: int) -> npt.NDArray[np.int64]:
    """The places of the ``count`` largest, rising; of equal ones the first."""
    if not count:
        return np.empty(0, np.int64)
    least = np.partition(magnitudes, magnitudes.size - count)[magnitudes.size - count]
    above = magnitudes > least
    equal = np.flatnonzero(magnitudes == least)[: count - np.count_nonzero(above)]
    return np.sort(np.concatenate([np.flatnonzero(above), equal]))


TOP = (Top("top-tenth@1", 10), Top("top-hundredth@1", 100))
