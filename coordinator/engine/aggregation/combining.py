"""The one seam behind rules and server optimizers: from a parent and a round's updates to the next model.

::

    combine(parent, sources, tensors, small, settings, seed) -> (model, tensors, small)

It is a function of its arguments, so that a commit can be repeated from the log. Vectors are flat, in the order of
``client_sdk.tensors.manifest`` (parameters first, then statistics), and are read by blocks; what is returned is
computed as it is read. A plan names a rule and a server optimizer: ``registry.Chosen`` makes a ``Combine`` of the two.

The rows of ``Updates`` stand in the order of the devices' ids, so the order of arrival changes nothing.

``gram``, ``norms``, ``dots`` and ``norm`` give the same bits on every machine, whatever the width of the blocks, and
for rows in any order. Columns are cut anew, at multiples of ``_CHUNK``. In a chunk each row is scaled by a power of two
and rounded to a whole number of 42 bits, which is split into two of 21. Products of these, and sums of 1,024 such
products, are below 2^53, so float64 adds them exactly in whatever order a BLAS takes. Chunks are added in their order,
or rounded once (``norm``). A result is off by at most 2^-36 of the product of the norms; that of a vector with an equal
one has the bits of its own square.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from client_sdk.tensors import Float32, Manifest, NotFinite, TensorSpec
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.engine.aggregation.parameters import ExtensionError, Settings
from coordinator.engine.named_tensors import Small

Columns = NDArray[np.float32]
"""[n, B]: a row for each update, in the order of the devices' ids, and a column for each coordinate of a block."""
Weights = NDArray[np.int64]
Needs = Literal["sum", "all", "whole"]
Float64 = NDArray[np.float64]

MEMORY = 1 << 30
"""Bytes that a rule over whole updates gets, for those that it holds and for a Gram matrix."""
_CHUNK, _BITS = 1024, 21
_ROWS = 64
"""Chunks of a vector that ``norm`` takes at once, so that it needs little memory beside the vector."""


class Blocks(Protocol):
    """A flat vector, or a matrix with a row for each of its values."""

    def read(self, start: int, count: int, /) -> Float32:
        """[count], or [count, columns], from value ``start`` on: of one tensor at a time."""
        ...


class Combined(NamedTuple):
    model: Blocks
    """The next model's averaged tensors. Its attribute ``zero_sum``, where it has one, says whether what the updates
    gave was zero in every value that has been read."""
    tensors: Mapping[str, Blocks]
    """The named tensors that the next round shall find, those of ``Combine.keeps``: of parameters only."""
    small: Small
    """The small state that the next round shall find: JSON of at most 64 KiB."""


class Combine(Protocol):
    """How a round's updates become the next model."""

    @property
    def needs(self) -> Needs:
        """Of the sources. *sum*: their sum alone, which is folded as updates arrive. Others need single updates."""
        ...

    @property
    def keeps(self) -> Mapping[str, tuple[float, ...]]:
        """Name -> what each column of these named tensors begins with. They have a row for each value of a
        parameter."""
        ...

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Small,
        settings: Settings,
        seed: bytes,
    ) -> Combined:
        """``tensors``: those of ``keeps``, as the parent's round left them. ``small``: the small state that it left.
        ``settings``: the round's numbers, ``server_learning_rate``. ``seed``: of this plan and round, for what is
        drawn.

        ExtensionError where there is no such model, at each try.
        """
        ...


@dataclass(frozen=True, slots=True)
class Computed:
    """``Blocks`` that a function gives."""

    read: Callable[[int, int], Float32]


def flat(values: Float32) -> Blocks:
    """A vector in memory."""
    return Computed(lambda start, count: values[start : start + count])


