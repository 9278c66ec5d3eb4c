"""The header of an .npy file: what a numpy array in Flower's records starts with.

An array travels without this header where numpy itself would write the same bytes again from the dtype and the shape:
the array is in C order and its dtype is a plain one. Everything else travels as it is.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np

MAGIC = b"\x93NUMPY"
DIMENSIONS_MAX = 64
"""What numpy can make."""

_KINDS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
PLAIN = {np.dtype(order + kind).str: np.dtype(order + kind) for kind in _KINDS for order in "<>"}
"""The dtypes that travel as dtype, shape and bytes, by the name that numpy gives them in a file: ``<f4``, ``>i8``."""


class NeedsPickle(ValueError):
    """The array holds Python objects: only pickle could read it, and that is never done."""


@dataclass(frozen=True)
class PlainArray:
    """An array in C order: its dtype as in ``PLAIN``, its shape, and where its bytes begin in the .npy file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        """Length of the array's bytes."""
        return math.prod(self.shape) * PLAIN[self.dtype].itemsize


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What numpy writes before the bytes of an array in C order."""
    out = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, fields)
    return out.getvalue()


def read(data: bytes) -> PlainArray | None:
    """What the .npy file ``data`` begins with; None: it is no file that numpy would write the same way again.

    Raises NeedsPickle where reading it would need pickle.
    """
    if not data.startswith(MAGIC):
        return None
    start = io.BytesIO(data[: len(MAGIC) + 2 + 4 + 65535])
    try:
        version = np.lib.format.read_magic(start)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(start)
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError):
        return None
    if dtype.hasobject:
        raise NeedsPickle("it holds Python objects, which only pickle could read; make it an array of numbers")
    plain = version == (1, 0) and not fortran and dtype.str in PLAIN and len(shape) <= DIMENSIONS_MAX
    if not plain or any(size < 0 for size in shape):
        return None
    found = PlainArray(dtype.str, tuple(int(size) for size in shape), start.tell())
    same = data[: found.start] == header(found.dtype, found.shape)
    return found if same and len(data) - found.start == found.bytes else None
