"""safetensors bytes: a strict header parser, and a writer that lays bytes out as the safetensors library does.

The format: eight bytes with the header's length N (little endian), N bytes of JSON ``{"__metadata__": {...},
name: {"dtype", "shape", "data_offsets": [begin, end]}}`` padded with spaces to a multiple of eight, then the data
without gaps. Every length is checked before anything is read, so a hostile file costs at most its header.

The library also accepts files that this parser refuses: duplicate names (the last wins), unknown keys, headers of up to
100 MB. Bodies of peers are held to ``header_limit``, which is near what the run's own tensors need.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from client_sdk.tensors.floats import as_array
from client_sdk.tensors.manifest import (
    NUMPY_DTYPES,
    Array,
    MalformedTensors,
    Manifest,
    Tensors,
    TensorSpec,
    TrailingBytes,
    TruncatedTensors,
    shown,
)

HEADER_LIMIT = 4 << 20
"""Most bytes of any header, the eight of its length not counted: some 40,000 tensors."""
REPORT_ROOM = 16 * 1024
"""Bytes of an update's header that its report may need: 128 metrics with names of 64 letters."""
SHORT_HEADER = 64 * 1024
"""A header of so many bytes is read from anybody, whatever the tensors."""
METADATA_KEY = "__metadata__"
_LONGEST_OF_ALL = 100_000_000
"""Bytes of a header that the safetensors library itself takes at most."""
_SURROGATE = re.compile("[\ud800-\udfff]")

Source = bytes | bytearray | memoryview | Path | BinaryIO
"""Where a file can be read from: its bytes, its path, or a seekable binary stream that holds nothing else."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """A checked header. ``offsets``: name -> (begin, end) in bytes from the start of the file."""

    manifest: Manifest
    metadata: Mapping[str, str]
    offsets: Mapping[str, tuple[int, int]]
    data_start: int
    total_bytes: int


def read_header(source: Source, limit: int = HEADER_LIMIT) -> TensorHeader:
    """Read and check the header of a safetensors file; the data is not read.

    The manifest is in the order of the data. A stream is left at an unspecified position. Raises TruncatedTensors,
    TrailingBytes or MalformedTensors, and OSError where the file itself cannot be read; never anything else.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            return read_header(file, limit)
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        total = view.nbytes
        size = _header_size(bytes(view[:8]), total, limit)
        return _parse(bytes(view[8 : 8 + size]), total)
    total = source.seek(0, os.SEEK_END)
    source.seek(0)
    size = _header_size(source.read(8), total, limit)
    text = source.read(size)
    if len(text) != size:
        raise TruncatedTensors("the file became shorter while it was read")
    return _parse(text, total)


def _header_size(prefix: bytes, total: int, limit: int) -> int:
    if len(prefix) < 8:
        raise TruncatedTensors(f"the file has {total} bytes; a safetensors file has at least ten")
    size = int.from_bytes(prefix, "little")
    if size > limit:
        if size > _LONGEST_OF_ALL:  # no safetensors file of any program
            raise MalformedTensors(_foreign(prefix))
        raise MalformedTensors(f"the header is {size} bytes long; at most {limit} are taken")
    if 8 + size > total:
        raise TruncatedTensors(f"the file ends inside its header: {total} bytes, {8 + size} with the whole header")
    return size


def _foreign(prefix: bytes) -> str:
    """What a file is that is no safetensors file, and how it becomes one."""
    convert = "to_bytes of client_sdk.tensors makes one from a dict of arrays"
    convert_torch = ", here torch.load(FILE, map_location='cpu')"
    if prefix.startswith(b"PK\x03\x04"):
        what = "this is a zip archive, as torch.save and numpy.savez make, and not a safetensors file"
        return f"{what}: {convert}{convert_torch}, or dict(numpy.load(FILE))"
    if prefix.startswith(b"\x80"):
        return f"this is a pickle, as torch.save makes, and not a safetensors file: {convert}{convert_torch}"
    return f"this is not a safetensors file: {convert}"


def _parse(text: bytes, total: int) -> TensorHeader:
    """Check the JSON of a header against the file's length. Every offset in ``text`` counts from the end of the
    header.
    """
    entries = _entries(text)
    metadata = entries.pop(METADATA_KEY, {})
    if not isinstance(metadata, dict) or any(not isinstance(value, str) for value in metadata.values()):
        raise MalformedTensors("the header's __metadata__ is not a table of texts")
    found = sorted(((name, *_entry(name, value)) for name, value in entries.items()), key=lambda row: row[2:])
    data_start, end = 8 + len(text), 0
    for name, _, begin, stop in found:
        if begin != end:
            raise MalformedTensors(
                f"the data of {shown(name)} {'overlaps' if begin < end else 'leaves a gap after'} what lies before it"
            )
        end = stop
    if total < data_start + end:
        raise TruncatedTensors(f"the file is truncated: {total} bytes, its header says {data_start + end}")
    if total > data_start + end:
        raise TrailingBytes(f"the file is too long: {total} bytes, its header says {data_start + end}")
    return TensorHeader(
        manifest=Manifest({name: spec for name, spec, _, _ in found}),
        metadata=metadata,
        offsets={name: (data_start + begin, data_start + stop) for name, _, begin, stop in found},
        data_start=data_start,
        total_bytes=total,
    )