class Sources:
    """What a round gives: of a masked one the sum alone."""

    weights: Weights = np.empty(0, np.int64)
    """[n]: of the single updates."""
    reports: Sequence[Mapping[str, float]] = ()
    """[n]: what their devices reported: ``steps``, and their training metrics, such as ``loss``."""

    def __init__(self, total: Callable[[], Blocks], tensors: Manifest, parameters: int, count: int = 0) -> None:
        self._total = total
        self.count = count
        """How many devices' updates there are."""
        self.tensors = tensors
        """Names and shapes of an update's tensors, in its order."""
        self.elements = tensors.elements
        """Values of an update."""
        self.parameters = parameters
        """How many of them, the first ones, are of parameters."""

    def sum(self, weights: ArrayLike | None = None, of_statistics: ArrayLike | None = None) -> Blocks:
        """The weighted mean of the updates, from their exact sum: the same bits in any order. ``weights``: [n] whole
        numbers in place of the plan's, 0 for an update that is left out. ``of_statistics``: other ones for them."""
        if weights is not None:
            raise _masked()
        return self._total()

    def blocks(self) -> Iterator[Columns]:
        """All updates, by blocks of columns; each call begins anew. They are bounded as for a sum."""
        raise _masked()

    def whole(self, place: int) -> Float32:
        """[elements], read-only: the update in this row."""
        raise _masked()

    def reported(self, name: str) -> Float64:
        """[n]: this number of each report, NaN where a device reported none."""
        if not len(self.weights):
            raise _masked()
        return np.array([report.get(name, np.nan) for report in self.reports])


def _masked() -> ExtensionError:
    return ExtensionError("the plan asks for single updates, and a masked round has their sum alone")


class Updates(Sources):
    """The sources of a round of single updates."""

    def __init__(
        self,
        read: Callable[[Sequence[int]], Iterator[Columns]],
        weights: Weights,
        total: Callable[[], Blocks],
        tensors: Manifest,
        parameters: int,
    ) -> None:
        """``read``: the updates in these rows, by blocks of columns."""
        super().__init__(total, tensors, parameters, len(weights))
        self._read = read
        self.weights = weights
        self.holds = 0
        """How many whole updates may be held at once."""
        self.sum_alone = False
        """Whether what combines them has said that it needs their sum alone: a simulation then stores no other."""
        self.failed: Exception | None = None
        """Why an update could not be read or added. A rule may hide it."""
        self._held: list[weakref.ref[Float32]] = []

    @classmethod
    def of(cls, rows: Columns, width: int, parameters: int | None = None, weights: Weights | None = None) -> Updates:
        """The updates of an array, for tests: blocks have ``width`` columns."""

        def read(places: Sequence[int]) -> Iterator[Columns]:
            for start in range(0, rows.shape[1], width):
                yield rows[list(places), start : start + width]

        found = np.ones(len(rows), np.int64) if weights is None else weights
        count = parameters or rows.shape[1]
        sizes = {"parameters": count, "statistics": rows.shape[1] - count}
        tensors = Manifest({name: TensorSpec("F32", (size,)) for name, size in sizes.items() if size})
        updates = cls(read, found, lambda: flat(updates._mean(found, tensors, 0)), tensors, count)
        return updates

    def sum(self, weights: ArrayLike | None = None, of_statistics: ArrayLike | None = None) -> Blocks:
        if weights is None:
            with self._noting():
                return self._total()
        self._require_single()
        if of_statistics is None or self.parameters == self.elements:
            return flat(self._mean(weights, self.tensors, 0))
        places = self.tensors.slices()
        former = {name: spec for name, spec in self.tensors.items() if places[name].start < self.parameters}
        latter = {name: spec for name, spec in self.tensors.items() if name not in former}
        parts = self._mean(weights, Manifest(former), 0), self._mean(of_statistics, Manifest(latter), self.parameters)
        return flat(np.concatenate(parts))

    def _require_single(self) -> None:
        if self.sum_alone:
            raise ExtensionError('the strategy of the plan reads single updates: it must say needs = "whole"')

    def _mean(self, weights: ArrayLike, tensors: Manifest, start: int) -> Float32:
        """[elements] of ``tensors``, which stand in an update from ``start`` on."""
        wanted, stop = np.asarray(weights), start + tensors.elements
        if wanted.shape != self.weights.shape or wanted.dtype.kind not in "biu":
            raise ExtensionError(f"a sum takes a whole number for each of {len(self.weights)} updates as its weight")
        with self._noting():
            total = ExactSum.of(tensors)
            for place in np.flatnonzero(wanted):
                total.add(self._vector(int(place))[start:stop], int(wanted[place]))
            return total.mean()

    def blocks(self) -> Iterator[Columns]:
        self._require_single()
        with self._noting():
            yield from self._read(range(len(self.weights)))

    def whole(self, place: int) -> Float32:
        self._require_single()
        self._held = [one for one in self._held if one() is not None]
        if len(self._held) >= self.holds:
            raise ExtensionError(f"more whole updates are held at once than is said, holds = {self.holds}")
        row = range(len(self.weights))[place]
        with self._noting():
            vector = self._vector(row)
        vector.flags.writeable = False
        self._held.append(weakref.ref(vector))
        return vector

    def _vector(self, place: int) -> Float32:
        return np.concatenate([block[0] for block in self._read((place,))] or [np.empty(0, np.float32)])

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failed = error
            raise


