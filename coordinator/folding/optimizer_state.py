"""The server optimizer's state as a blob, read and written block by block beside the checkpoint.

safetensors: for each averaged tensor of the model one of the same name, float32 [elements, slots], a row for each
element and a column for each slot, in the order of the checkpoint's file. So a block of the model and its state are
read and written together, whatever the size of either, and any reader of safetensors can look at it.

Its metadata names the run and the round that made it. Hence no two rounds make the same blob, and a blob can be deleted
with its round, whatever other runs store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from client_sdk.tensors import Float32, Manifest, NotFinite, TensorHeader, TensorSpec, header_bytes, read_header
from coordinator.blobs import BlobError, Blobs, Spool

STATE_KEY = "quorate.optimizer"
"""The one key of its ``__metadata__``: run and round."""


class StateReader:
    """The blocks of a stored state, or of the state before the first round."""

    def __init__(self, blobs: Blobs, digest: str | None, averaged: Sequence[tuple[str, int]], first: Sequence[float]):
        """``averaged``: (name, elements) of each averaged tensor. ``first``: the initial value of each slot.
        Missing, or TensorError for a state of another model or optimizer."""
        self._first = np.array(first, np.float32)
        self._header: TensorHeader | None = None
        self._hash = hashlib.sha256()
        if digest is None or not self._first.size:
            return
        self._file = blobs.open(digest)
        try:
            self._header = read_header(self._file)
            _manifest(averaged, self._first.size).require(self._header.manifest, "the server optimizer's state")
            self._file.seek(0)
            self._hash.update(self._file.read(self._header.data_start))
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        if self._header is not None:
            self._file.close()

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal of the bytes that were read; empty where there is no state."""
        return "" if self._header is None else self._hash.hexdigest()

    def block(self, name: str, start: int, count: int) -> Float32:
        """Returns [count, slots] of this tensor from element ``start``; the caller may change it. Blocks are read in
        the order of the file."""
        if self._header is None:
            return np.tile(self._first, (count, 1))
        self._file.seek(self._header.offsets[name][0] + start * 4 * self._first.size)
        data = bytearray(self._file.read(count * 4 * self._first.size))
        if len(data) != count * 4 * self._first.size:
            raise BlobError("the server optimizer's state ends before its header says")
        self._hash.update(data)
        return np.frombuffer(data, np.dtype("<f4")).reshape(count, self._first.size)


class StateWriter:
    """Writes the next state, in the order of the checkpoint's file. Writes nothing where there are no slots."""

    def __init__(self, spool: Spool | None, averaged: Sequence[tuple[str, int]], slots: int, label: str) -> None:
        self._spool = spool
        if spool is not None:
            spool.write(state_header(averaged, slots, label))

    def write(self, name: str, block: Float32) -> None:
        """The next block, [count, slots]. NotFinite for NaN and infinity."""
        if self._spool is None:
            return
        if not np.isfinite(block).all():
            raise NotFinite(f"the server optimizer's state for {name} would hold values that are not finite")
        self._spool.write(np.ascontiguousarray(block, "<f4").data)

    def commit(self) -> str | None:
        """Makes the state durable and returns its digest; None where there is none."""
        return None if self._spool is None else self._spool.commit()


@contextmanager
def carried(
    blobs: Blobs, before: str | None, model: Mapping[str, TensorSpec], first: Sequence[float], label: str
) -> Iterator[tuple[StateReader, StateWriter]]:
    """Returns the reader of the state ``before`` and the writer of the next. ``model``: the averaged tensors in the
    order of the checkpoint's file."""
    averaged = [(name, spec.elements) for name, spec in model.items()]
    reader = StateReader(blobs, before, averaged, first)
    try:
        if not first:
            yield reader, StateWriter(None, averaged, 0, label)
            return
        with blobs.spool() as spool:
            yield reader, StateWriter(spool, averaged, len(first), label)
    finally:
        reader.close()


def state_header(averaged: Sequence[tuple[str, int]], slots: int, label: str) -> bytes:
    """How the state's file begins. ``averaged``: (name, elements) of each averaged tensor, in the order of the file.
    MalformedTensors where there are too many."""
    return header_bytes(_manifest(averaged, slots), {STATE_KEY: label})


def _manifest(averaged: Sequence[tuple[str, int]], slots: int) -> Manifest:
    return Manifest({name: TensorSpec("F32", (elements, slots)) for name, elements in averaged})
