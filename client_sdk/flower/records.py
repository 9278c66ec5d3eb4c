"""Flower's records as bytes: what a message, a reply and a Context.state carry.

::

    quorate-flower-1\\n     17 bytes
    length of the header   8 bytes, little-endian
    header                 JSON in ASCII, keys sorted, no spaces; the records in their order
    bytes                  of the arrays and of ``bytes`` values, in the order in which the header names them

The header is a list with ``[name, kind, items]`` for each record. Kinds and their items:

- ``arrays``: ``{key, dtype, shape, stype}`` as the Array has them, and either ``raw`` (dtype and shape of a numpy array
  in C order, whose bytes follow without the header of its .npy file) or ``bytes`` (how many follow, as they are).
- ``metrics`` and ``config``: ``[key, value]``. A value is a number, a text, a bool or a list of one of them;
  ``{"f": "nan"}``, ``{"f": "inf"}``, ``{"f": "-inf"}`` for floats that JSON lacks; ``{"b": n}`` for n bytes.

The same records give the same bytes. There is no pickle: an array of Python objects is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

# ------------------------------------------------------------ npy
# The header of an .npy file: what a numpy array in Flower's records starts with.
#
# An array travels without this header where numpy itself would write the same bytes again from the dtype and the shape:
# the array is in C order and its dtype is a plain one. Everything else travels as it is.


NPY_MAGIC = b"\x93NUMPY"
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


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What numpy writes before the bytes of an array in C order."""
    out = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, fields)
    return out.getvalue()


def read_npy(data: bytes) -> PlainArray | None:
    """What the .npy file ``data`` begins with; None: it is no file that numpy would write the same way again.

    Raises NeedsPickle where reading it would need pickle.
    """
    if not data.startswith(NPY_MAGIC):
        return None
    start = io.BytesIO(data[: len(NPY_MAGIC) + 2 + 4 + 65535])
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
    same = data[: found.start] == npy_header(found.dtype, found.shape)
    return found if same and len(data) - found.start == found.bytes else None


# ------------------------------------------------------------ records


MAGIC = b"quorate-flower-1\n"
HEADER_LIMIT = 64 << 20
"""Bytes of a header. More metrics than that belong into an ArrayRecord."""
PART_BYTES = 1 << 20
"""Of one part of an encoded content."""

NUMPY = "numpy.ndarray"
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class RecordsError(ValueError):
    """Records that cannot be sent, or bytes that are none."""


@dataclass(frozen=True)
class Encoded:
    """A content: its name, its length, and its bytes as views of the records' own memory."""

    digest: str
    """SHA-256 in hexadecimal."""
    length: int
    views: tuple[memoryview, ...]

    def parts(self) -> Iterator[memoryview]:
        """The bytes, in parts of at most ``PART_BYTES``; as often as it is called."""
        return _cut(self.views)


def encode(records: RecordDict) -> Encoded:
    """The content of ``records``, without a copy of its arrays. They must not be changed while it is used.

    Raises RecordsError for what cannot travel.
    """
    return sealed(views_of(records))


def sealed(views: tuple[memoryview, ...]) -> Encoded:
    """The content that consists of these bytes."""
    digest = hashlib.sha256()
    for part in _cut(views):
        digest.update(part)
    return Encoded(digest.hexdigest(), sum(len(view) for view in views), views)


def views_of(records: RecordDict) -> tuple[memoryview, ...]:
    """The bytes of the content: what comes before the arrays, then a view of each array and ``bytes`` value.

    Raises RecordsError for what cannot travel.
    """
    body: list[memoryview] = []
    listed = [_record(name, record, body) for name, record in records.items()]
    try:
        text = json.dumps(listed, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii")
    except ValueError as error:
        raise RecordsError(f"A value of a message cannot be sent: {error}.") from None
    if len(text) > HEADER_LIMIT:
        raise RecordsError(
            f"The metrics and the configuration of a message take {len(text)} bytes, and {HEADER_LIMIT} may: send long "
            "lists of numbers as an array, in an ArrayRecord."
        )
    return (memoryview(MAGIC + len(text).to_bytes(8, "little") + text), *body)


def decode(content: bytes | bytearray | memoryview) -> RecordDict:
    """The records of a content, which may be a memory map of a file: its bytes are copied once.

    Raises RecordsError, before it allocates anything, where the content is malformed.
    """
    whole = memoryview(content).cast("B")
    start = len(MAGIC) + 8
    if len(whole) < start or bytes(whole[: len(MAGIC)]) != MAGIC:
        raise RecordsError("This is no content of a Flower message.")
    length = int.from_bytes(whole[len(MAGIC) : start], "little")
    if length > min(HEADER_LIMIT, len(whole) - start):
        raise RecordsError(f"The content is cut off or damaged: its header would take {length} bytes.")
    try:
        listed = json.loads(bytes(whole[start : start + length]))
    except (ValueError, RecursionError) as error:
        raise RecordsError(f"The header of the content is no JSON: {error}.") from None
    body = _Body(whole, start + length)
    records = RecordDict()
    try:
        for name, kind, items in listed:
            if name in records:
                raise RecordsError(f"The content has the record {name!r} twice.")
            records[name] = _READ[kind](items, body)
    except RecordsError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error!s:.200}"
        raise RecordsError(f"The header of the content is malformed ({what}).") from None
    body.end()
    return records


