"""Memory and files that a process shares with its forks: made before the fork, nameless, freed with the last
process."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from client_sdk.tensors import Array, Manifest, Tensors, numpy_dtype
from client_sdk.tensors.floats import Float32

_ALIGN = 64
COLUMNS = 1 << 20
"""Elements of a block of columns, over all rows together: 4 MiB."""


class SharedTensors:
    """Tensors of one manifest: one process ``write``s them, the others ``view`` them without a copy."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._places: dict[str, int] = {}
        size = 0
        for name, spec in manifest.items():
            self._places[name] = size
            size += -(-spec.nbytes // _ALIGN) * _ALIGN
        self._memory = mmap.mmap(-1, max(1, size))

    def write(self, tensors: Tensors) -> None:
        """ManifestMismatch for other names, shapes or dtypes."""
        self.manifest.require(Manifest.of(tensors), "the model")
        for name, array in self._arrays().items():
            np.copyto(array, tensors[name])

    def view(self) -> Tensors:
        """Returns read-only arrays on the shared memory: later writes show in them too."""
        arrays = self._arrays()
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    def _arrays(self) -> dict[str, Array]:
        return {
            name: np.ndarray(spec.shape, numpy_dtype(spec.dtype), self._memory, self._places[name])
            for name, spec in self.manifest.items()
        }


def shared_lanes(elements: int) -> NDArray[np.int64]:
    """Returns zeros, int64 [elements], in memory that forked processes share."""
    return np.frombuffer(mmap.mmap(-1, max(8, 8 * elements)), np.int64, elements)


class VectorFile:
    """Vectors of ``elements`` float32 values in a nameless file: one process ``put``s, another reads ``columns``."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._file = tempfile.TemporaryFile(prefix="quorate-updates-")  # noqa: SIM115 - closed by ``close``

    def put(self, slot: int, blocks: Iterable[Float32]) -> None:
        """Stores the vector, in 1-d blocks, in place ``slot``, counted from 0."""
        place = 4 * self._elements * slot
        for block in blocks:
            data = np.ascontiguousarray(block).data.cast("B")
            while data:
                written = os.pwrite(self._file.fileno(), data, place)
                place, data = place + written, data[written:]

    def read(self, slot: int, start: int, into: Float32) -> None:
        """Reads values from ``start`` of the vector in ``slot``. OSError where they are missing."""
        data = into.data.cast("B")
        place = 4 * (self._elements * slot + start)
        while data:
            found = os.preadv(self._file.fileno(), [data], place)
            if not found:
                raise OSError("a stored update is missing")
            place, data = place + found, data[found:]

    def clear(self) -> None:
        os.ftruncate(self._file.fileno(), 0)

    def close(self) -> None:
        self._file.close()


def columns(elements: int, places: Sequence[tuple[VectorFile, int]]) -> Iterator[NDArray[np.float32]]:
    """The vectors in these places by blocks of columns, [places, width]."""
    width = max(256, COLUMNS // max(1, len(places)))
    for index in range(math.ceil(elements / width)):
        start = index * width
        block = np.empty((len(places), min(width, elements - start)), np.float32)
        for row, (vectors, slot) in zip(block, places, strict=True):
            vectors.read(slot, start, row)
        yield block
