"""Makes the next checkpoint of the unmasked sum, and that which advances an exhausted run.

``client_sdk.secagg.quantize`` converts lanes to a mean, the plan's codec decodes it, and ``aggregator`` makes the
checkpoint of it.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from client_sdk.codecs import FLOAT32, NOTHING_DRAWN, LinearCodec
from client_sdk.secagg.errors import BadVector
from client_sdk.secagg.lanes import Lanes
from client_sdk.secagg.quantize import Quantizer
from client_sdk.tensors.exact_sum import FRACTION_BITS
from client_sdk.tensors.floats import Float32, narrow, widen
from client_sdk.tensors.manifest import Manifest, OutOfRange, TensorSpec, numpy_dtype
from client_sdk.tensors.safetensors_file import read_header
from coordinator.blobs import BlobError, Blobs
from coordinator.engine.aggregation.combining import Computed
from coordinator.engine.aggregation.parameters import Settings
from coordinator.engine.event_fields import Evidence
from coordinator.engine.named_tensors import NamedTensors, Small
from coordinator.folding.aggregator import BLOCK, Aggregator, CannotAggregate, NewCheckpoint
from coordinator.folding.named_tensors import HashedReads

_COPIED = 1 << 20
_LARGE_SHARE = 0.3
"""From this on it is said how much of a step is rounding: the error is then a third of the step or more."""
_MOST_DOUBLINGS = 160
"""From 2^-32 up to float32's largest values."""


def commit_sum(
    aggregator: Aggregator,
    round: int,
    parent: str,
    quantizer: Quantizer,
    total: Lanes,
    survivors: int,
    named_tensors: NamedTensors | None = None,
    small: Small | None = None,
    settings: Settings | None = None,
    *,
    codec: LinearCodec = FLOAT32,
    seed: bytes = NOTHING_DRAWN,
    updates: str = "",
) -> NewCheckpoint:
    """Write the checkpoint that follows ``parent`` with the weighted mean of the survivors' clipped updates, and the
    named tensors and the small state after it. ``named_tensors``, ``small``: those before; ``codec`` and its ``seed``:
    those of the attempt's header; ``updates``: what the evidence says of them. CannotAggregate where there is no such
    mean or no such checkpoint.

    The mean of the encoded values is computed in float64, rounded to float32 and decoded in a fixed order of
    operations: the same sum gives the same bits. Memory beside the sum: a few blocks.
    """
    try:
        weight = quantizer.require_possible(total, survivors)
        if weight == 0:
            raise BadVector("the survivors' weights sum to nothing, which has no mean")
    except BadVector as error:
        raise CannotAggregate(str(error)) from None

    def encoded(start: int, count: int) -> Float32:
        return quantizer.mean_of(total[start : start + count], survivors, weight).astype(np.float32)

    parameters = aggregator.layout.parameters.elements
    decoded, first = codec.back(encoded, parameters, seed), codec.count(parameters)
    of_statistics = quantizer.of_statistics
    behind = total[first : first + of_statistics.count]

    def mean(start: int, count: int) -> Float32:
        if start < parameters:
            return decoded(start, count)
        return of_statistics.mean_of(behind, start - parameters, count, survivors, weight).astype(np.float32)

    made = aggregator.apply(round, parent, Computed(mean), named_tensors, small, settings, updates, survivors)
    share = quantizer.rounding_share(total[:first], survivors)
    return made._replace(rounding=float(f"{share:.2f}") if share >= _LARGE_SHARE else 0.0)


def advance(blobs: Blobs, parent: str, averaged: Manifest) -> NewCheckpoint:
    """Write ``parent`` with one of its ``averaged`` values increased by one unit of the exact scale, 2^-32.

    It changes the first value that this step changes in its dtype; where there is none, the first that twice the step
    changes, and so on. Values only increase, so no older digest, with its spent devices, can occur again.
    """
    with blobs.open(parent) as source:
        header = read_header(source)
        for doubling in range(_MOST_DOUBLINGS):
            step = np.float32(np.ldexp(1.0, doubling - FRACTION_BITS))
            for name in header.manifest:
                if name in averaged:
                    begin = header.offsets[name][0]
                    found = _first_moved(source, header.manifest[name], begin, step)
                    if found is not None:
                        digest, size, read = _patched(blobs, source, *found)
                        return NewCheckpoint(digest, size, evidence=Evidence(parent=read))
    raise CannotAggregate("no value of the model can be moved")


def _first_moved(source: BinaryIO, spec: TensorSpec, begin: int, step: np.float32) -> tuple[int, bytes] | None:
    """(place in the file, new bytes) of the tensor's first value that ``step`` changes."""
    dtype = numpy_dtype(spec.dtype)
    for first in range(0, spec.elements, BLOCK):
        source.seek(begin + first * dtype.itemsize)
        data = source.read(min(BLOCK, spec.elements - first) * dtype.itemsize)
        here = widen(np.frombuffer(data, dtype))
        with np.errstate(over="ignore"):
            there = here + step
        for place in np.flatnonzero(np.isfinite(there) & (there > here)):
            try:
                moved = narrow(there[place : place + 1], spec.dtype)
            except OutOfRange:
                continue
            if widen(moved)[0] > here[place]:
                return begin + (first + int(place)) * dtype.itemsize, moved.tobytes()
    return None


def _patched(blobs: Blobs, source: BinaryIO, place: int, piece: bytes) -> tuple[str, int, str]:
    """Write the file with ``piece`` at ``place``. Returns its digest and size, and the digest of what
    was read."""
    source.seek(0)
    reads = HashedReads(source)
    with blobs.spool() as spool:
        left = place
        while left:
            chunk = reads.read(min(left, _COPIED))
            if not chunk:
                raise BlobError("the checkpoint ends before its header says")
            spool.write(chunk)
            left -= len(chunk)
        spool.write(piece)
        reads.read(len(piece))
        while chunk := reads.read(_COPIED):
            spool.write(chunk)
        return spool.commit(), spool.size, reads.digest