def _cut(views: tuple[memoryview, ...]) -> Iterator[memoryview]:
    for view in views:
        for start in range(0, len(view), PART_BYTES):
            yield view[start : start + PART_BYTES]


# encoding


def _record(name: str, record: object, body: list[memoryview]) -> list[Any]:
    match record:
        case ArrayRecord():
            return [name, "arrays", [_array(name, key, array, body) for key, array in record.items()]]
        case MetricRecord():
            return [name, "metrics", [[key, _value(value, body)] for key, value in record.items()]]
        case ConfigRecord():
            return [name, "config", [[key, _value(value, body)] for key, value in record.items()]]
        case _:
            raise RecordsError(f"The record {name!r} is a {type(record).__name__}, which Flower does not have.")


def _array(record: str, key: str, array: Array, body: list[memoryview]) -> dict[str, Any]:
    shape = [int(size) for size in array.shape]
    entry: dict[str, Any] = {"key": key, "dtype": array.dtype, "shape": shape, "stype": str(array.stype)}
    try:
        plain = read_npy(array.data) if array.stype == NUMPY else None
    except NeedsPickle as error:
        raise RecordsError(f"The array {key!r} of the record {record!r} cannot be sent: {error}.") from None
    if plain is None:
        return {**entry, "bytes": _append(array.data, body)}
    _append(memoryview(array.data)[plain.start :], body)
    return {**entry, "raw": [plain.dtype, list(plain.shape)]}


def _value(value: object, body: list[memoryview]) -> object:
    if isinstance(value, list):
        return [_value(one, body) for one in value]
    if isinstance(value, bytes):
        return {"b": _append(value, body)}
    if isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"f": repr(float(value))}
    if isinstance(value, int):
        return int(value)
    raise RecordsError(f"A value of the type {type(value).__name__} cannot be sent.")


def _append(data: bytes | memoryview, body: list[memoryview]) -> int:
    if len(data):
        body.append(memoryview(data))
    return len(data)


# decoding


class _Body:
    """The bytes after the header, taken in order."""

    def __init__(self, whole: memoryview, start: int) -> None:
        self._whole, self._at = whole, start

    def take(self, length: int) -> memoryview:
        """The next bytes; RecordsError where there are fewer."""
        if length < 0 or length > len(self._whole) - self._at:
            raise RecordsError(f"The content is cut off or damaged: {length} bytes were expected at {self._at}.")
        self._at += length
        return self._whole[self._at - length : self._at]

    def end(self) -> None:
        """RecordsError where bytes are left."""
        if self._at != len(self._whole):
            raise RecordsError(f"The content has {len(self._whole) - self._at} bytes too many.")


def _read_arrays(items: list[dict[str, Any]], body: _Body) -> ArrayRecord:
    record = ArrayRecord()
    for item in items:
        if item["key"] in record:
            raise RecordsError(f"The content has the array {item['key']!r} twice.")
        record[item["key"]] = Array(item["dtype"], _shape(item["shape"]), item["stype"], _read_data(item, body))
    return record


def _read_data(item: dict[str, Any], body: _Body) -> bytes:
    if "raw" not in item:
        data = bytes(body.take(_size(item["bytes"])))
        if item["stype"] == NUMPY:
            try:
                read_npy(data)
            except NeedsPickle as error:
                raise RecordsError(f"The array {item['key']!r} is refused: {error}.") from None
        return data
    dtype, shape = item["raw"][0], _shape(item["raw"][1])
    if dtype not in PLAIN or len(shape) > DIMENSIONS_MAX:
        raise RecordsError(f"The array {item['key']!r} has a dtype or a number of dimensions that does not exist.")
    return b"".join((npy_header(dtype, shape), body.take(PlainArray(dtype, shape, 0).bytes)))


def _shape(sizes: list[Any]) -> tuple[int, ...]:
    return tuple(_size(size) for size in sizes)


def _size(size: object) -> int:
    if type(size) is not int or not 0 <= size < 2**63:
        raise RecordsError(f"{size!r:.40} is no size of an array.")
    return size


def _read_value(value: Any, body: _Body) -> Any:
    if isinstance(value, list):
        return [_read_value(one, body) for one in value]
    if isinstance(value, dict):
        return bytes(body.take(_size(value["b"]))) if "b" in value else _SPECIAL[value["f"]]
    return value


def _values(items: list[Any], body: _Body) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in items:
        if key in values:
            raise RecordsError(f"The content has the value {key!r} twice.")
        values[key] = _read_value(value, body)
    return values


_READ: dict[str, Callable[[list[Any], _Body], ArrayRecord | MetricRecord | ConfigRecord]] = {
    "arrays": _read_arrays,
    "metrics": lambda items, body: MetricRecord(_values(items, body)),
    "config": lambda items, body: ConfigRecord(_values(items, body)),
}
