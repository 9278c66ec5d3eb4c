"""From the updates of a round to the next checkpoint, in files and blocks.

A round's running sum is folded as updates arrive and lives in this process only: it carries the digests that it
contains, so after a crash, or on another replica, whatever is missing is folded again from the spooled updates, to the
same bits. The commit writes the next checkpoint block by block. Memory: one exact sum (two models' worth), whatever the
number of devices.

This file knows tensors and digests. It has never heard of databases, deadlines or HTTP.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.exact_sum import ExactSum
from client_sdk.tensors import (
    Manifest,
    NotFinite,
    TensorError,
    TensorSpec,
    narrow,
    numpy_dtype,
    read_header,
    scaled,
    widen,
)
from coordinator.blobs import BlobError, Blobs, Missing
from coordinator.engine.aggregation.optimizers import OPTIMIZERS
from coordinator.engine.aggregation.rules import RULES
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan
from coordinator.intake import Measures, measure

Vector = NDArray[np.float32]
BLOCK = 1 << 16
"""Elements handled at a time: 256 KiB of float32, which stays in a core's cache."""


class CannotAggregate(Exception):
    """These updates cannot become a checkpoint, however often it is tried. The message says why."""


@dataclass(slots=True)
class _RoundSum:
    round: int
    total: ExactSum
    folded: dict[str, Contribution] = field(default_factory=dict)


class Aggregator:
    """The running sums of one run. Safe from several threads: one at a time folds or commits."""

    def __init__(self, blobs: Blobs, plan: Plan, checkpoint: str) -> None:
        self._blobs = blobs
        self._plan = plan
        self._rule = RULES[plan.aggregation.rule]
        self._codec = codecs.get(plan.task.codec)
        self._lock = threading.Lock()
        self._current: _RoundSum | None = None
        self._measures: dict[str, Measures] = {}
        self.manifest: Manifest = read_header(blobs.path(checkpoint)).manifest
        """Of every checkpoint of the run: the line never changes shape."""
        self.delta: Manifest = self.manifest.select(plan.task.averaged)
        """Of an update, decoded."""

    @property
    def max_update_bytes(self) -> int:
        """The longest body that an update can have."""
        return self._codec.max_bytes(self.delta)

    def remember(self, digest: str, measures: Measures) -> None:
        """What the intake measured, so that folding need not measure again."""
        self._measures[digest] = measures

    def fold(self, round: int, item: Contribution) -> None:
        """Adds one update to the round's running sum; a second time, or for a round that is over, does nothing."""
        if self._rule.needs != "sum":
            return
        with self._lock:
            if self._current is not None and self._current.round > round:
                return
            current = self._sum_of(round)
            if item.device not in current.folded:
                self._add(current, item)

    def forget(self, round: int) -> None:
        """Frees the running sum of a round that has ended."""
        with self._lock:
            if self._current is not None and self._current.round <= round:
                self._current = None
            self._measures.clear()

    def commit(self, round: int, parent: str, items: tuple[Contribution, ...]) -> tuple[str, int]:
        """Writes the next checkpoint durably and returns (digest, bytes). The same parent and set of updates give the
        same digest.

        CannotAggregate when the result would not be finite or the sum out of range; BlobError when files could not be
        read or written.
        """
        with self._lock:
            try:
                if self._rule.needs == "sum":
                    deltas = self._mean(round, items)
                    return self._write(parent, deltas)
                return self._write(parent, _FlatBlocks(self._combined(items)))
            except TensorError as error:
                raise CannotAggregate(str(error)) from None
            except Missing as error:
                raise CannotAggregate(f"a file that the round needs is gone: {error}") from None

    # ------------------------------------------------------------ the sum

    def _sum_of(self, round: int) -> _RoundSum:
        if self._current is None or self._current.round != round:
            self._current = _RoundSum(round, ExactSum(self.delta.elements))
        return self._current

    def _add(self, current: _RoundSum, item: Contribution) -> None:
        path = self._blobs.path(item.digest)
        measures = self._measures.pop(item.digest, None) or measure(path, self._plan)
        blocks: Iterator[Vector] = self._codec.blocks(path, read_header(path))
        factor = measures.scale
        if factor is not None:
            blocks = _scaled(blocks, factor)
        try:
            current.total.add_blocks(blocks, item.weight, measures.peak)
        except BaseException:
            self._current = None  # the sum may hold part of this update: it is folded afresh
            raise
        current.folded[item.device] = item

    def _mean(self, round: int, items: tuple[Contribution, ...]) -> _Blocks:
        """The exact sum of just these updates: the running one where it is a subset of them, completed; else folded
        afresh.
        """
        wanted = {item.device: item for item in items}
        current = self._sum_of(round)
        if any(wanted.get(device) != item for device, item in current.folded.items()):
            self._current = None
            current = self._sum_of(round)
        for item in items:
            if item.device not in current.folded:
                self._add(current, item)
        return _MeanBlocks(current.total)

    def _combined(self, items: tuple[Contribution, ...]) -> Vector:
        """The whole flat delta of a rule that needs all updates at once."""
        weights = np.array([item.weight for item in items], dtype=np.int64)
        delta, start = np.empty(self.delta.elements, dtype=np.float32), 0
        for columns in self._columns(items):
            width = columns.shape[1]
            delta[start : start + width] = self._rule.combine(columns, weights)
            start += width
        return delta

    def _columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        """All updates at once, by blocks of columns: [updates, width], a row for each device by id.

        Clipped as for a sum.
        """
        width = max(256, 16 * BLOCK // len(items))
        rows = []
        for item in items:
            path = self._blobs.path(item.digest)
            blocks: Iterator[Vector] = self._codec.blocks(path, read_header(path), block=width)
            factor = (self._measures.pop(item.digest, None) or measure(path, self._plan)).scale
            rows.append(blocks if factor is None else _scaled(blocks, factor))
        for row in zip(*rows, strict=True):
            yield np.stack(row)

    # ------------------------------------------------------------ the checkpoint

    def _write(self, parent: str, deltas: _Blocks) -> tuple[str, int]:
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


class _Blocks(Protocol):
    """A flat delta, read by blocks, in any order."""

    def read(self, start: int, count: int) -> Vector: ...


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


def _scaled(blocks: Iterator[Vector], factor: float) -> Iterator[Vector]:
    return (scaled(block, factor) for block in blocks)


def _chunks(source: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        chunk = source.read(min(size, 4 * BLOCK))
        if not chunk:
            raise BlobError("the checkpoint ends before its header says")
        size -= len(chunk)
        yield chunk
