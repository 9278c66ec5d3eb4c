"""The idx format, and the four idx files that MNIST and its drop-in replacements consist of.

An idx file is: two zero bytes, a type code (0x08: unsigned byte), the number of dimensions, each dimension as a
big-endian uint32, then the values in C order. Source: LeCun, Cortes, Burges, "The MNIST database of handwritten
digits", section "File formats for the MNIST database".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from simulation.datasets.cache import Arrays
from simulation.datasets.errors import DataCorrupt

LAYOUT: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "train_x": ("train-images-idx3-ubyte", (60_000, 28, 28)),
    "train_y": ("train-labels-idx1-ubyte", (60_000,)),
    "test_x": ("t10k-images-idx3-ubyte", (10_000, 28, 28)),
    "test_y": ("t10k-labels-idx1-ubyte", (10_000,)),
}
"""Array name -> (file name, shape) of MNIST, which Fashion-MNIST and others share."""


def idx_bytes(shape: tuple[int, ...]) -> int:
    """The exact length in bytes of an idx file of unsigned bytes of this shape."""
    return 4 + 4 * len(shape) + int(np.prod(shape))


def decode_idx(data: bytes, shape: tuple[int, ...], what: str) -> npt.NDArray[np.uint8]:
    """The values of an idx file of unsigned bytes, `[*shape]`, read-only.

    Raises `DataCorrupt` when type, shape or length are not exactly as expected.
    """
    head = bytes([0, 0, 0x08, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
    if data[:4] != head[:4]:
        raise DataCorrupt(f"{what} is no idx file of unsigned bytes in {len(shape)} dimensions")
    if data[: len(head)] != head:
        stated = np.frombuffer(data[4 : len(head)].ljust(len(head) - 4, b"\0"), dtype=">u4").tolist()
        raise DataCorrupt(f"{what} states shape {stated} where {list(shape)} is expected")
    if len(data) != idx_bytes(shape):
        raise DataCorrupt(f"{what} has {len(data)} bytes where its shape needs {idx_bytes(shape)}")
    return np.frombuffer(data, dtype=np.uint8, offset=len(head)).reshape(shape)


def decode_layout(files: Mapping[str, bytes]) -> Arrays:
    """The four arrays of `LAYOUT` from the four files' contents by file name, uint8, checked for shape."""
    return {name: decode_idx(files[file], shape, file) for name, (file, shape) in LAYOUT.items()}