def _entries(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise MalformedTensors("the header does not begin with '{'")
    try:
        parsed = json.loads(
            text.decode("utf-8"), object_pairs_hook=_distinct, parse_float=_no_number, parse_constant=_no_number
        )
    except MalformedTensors:
        raise
    except (ValueError, RecursionError):
        raise MalformedTensors("the header is not JSON in UTF-8") from None
    return dict(parsed)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise MalformedTensors("the header names something twice")
    for text in [*table, *(value for value in table.values() if isinstance(value, str))]:
        if _SURROGATE.search(text):
            raise MalformedTensors("the header holds half of a surrogate pair, which no UTF-8 text can")
    return table


def _no_number(text: str) -> Any:
    raise MalformedTensors(f"the header holds the number {shown(text)}; only whole numbers belong there")


def _entry(name: str, value: object) -> tuple[TensorSpec, int, int]:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise MalformedTensors(f"the header's entry {shown(name)} is not made of dtype, shape and data_offsets")
    shape, offsets = value["shape"], value["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise MalformedTensors(f"the header's entry {shown(name)} has no list as shape or no two data_offsets")
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < 2**62:
        raise MalformedTensors(f"the data_offsets of {shown(name)} are not two rising whole numbers")
    spec = TensorSpec(value["dtype"], tuple(shape))
    if end - begin != spec.nbytes:
        raise MalformedTensors(
            f"{shown(name)} takes {end - begin} bytes in the file; its dtype and shape need {spec.nbytes}"
        )
    return spec, begin, end


def header_limit(manifest: Manifest) -> int:
    """Most bytes of the header of a peer's file of these tensors, the eight of its length not counted: as ``to_bytes``
    writes it with a report, and ``SHORT_HEADER`` for the header of a few tensors, whoever has laid it out.

    MalformedTensors as ``header_bytes``.
    """
    return min(HEADER_LIMIT, max(SHORT_HEADER, len(header_bytes(manifest)) - 8 + REPORT_ROOM))


def header_bytes(manifest: Manifest, metadata: Mapping[str, str] | None = None) -> bytes:
    """How a file of these tensors begins, its length included, for code that writes the data after it: the tensors in
    the manifest's order, ``metadata`` in the order given.

    MalformedTensors for a name or a header that ``read_header`` would refuse.
    """
    head: dict[str, Any] = {METADATA_KEY: dict(metadata)} if metadata else {}
    at = 0
    for name, spec in manifest.items():
        if name == METADATA_KEY:
            raise MalformedTensors(f"a tensor cannot be named {METADATA_KEY}")
        head[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [at, at + spec.nbytes]}
        at += spec.nbytes
    try:
        text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedTensors("a name or a metadata text cannot be written as UTF-8") from None
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise MalformedTensors(
            f"the header would be {len(text)} bytes long, more than {HEADER_LIMIT}: too many tensors or too long names"
        )
    return len(text).to_bytes(8, "little") + text


def header_of(manifest: Manifest) -> TensorHeader:
    """The header of a file of these tensors, without metadata. MalformedTensors as ``header_bytes``."""
    start = len(header_bytes(manifest))
    offsets, at = {}, start
    for name, spec in manifest.items():
        offsets[name] = at, at + spec.nbytes
        at += spec.nbytes
    return TensorHeader(manifest, {}, offsets, start, at)


def to_bytes(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """The safetensors file of ``tensors``, byte for byte as the library writes it, ``metadata`` in the order given.
    Tensors of torch on the CPU are taken too.

    ManifestMismatch for a dtype that no file can hold, MalformedTensors for a name or a header that ``read_header``
    would refuse.
    """
    arrays = {name: as_array(name, array) if hasattr(array, "detach") else array for name, array in tensors.items()}
    manifest = Manifest.of(arrays)
    head = header_bytes(manifest, metadata)
    return b"".join([head, *(_data(arrays[name], spec) for name, spec in manifest.items())])


def _data(array: Array, spec: TensorSpec) -> memoryview:
    stored = np.ascontiguousarray(array, dtype=NUMPY_DTYPES[spec.dtype])
    return stored.reshape(-1).view(np.uint8).data


def from_bytes(data: bytes | bytearray | memoryview) -> Tensors:
    """The tensors of a safetensors file, writable, on one copy of ``data``: torch writes through numpy's read-only
    flag, and would change stored bytes. Errors as ``read_header``."""
    data = bytearray(data)
    header = read_header(data)
    found: Tensors = {}
    for name, spec in header.manifest.items():
        dtype, begin = NUMPY_DTYPES[spec.dtype], header.offsets[name][0]
        array: Array = np.frombuffer(data, dtype, spec.elements, begin) if spec.elements else np.empty(0, dtype)
        if spec.dtype == "BOOL" and spec.elements and int(array.view(np.uint8).max()) > 1:
            raise MalformedTensors(f"{shown(name)} holds booleans that are neither 0 nor 1")
        found[name] = array.reshape(spec.shape)
    return found


def canonical_bytes(data: bytes | bytearray | memoryview) -> bytes:
    """The file's tensors without metadata, in the library's layout: equal tensors give equal bytes."""
    return to_bytes(from_bytes(data))


def digest(data: bytes | bytearray | memoryview) -> str:
    """SHA-256 of the bytes as they are, in lower-case hexadecimal. A checkpoint's name is that of its
    ``canonical_bytes``.
    """
    return hashlib.sha256(data).hexdigest()


# ------------------------------------------------------------ canonical file
# The canonical bytes of a safetensors file, read in blocks: a file larger than memory can be hashed and sent.


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
