"""From the updates of a round to the next checkpoint, which is written block by block.

What holds the updates meanwhile is ``sums``. This file knows tensors and digests. It has never heard of databases,
deadlines or HTTP.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.tensors import (
    Manifest,
    NotFinite,
    TensorError,
    TensorSpec,
    narrow,
    numpy_dtype,
    read_header,
    widen,
)
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.blobs import BlobError, Blobs, Missing
from coordinator.engine.aggregation.optimizers import OPTIMIZERS
from coordinator.engine.aggregation.rules import RULES
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan
from coordinator.folding.sums import SpooledSums, Sums, Vector
from coordinator.folding.validation import Measures

MakeSums = Callable[[Blobs, Plan, Manifest], Sums]
BLOCK = 1 << 16
"""Elements handled at a time: 256 KiB of float32, which stays in a core's cache."""


class CannotAggregate(Exception):
    """These updates cannot become a checkpoint, however often it is tried. The message says why."""


class MeanBlocks(Protocol):
    """The mean of a round's deltas, flat, read by blocks, in any order."""

    def read(self, start: int, count: int) -> Vector:
        """float32 [count], in the order of the tensors' names."""
        ...


@contextmanager
def _final_errors() -> Iterator[None]:
    """What no other try would change, as CannotAggregate."""
    try:
        yield
    except TensorError as error:
        raise CannotAggregate(str(error)) from None
    except Missing as error:
        raise CannotAggregate(f"a file that the round needs is gone: {error}") from None


class Aggregator:
    """The checkpoints of one run. Safe from several threads: one at a time folds or commits.

    ``sums``: makes what holds the rounds' updates, from blobs, plan and the manifest of an update.
    """

    def __init__(self, blobs: Blobs, plan: Plan, checkpoint: str, sums: MakeSums = SpooledSums) -> None:
        self._blobs = blobs
        self._plan = plan
        self._rule = RULES[plan.aggregation.rule]
        self._lock = threading.Lock()
        self.manifest: Manifest = read_header(blobs.path(checkpoint)).manifest
        """Of every checkpoint of the run: the line never changes shape."""
        self.delta: Manifest = self.manifest.select(plan.task.averaged)
        """Of an update, decoded."""
        self.max_update_bytes = codecs.get(plan.task.codec).max_bytes(self.delta)
        """The longest body that an update can have."""
        self._sums = sums(blobs, plan, self.delta)

    def locked(self) -> bool:
        """Whether a thread folds or commits."""
        return self._lock.locked()

    def remember(self, digest: str, measures: Measures) -> None:
        """What the intake measured, so that folding need not measure again."""
        self._sums.remember(digest, measures)

    def fold(self, round: int, item: Contribution) -> None:
        """Adds one update to the round's running sum; a second time, or for a round that is over, does nothing."""
        if self._rule.needs == "sum":
            with self._lock:
                self._sums.fold(round, item)

    def forget(self, round: int) -> None:
        """Frees the running sum of a round that has ended."""
        with self._lock:
            self._sums.forget(round)

    def commit(self, round: int, parent: str, items: tuple[Contribution, ...]) -> tuple[str, int]:
        """Writes the next checkpoint durably and returns (digest, bytes). The same parent and set of updates give the
        same digest.

        CannotAggregate when the result would not be finite or the sum out of range; BlobError when files could not be
        read or written.
        """
        with self._lock, _final_errors():
            if self._rule.needs == "sum":
                return self._write(parent, _MeanBlocks(self._sums.total(round, items)))
            return self._write(parent, _FlatBlocks(self._combined(items)))

    def apply(self, parent: str, mean: MeanBlocks) -> tuple[str, int]:
        """The same for a mean of deltas that was made elsewhere: under secure aggregation nobody has the updates."""
        with self._lock, _final_errors():
            return self._write(parent, mean)

    def _combined(self, items: tuple[Contribution, ...]) -> Vector:
        """The whole flat delta of a rule that needs all updates at once."""
        weights = np.array([item.weight for item in items], dtype=np.int64)
        delta, start = np.empty(self.delta.elements, dtype=np.float32), 0
        for columns in self._sums.columns(items):
            width = columns.shape[1]
            delta[start : start + width] = self._rule.combine(columns, weights)
            start += width
        return delta

    # ------------------------------------------------------------ the checkpoint

    def _write(self, parent: str, deltas: MeanBlocks) -> tuple[str, int]:
        optimizer = OPTIMIZERS[self._plan.aggregation.server_optimizer]
        rate = self._plan.aggregation.server_learning_rate
        places = self.delta.slices()
        header = read_header(self._blobs.path(parent))
        with self._blobs.open(parent) as source, self._blobs.spool() as spool:
            spool.write(source.read(header.data_start))
            for name, spec in header.manifest.items():
                if name not in places:
                    for chunk in _chunks(source, spec.nbytes):
                        spool.write(chunk)
                    continue
                start = places[name].start
                for first in range(0, spec.elements, BLOCK):
                    count = min(BLOCK, spec.elements - first)
                    model = widen(_read_values(source, spec, count))
                    mean = deltas.read(start + first, count)
                    with np.errstate(over="ignore"):
                        following = optimizer.apply(model, mean, [], rate)
                    if not np.isfinite(following).all():
                        raise NotFinite(f"the next checkpoint would hold values in {name} that are not finite")
                    spool.write(narrow(following, spec.dtype).tobytes())
            return spool.commit(), spool.size


class _MeanBlocks:
    def __init__(self, total: ExactSum) -> None:
        self._total = total

    def read(self, start: int, count: int) -> Vector:
        return self._total.mean_block(start, start + count)


class _FlatBlocks:
    """A delta that is all there: tensors are read in the file's order, deltas lie in the order of their names."""

    def __init__(self, delta: Vector) -> None:
        self._delta = delta

    def read(self, start: int, count: int) -> Vector:
        return self._delta[start : start + count]


def _read_values(source: BinaryIO, spec: TensorSpec, count: int) -> NDArray[np.generic]:
    dtype = numpy_dtype(spec.dtype)
    data = source.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise BlobError("the checkpoint ends before its header says")
    return np.frombuffer(data, dtype=dtype)


def _chunks(source: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        chunk = source.read(min(size, 4 * BLOCK))
        if not chunk:
            raise BlobError("the checkpoint ends before its header says")
        size -= len(chunk)
        yield chunk
