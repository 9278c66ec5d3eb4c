"""Codecs that send the largest values alone: ``top-tenth@1``, ``top-hundredth@1`` (top-k: Aji and Heafield 2017,
arXiv:1704.05021; Lin et al. 2018, arXiv:1712.01887).

Of the flat delta of n values the ceil(n / 10) or ceil(n / 100) of largest magnitude travel, as float32 with their
places; the others are 0. Of equal magnitudes those that come first in the order of the names are sent. It is biased:
what is small is never sent, unless the device adds it to its next update, as the strategy ``error-feedback`` has it do.

In the body are the places, rising, uint32; the values; and names and shapes without data. A mean of the largest values
of devices is not the largest values of a mean, so these codecs do not work under masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from client_sdk.codecs.port import FlatCodec, Octets, Origin, Read
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Manifest, ManifestMismatch, OutOfRange, Tensors, TensorSpec

PLACES, VALUES = "top.places", "top.values"
MOST = 2**32
"""Values that a place can count."""


@dataclass(frozen=True, slots=True)
class Top(FlatCodec):
    """See ``Codec``."""

    name: str
    one_of: int
    """One value of so many is sent."""
    lossless: bool = False

    OWN: ClassVar = (PLACES, VALUES)

    def _own(self, manifest: Manifest) -> dict[str, TensorSpec]:
        """ManifestMismatch for more values than a place can count."""
        if manifest.elements > MOST:
            raise ManifestMismatch(f"{self.name} takes at most {MOST:,} values, not {manifest.elements:,}")
        count = (self._count(manifest),)
        return {PLACES: TensorSpec("U32", count), VALUES: TensorSpec("F32", count)}

    def _encoded(self, flat: Float32, manifest: Manifest, origin: Origin) -> Tensors:
        """Places and values of the largest, for any origin."""
        places = _largest(np.abs(flat), self._count(manifest))
        return {PLACES: places.astype(np.uint32), VALUES: flat[places]}

    def _read(self, manifest: Manifest, own: Mapping[str, Octets]) -> Read:
        """See ``FlatCodec``. Memory: what travels. OutOfRange where places do not rise, or are beyond the last
        value."""
        size = 4 * self._count(manifest)
        wide = np.frombuffer(own[PLACES](0, size), "<u4").astype(np.int64)
        values = np.frombuffer(own[VALUES](0, size), "<f4").astype(np.float32)
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


def _largest(magnitudes: Float32, count: int) -> npt.NDArray[np.int64]:
    """The places of the ``count`` largest, rising; of equal ones the first."""
    if not count:
        return np.empty(0, np.int64)
    least = np.partition(magnitudes, magnitudes.size - count)[magnitudes.size - count]
    above = magnitudes > least
    equal = np.flatnonzero(magnitudes == least)[: count - np.count_nonzero(above)]
    return np.sort(np.concatenate([np.flatnonzero(above), equal]))


TOP = (Top("top-tenth@1", 10), Top("top-hundredth@1", 100))
