"""A round's named tensors as blobs, such as the server optimizer's state, read and written block by block beside the
checkpoint.

safetensors: for each averaged parameter of the model one of the same name, float32 [elements, columns], a row for each
element and a column for each vector that is kept, in the order of the checkpoint's file. So a block of the model and
its named tensors are read and written together, whatever the size of either, and any reader of safetensors can look at
them.

Their metadata names the run and the round that made them. Hence no two rounds make the same blob, and a blob can be
deleted with its round, whatever other runs store.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, NamedTuple

import numpy as np

from client_sdk.tensors import (
    Float32,
    Manifest,
    NotFinite,
    TensorHeader,
    TensorSpec,
    header_bytes,
    numpy_dtype,
    read_header,
    widen,
)
from coordinator.blobs import BlobError, Blobs, Spool
from coordinator.engine.aggregation.combining import Blocks, Computed
from coordinator.engine.named_tensors import called

STATE_KEY = "quorate.optimizer"
"""The one key of ``__metadata__``: run and round."""
_PIECE = 1 << 20


class HashedReads:
    """A file that is read, and the SHA-256 of its bytes as they were read from its beginning to its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()
        self._hashed = self._position = 0
        file.seek(0)

    def read(self, size: int) -> bytes:
        """The next bytes that are not hashed yet."""
        return self.at(self._hashed, size)

    def at(self, place: int, size: int) -> bytes:
        """The bytes from ``place`` on. Others than the next ones are read beside the digest."""
        if place != self._position:
            self._file.seek(place)
        data = self._file.read(size)
        self._position = place + len(data)
        if place == self._hashed:
            self._hash.update(data)
            self._hashed = self._position
        return data

    @property
    def digest(self) -> str:
        """In hexadecimal. What has not been read is read now."""
        while self.read(_PIECE):
            pass
        return self._hash.hexdigest()


class StoredBlocks:
    """Tensors of a safetensors file as ``Blocks``: places in the flat vector of an update, which is in another order.

    BlobError where the file ends too early.
    """

    def __init__(self, file: HashedReads, header: TensorHeader, places: Mapping[str, slice], columns: int = 0) -> None:
        """``places``: of each tensor, rising. ``columns``: as many values in each place; 0: one, and blocks are
        flat."""
        self._file, self._header, self._columns = file, header, columns
        self._names, self._starts = list(places), [place.start for place in places.values()]

    def read(self, start: int, count: int) -> Float32:
        at = bisect_right(self._starts, start) - 1
        name = self._names[at]
        dtype = numpy_dtype(self._header.manifest[name].dtype)
        width = dtype.itemsize * (self._columns or 1)
        data = self._file.at(self._header.offsets[name][0] + (start - self._starts[at]) * width, count * width)
        if len(data) != count * width:
            raise BlobError("a file of tensors ends before its header says")
        found = widen(np.frombuffer(data, dtype))
        return found.reshape(count, self._columns).copy() if self._columns else found


class Written:
    """The next tensors of one name, in the order of the checkpoint's file."""

    def __init__(self, spool: Spool, name: str, sizes: Sequence[tuple[str, int]], columns: int, label: str) -> None:
        self._spool, self._name = spool, name
        spool.write(state_header(sizes, columns, label))

    def write(self, tensor: str, block: Float32) -> None:
        """The next block, [count, columns]. NotFinite for NaN and infinity."""
        if not np.isfinite(block).all():
            raise NotFinite(f"{called(self._name)} for {tensor} would hold values that are not finite")
        self._spool.write(np.ascontiguousarray(block, "<f4").data)

    def commit(self) -> str:
        """Makes them durable and returns their digest."""
        return self._spool.commit()


class Carried(NamedTuple):
    before: Blocks
    read: HashedReads | None
    """The file of ``before``; None before the first round."""
    after: Written


@contextmanager
def carried(
    blobs: Blobs,
    before: str | None,
    name: str,
    averaged: Mapping[str, TensorSpec],
    places: Mapping[str, slice],
    first: Sequence[float],
    label: str,
) -> Iterator[Carried]:
    """The tensors of this name that have the digest ``before``, and where to write the next ones. ``averaged``: the
    model's parameters in the order of the checkpoint's file; ``places``: theirs in the flat vector; ``first``: what
    each column begins with.

    Missing, or TensorError for tensors of another model or optimizer."""
    sizes = [(one, spec.elements) for one, spec in averaged.items()]
    with ExitStack() as stack:
        blocks: Blocks = Computed(lambda _, count: np.tile(np.array(first, np.float32), (count, 1)))
        read: HashedReads | None = None
        if before is not None:
            file = stack.enter_context(blobs.open(before))
            header = read_header(file)
            _manifest(sizes, len(first)).require(header.manifest, called(name))
            read = HashedReads(file)
            read.read(header.data_start)
            blocks = StoredBlocks(read, header, places, len(first))
        yield Carried(blocks, read, Written(stack.enter_context(blobs.spool()), name, sizes, len(first), label))


def state_header(sizes: Sequence[tuple[str, int]], columns: int, label: str) -> bytes:
    """How the file begins. ``sizes``: (name, elements) of each averaged parameter, in the order of the file.
    MalformedTensors where there are too many."""
    return header_bytes(_manifest(sizes, columns), {STATE_KEY: label})


def _manifest(sizes: Sequence[tuple[str, int]], columns: int) -> Manifest:
    return Manifest({name: TensorSpec("F32", (elements, columns)) for name, elements in sizes})