# ------------------------------------------------------------ dot products


def gram(sources: Sources) -> Float64:
    """[n, n]: the dot product of each update with each one, over parameters."""
    return _added(sources, lambda here, _: _products(here, here, _matmul))


def norms(sources: Sources) -> Float64:
    """[n]: the Euclidean norm of each update, over parameters."""
    return np.sqrt(_added(sources, lambda here, _: _products(here, here, _by_row)))


def dots(sources: Sources, vector: Float32) -> Float64:
    """[n]: the dot product of each update with ``vector``, over parameters."""
    return _added(sources, lambda here, at: _products(here, _split(vector[None, at]), _matmul)[:, 0])


def norm(vector: Float32) -> float:
    """The Euclidean norm of a vector in memory. NotFinite for NaN and infinity."""
    squares: list[float] = []
    for start in range(0, vector.size, _CHUNK * _ROWS):
        part = vector[start : start + _CHUNK * _ROWS]
        rows = _split(np.pad(part, (0, -part.size % _CHUNK)).reshape(-1, _CHUNK))
        squares += _products(rows, rows, _by_row).tolist()
    return math.sqrt(math.fsum(squares))


class _Whole(NamedTuple):
    """Rows as whole numbers: (high * 2^21 + low) * scale."""

    high: Float64
    low: Float64
    scale: Float64


_Times = Callable[[Float64, Float64], Float64]


def _matmul(one: Float64, other: Float64) -> Float64:
    return one @ other.T


def _by_row(one: Float64, other: Float64) -> Float64:
    found: Float64 = (one * other).sum(axis=1)
    return found


def _added(sources: Sources, of_chunk: Callable[[_Whole, slice], Float64]) -> Float64:
    total: Float64 | None = None
    for at, rows in _chunks(sources):
        found = of_chunk(_split(rows), at)
        total = found if total is None else np.add(total, found, out=total)
    if total is None:
        raise ExtensionError("there are no parameters whose dot products could be taken")
    return total


def _chunks(sources: Sources) -> Iterator[tuple[slice, Columns]]:
    start, rest, left = 0, np.empty((len(sources.weights), 0), np.float32), sources.parameters
    for block in sources.blocks():
        part = block[:, :left]
        left -= part.shape[1]
        rest = np.concatenate([rest, part], axis=1)
        while rest.shape[1] >= _CHUNK or (rest.shape[1] and not left):
            rows, rest = rest[:, :_CHUNK], rest[:, _CHUNK:]
            yield slice(start, start + rows.shape[1]), rows
            start += _CHUNK
        if not left:
            return


def _split(rows: Columns) -> _Whole:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise NotFinite("the values hold NaN or infinity")
    exponents = np.frexp(largest)[1] - 2 * _BITS
    whole = np.rint(np.ldexp(rows.astype(np.float64), -exponents))
    high = np.rint(whole * 2.0**-_BITS)
    return _Whole(high, whole - high * 2.0**_BITS, np.ldexp(1.0, exponents))


def _products(one: _Whole, other: _Whole, times: _Times) -> Float64:
    crossed = times(one.high, other.low) + times(one.low, other.high)
    found = times(one.high, other.high) * 2.0 ** (2 * _BITS) + crossed * 2.0**_BITS + times(one.low, other.low)
    return times(one.scale, other.scale) * found
