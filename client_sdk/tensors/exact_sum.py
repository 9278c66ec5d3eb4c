"""The exact sum: weighted updates added as integers, so that the same set gives the same bits in any order and any
grouping.

The sum. A value x counts as the integer q(x) = round(x * 2^32), ties to even. Of updates x_k with weights w_k the sum
stores, per lane, T = sum_k w_k q(x_k) and W = sum_k w_k. The mean is float32(float64(T) * 2^-32 / W): a function of
(T, W) alone. Integer addition does not depend on the order.

How q takes two fast passes. For |x| < 2^19 the float64 y = x + M, M = 1.5 * 2^20, lies in [2^20, 2^21), where
float64 has steps of 2^-32: the addition itself rounds, half to even, and the bits of y, read as an int64, are bits(M)
+ q(x). Nothing is converted. The accumulator adds w * bits(y) in int64, modulo 2^64, which is exact and reversible;
it therefore holds T + W * bits(M), and the second term, the same in every lane, is subtracted when the total is read.
Wrapping of that term is harmless; T itself must stay below 2^63, and a bound on it, in Python integers, is stored
beside the lanes and checked before anything is added.

Where ``compiled`` has loops, check and addition are one pass over an update; NumPy needs five, to the same bits.

Small tensors. A tensor of an update whose largest magnitude is not 0 and below 2^-24 would lose more than 2^-9 of it.
It counts in finer units: of level n, 2^-(32 + 26 n), where the magnitude is at least 2^-(24 + 26 n) and below 2^26
times that. There are two levels, so that a hostile update costs memory for no more, and tensors of 2^-76 are still
right to 2^-9. The level depends on the update's own tensor alone, and each level has totals of its own, integers too,
so order and grouping still change no bit. The mean is float32((sum_n float64(T_n) * 2^-(32 + 26 n)) / W), n rising. A
sum that is not told where tensors end has level 0 alone. A total weight up to 2^28, a plan's most, fits into 63 bits at
each level.

Limits: |x| <= RANGE = 65536 (every finite float16), resolution 2^-32, |T| < 2^63, which means that sum_k w_k max|x_k|
stays below 2^31, and W <= 2^53. What would not fit is refused (SumOverflow); nothing wraps. ``range_for`` gives the
bound per update under which a round cannot overflow. Whether a sum near its limit is refused may depend on the order;
its bits never do.
"""

from __future__ import annotations

import base64
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from client_sdk.tensors import compiled
from client_sdk.tensors.floats import Float32, pieces, widen
from client_sdk.tensors.manifest import Array, Manifest, ManifestMismatch, NotFinite, OutOfRange, TensorError

FRACTION_BITS = 32
"""A value counts as a multiple of 2^-FRACTION_BITS."""
RANGE = 65536.0
"""Largest magnitude of a value."""
TOTAL_LIMIT = 2**63 - 1
"""Largest magnitude of a lane's total, in units of 2^-32."""
WEIGHT_LIMIT = 2**53
"""Largest total weight: still exact as a float64."""

SMALL_BITS = 24
"""A tensor whose largest magnitude is below 2^-SMALL_BITS is small."""
LEVEL_BITS = 26
"""Each level's unit is 2^-LEVEL_BITS of the one before."""
LEVELS = 2

State = tuple[int, int, int, int, list[tuple[int, int, str]]]
"""Updates, their total weight, the bounds on the lanes' totals and on the small tensors'; and of each small tensor its
level, its number and its totals, int64 in base64."""

_BLOCK = 3 * 65536
"""Elements processed at once; the scratch takes 1.5 MiB. Measured: smaller blocks cost calls, larger ones caches."""
_MEAN_BLOCK = 65536
BOUND_OVER_PEAK = math.sqrt(1.04 * _BLOCK)
"""How many times the largest magnitude ``bound`` may be."""
_SMALL = 2.0**-SMALL_BITS
_ANCHOR = np.float64(1.5 * 2.0**20)
_ANCHOR_BITS = int(_ANCHOR.view(np.int64))


class SumError(TensorError):
    """An operation that a sum does not allow."""


class SumOverflow(SumError):
    """The sum could leave its range. Refused; the sum is as it was."""


class EmptySum(SumError):
    """A mean with a total weight of 0."""


class SpoiledSum(SumError):
    """An update ended in the middle of a stream: the sum holds part of it and takes no more calls."""


def peak(values: Array | Iterable[Array]) -> float:
    """The largest magnitude in an array, or in a stream of 1-d blocks; 0.0 when there is none.

    Raises NotFinite for NaN or infinity, OutOfRange above RANGE.
    """
    largest = 0.0
    for block in (values,) if isinstance(values, np.ndarray) else values:
        if block.size:
            largest = max(largest, _finite(_magnitude(widen(block))))
    if largest > RANGE:
        raise OutOfRange(
            f"a value of magnitude {largest:g} is above {RANGE:g}, the most that a sum takes: scale the "
            "model's inputs, or leave the tensor out of task.averaged"
        )
    return largest


def _magnitude(values: Float32) -> float:
    """The largest magnitude of one or more values; infinity or NaN where one is not finite."""
    loops = compiled.loops
    return max(float(values.max()), -float(values.min())) if loops is None else loops.largest(values)


@np.errstate(over="ignore", invalid="ignore")
def bound(blocks: Iterable[Array]) -> float:
    """An upper bound of the magnitudes in a stream of 1-d blocks, at half the cost of ``peak``, and at most
    ``BOUND_OVER_PEAK`` times the largest; infinity where one may be above RANGE, or is not finite. Values below 2^-60,
    which a sum counts as 0, may exceed it.
    """
    found = max((_bound(part) for block in blocks for part in pieces(widen(block), _BLOCK)), default=0.0)
    return found if found <= RANGE else math.inf


def level_of(largest: float) -> int:
    """The level of a tensor whose largest magnitude is this. 0: it is not small, or all zeros."""
    below = -math.frexp(largest)[1]
    return min(LEVELS, (below - SMALL_BITS) // LEVEL_BITS + 1) if largest and below >= SMALL_BITS else 0


def _small_units(largest: float) -> int:
    """The largest magnitude of a small tensor in units of its level, rounded up; 0 where it is not small."""
    level = level_of(largest)
    return math.ceil(math.ldexp(largest, FRACTION_BITS + LEVEL_BITS * level)) if level else 0


def rounding_of(largest: float) -> float:
    """The most that a value is off, as a part of the largest magnitude of its tensor: at most 1; 0 where that is 0."""
    half = math.ldexp(1.0, -FRACTION_BITS - 1 - LEVEL_BITS * level_of(largest))
    return min(1.0, half / largest) if largest else 0.0


def range_for(weight: int, parts: int) -> float:
    """The largest magnitude at which ``parts`` updates of at most ``weight`` can be summed in any order without
    SumOverflow.
    """
    units = min(TOTAL_LIMIT // max(1, weight * parts), int(math.ldexp(RANGE, FRACTION_BITS)))
    return math.ldexp(units, -FRACTION_BITS)


class ExactSum:
    """A running sum of flat vectors of ``dimension`` values. Memory: 8 bytes a value, and one block. Used by one
    thread at a time.
    """

    def __init__(self, dimension: int, lanes: npt.NDArray[np.int64] | None = None, *, ends: Sequence[int] = ()) -> None:
        """``lanes``: the caller's memory for the sum, int64 [dimension], contiguous: another process may read it.
        ``ends``: where each tensor ends in the vector, rising, the last one at ``dimension``; empty: of unknown
        tensors, which are never small."""
        if dimension < 0:
            raise ManifestMismatch(f"a sum of {dimension} values makes no sense")
        if lanes is None:
            lanes = np.zeros(dimension, np.int64)
        elif lanes.shape != (dimension,) or lanes.dtype != np.int64 or not lanes.flags.c_contiguous:
            raise ManifestMismatch(f"the lanes of a sum of {dimension} values are int64 [{dimension}], contiguous")
        else:
            lanes.fill(0)
        self.count = 0
        """Updates added."""
        self.total_weight = 0
        """The sum of their weights."""
        self._lanes: npt.NDArray[np.int64] = lanes
        self._ends = np.array(ends, np.int64)
        self._small: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        """(level, number of the tensor) -> totals of its values that counted at this level."""
        self._magnitude = 0
        self._small_magnitude = 0
        self._scratch: npt.NDArray[np.float64] | None = None
        self._spoiled = False

    @classmethod
    def of(cls, manifest: Manifest, lanes: npt.NDArray[np.int64] | None = None, *, more: int = 0) -> ExactSum:
        """An empty sum of updates with these tensors, in this order, and ``more`` values behind them."""
        ends = [place.stop for place in manifest.slices().values()]
        return cls(manifest.elements + more, lanes, ends=[*ends, manifest.elements + more] if more else ends)

    @classmethod
    def on(cls, lanes: npt.NDArray[np.int64], state: State, ends: Sequence[int]) -> ExactSum:
        """The sum that another process has in ``lanes``, with its ``state``; to be read or merged, not added to."""
        total = cls(0)
        total._lanes, total._ends = lanes, np.array(ends, np.int64)
        total.count, total.total_weight, total._magnitude, total._small_magnitude, small = state
        for level, number, text in small:
            total._small[level, number] = np.frombuffer(base64.b64decode(text), np.int64)
        return total

    @property
    def state(self) -> State:
        """What ``on`` needs beside the lanes, as JSON can hold it."""
        self._usable()
        small = [(*key, base64.b64encode(totals.tobytes()).decode()) for key, totals in self._small.items()]
        return self.count, self.total_weight, self._magnitude, self._small_magnitude, small

    @property
    def ends(self) -> list[int]:
        """Where each tensor ends; empty where that is unknown."""
        return [int(end) for end in self._ends]

    @property
    def dimension(self) -> int:
        return self._lanes.size

    @np.errstate(over="ignore", invalid="ignore")
    def add(self, values: Array, weight: int) -> None:
        """Add one update: ``values`` [dimension] of a floating dtype, unchanged meanwhile. All or nothing.

        Values are checked on the way, while they are in the cache; what was added before a bad one is taken off
        again, exactly. Raises ManifestMismatch (shape), NotFinite, OutOfRange (a value, or a weight that is no whole
        number from 0 up), SumOverflow.
        """
        if values.shape != (self.dimension,):
            raise ManifestMismatch(f"the sum takes {self.dimension} values, not shape {list(values.shape)}")
        weight = self._admitted(weight)
        flat = widen(values)
        if self._ends.size:
            largest = peak(flat)
            self._small_magnitude_with(max((_small_units(one) for *_, one in self._sized((flat,))), default=0), weight)
            self.add_blocks((flat,), weight, largest)
            return
        try:
            magnitude = self._fold_or_undo(flat, weight)
        except SumOverflow:
            self._tighten()
            magnitude = self._fold_or_undo(flat, weight)
        self._count_in(1, weight, magnitude)

    @np.errstate(over="ignore", invalid="ignore")
    def add_blocks(self, blocks: Iterable[Array], weight: int, peak: float) -> None:
        """Add one update that comes in 1-d blocks, together [dimension], whose largest magnitude is known: ``peak``,
        from ``peak()``.

        A sum that could not take ``peak`` refuses before it takes the first block. Values are checked again as they
        pass. An error in the middle (a failing disk, a value that ``peak`` had not announced) cannot be undone, since
        the blocks are gone: the sum is spoiled. Raises as ``add``.
        """
        weight = self._admitted(weight)
        if not 0.0 <= peak <= RANGE:
            raise OutOfRange(f"a peak of {peak:g} is not between 0 and {RANGE:g}")
        if self._magnitude + weight * _units(peak) > TOTAL_LIMIT:
            self._tighten()
            if self._magnitude + weight * _units(peak) > TOTAL_LIMIT:
                raise _overflow(weight)
        magnitude = small = 0
        for start, part, number, largest in self._sized(blocks):
            level = level_of(largest)
            if level:
                small = max(small, _small_units(largest))
                self._small_magnitude_with(small, weight)
                self._spoiled = True
                self._fold_small(part, np.int64(weight), start, level, number)
            magnitude = max(magnitude, self._fold(np.zeros_like(part) if level else part, weight, start))
        self._small_magnitude = self._small_magnitude_with(small, weight)
        self._count_in(1, weight, magnitude)

    def _small_magnitude_with(self, units: int, weight: int) -> int:
        """The bound on the small tensors' totals with an update whose largest value there has so many units. Raises
        SumOverflow."""
        found = self._small_magnitude + weight * units
        if found > TOTAL_LIMIT:
            raise _overflow(weight)
        return found

    def _sized(self, blocks: Iterable[Array]) -> Iterator[tuple[int, Float32, int, float]]:
        """The values of an update in parts of at most ``_BLOCK``: (where it begins, part, number, largest). A part with
        a ``largest`` above 0 is of one small tensor, whose number and largest magnitude these are. Memory: the parts of
        a tensor that begins with small values, and not with zeros, are held until it ends, or a larger value comes."""
        at = 0
        goes_on = False  # whether the last tensor so far goes on, and no value of it was large
        held: list[tuple[int, Float32]] = []
        largest = 0.0
        for part in (part for block in blocks for part in pieces(widen(block), _BLOCK)):
            stop = at + part.size
            if stop > self.dimension:
                raise ManifestMismatch(f"the blocks hold more than the sum's {self.dimension} values")
            begin, went_on, goes_on = at, goes_on, False
            for number in self._perhaps_small(part, at, went_on):
                first, end = max(at, int(self._ends[number - 1]) if number else 0), int(self._ends[number])
                piece = part[first - at : end - at]
                if not piece.size:
                    continue
                top = _magnitude(piece)
                is_small, ended = top < _SMALL, end <= stop
                if is_small and top:  # zeros count alike at each level
                    largest = max(largest, top)
                    if begin < first:
                        yield begin, part[begin - at : first - at], 0, 0.0
                    held.append((first, piece if ended and not held else np.array(piece)))
                    begin = first + piece.size
                goes_on = is_small and not ended
                if not goes_on:
                    yield from ((start, values, number, largest if is_small else 0.0) for start, values in held)
                    held, largest = [], 0.0
            if begin < stop:
                yield begin, part[begin - at :], 0, 0.0
            at = stop
        if at != self.dimension:
            raise ManifestMismatch(f"the blocks hold {at} values, the sum takes {self.dimension}")

    def _perhaps_small(self, part: Float32, at: int, goes_on: bool) -> Iterator[int]:
        """The numbers of the tensors of this part, which begins ``at``, whose first value is small. ``goes_on``:
        whether no earlier value of the first one was large."""
        if not self._ends.size or not part.size:
            return iter(())
        low, high = bisect_right(self._ends, at), bisect_right(self._ends, at + part.size - 1)
        begun = at > (self._ends[low - 1] if low else 0)
        if low == high:
            return iter((low,) if (goes_on if begun else abs(part[0]) < _SMALL) else ())
        begins = np.empty(high - low + 1, np.int64)
        begins[0] = 0
        np.subtract(self._ends[low:high], at, out=begins[1:])
        small = np.abs(part[begins]) < _SMALL
        if begun:  # it goes on with a tensor, which may be small, or is not
            small[0] = goes_on
        return (int(number) for number in low + np.flatnonzero(small))

    def merge(self, other: ExactSum) -> None:
        """Add what ``other`` holds, as if each of its updates had been added here. Raises ManifestMismatch,
        SumOverflow.
        """
        self._usable()
        other._usable()
        if other.dimension != self.dimension or not np.array_equal(other._ends, self._ends):
            raise ManifestMismatch(f"a sum of {other.dimension} values cannot join one of {self.dimension}")
        self._admitted(other.total_weight)
        if self._small_magnitude + other._small_magnitude > TOTAL_LIMIT:
            raise _overflow(other.total_weight)
        if self._magnitude + other._magnitude > TOTAL_LIMIT:
            self._tighten()
            other._tighten()
            if self._magnitude + other._magnitude > TOTAL_LIMIT:
                raise _overflow(other.total_weight)
        magnitude = other._magnitude
        count, weight = other.count, other.total_weight
        self._spoiled = True
        np.add(self._lanes, other._lanes, out=self._lanes)
        for key, totals in other._small.items():
            self._small[key] = self._small[key] + totals if key in self._small else totals.copy()
        self._small_magnitude += other._small_magnitude
        self._count_in(count, weight, magnitude)

    def same_as(self, other: ExactSum) -> bool:
        """Whether both hold the same: as many updates of the same total weight, whose totals have the same bits."""
        mine, its = (self.count, self.total_weight, self.dimension), (other.count, other.total_weight, other.dimension)
        if mine != its or not np.array_equal(self.totals(), other.totals()):
            return False
        of_mine, of_its = ({k: v.tobytes() for k, v in one._small.items() if v.any()} for one in (self, other))
        return of_mine == of_its

    def copy(self) -> ExactSum:
        """An independent sum with the same content."""
        self._usable()
        twin = ExactSum(0)
        twin.count, twin.total_weight, twin._magnitude = self.count, self.total_weight, self._magnitude
        twin._lanes, twin._ends, twin._small_magnitude = self._lanes.copy(), self._ends, self._small_magnitude
        twin._small = {key: totals.copy() for key, totals in self._small.items()}
        return twin

    def totals(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """T of the lanes [start, stop), in units of 2^-32, without small tensors."""
        self._usable()
        return self._lanes[start:stop] - _wrapped(self.total_weight * _ANCHOR_BITS)

    def whole_totals(self) -> npt.NDArray[np.int64]:
        """T of all lanes, in units of 2^-32, those of small tensors included: a new array. SumError where a value has
        counted that is no multiple of 2^-32."""
        found = self.totals()
        for (level, number), totals in self._small.items():
            end = int(self._ends[number])
            finer = LEVEL_BITS * level
            if np.any(totals & ((1 << finer) - 1)):
                raise SumError("a value of the sum is no multiple of 2^-32")
            found[end - totals.size : end] += totals >> finer
        return found

    def mean_block(self, start: int, stop: int) -> Float32:
        """The weighted mean of the lanes [start, stop), float32. Raises EmptySum when the weights add up to nothing."""
        self._usable()
        if not self.total_weight:
            raise EmptySum(f"the mean of {self.count} updates with a total weight of 0 does not exist")
        self._scratch = None  # frees memory; it is made again if more is added
        mean = self.totals(start, stop).astype(np.float64)
        mean *= 2.0**-FRACTION_BITS
        for (level, number), totals in sorted(self._small.items()):
            first = int(self._ends[number]) - totals.size
            begin, end = max(start, first), min(stop, first + totals.size)
            if begin < end:
                found = totals[begin - first : end - first].astype(np.float64)
                mean[begin - start : end - start] += found * math.ldexp(1.0, -FRACTION_BITS - LEVEL_BITS * level)
        mean /= np.float64(self.total_weight)
        return mean.astype(np.float32)

    def mean(self) -> Float32:
        """The weighted mean [dimension], float32. Raises EmptySum when the weights add up to nothing."""
        mean = np.empty(self.dimension, np.float32)
        for start in range(0, max(1, self.dimension), _MEAN_BLOCK):
            mean[start : start + _MEAN_BLOCK] = self.mean_block(start, start + _MEAN_BLOCK)
        return mean

    # ------------------------------------------------------------ checks

    def _usable(self) -> None:
        if self._spoiled:
            raise SpoiledSum("an update ended in the middle: this sum holds part of it and must be made anew")

    def _admitted(self, weight: int) -> int:
        self._usable()
        if isinstance(weight, bool | np.bool_) or not isinstance(weight, int | np.integer) or weight < 0:
            raise OutOfRange(f"a weight is a whole number from 0 up, not {weight!r}")
        if self.total_weight + int(weight) > WEIGHT_LIMIT:
            raise SumOverflow(f"the weights would add up to more than {WEIGHT_LIMIT}")
        return int(weight)

    def _bound(self, part: Float32, weight: int) -> int:
        """A bound on weight * |q| over ``part``, in units. Raises NotFinite, OutOfRange, SumOverflow.

        Only where a cheap bound is too large is max|x| looked for.
        """
        cheap = _bound(part)
        if cheap <= RANGE and self._magnitude + weight * _units(cheap) <= TOTAL_LIMIT:
            return weight * _units(cheap)
        units = weight * _units(peak(part))
        if self._magnitude + units > TOTAL_LIMIT:
            raise _overflow(weight)
        return units

    def _tighten(self) -> None:
        """Replace the bound on |T|, a sum of bounds, by the largest |T| there is."""
        self._magnitude = 0
        for start in range(0, self.dimension, _MEAN_BLOCK):
            block = self.totals(start, start + _MEAN_BLOCK)
            self._magnitude = max(self._magnitude, int(block.max()), -int(block.min()))

    # ------------------------------------------------------------ changes

    def _fold_or_undo(self, flat: Float32, weight: int) -> int:
        start = magnitude = 0
        try:
            for part in pieces(flat, _BLOCK):
                magnitude = max(magnitude, self._fold(part, weight, start))
                start += part.size
        except TensorError:
            for part_start in range(0, start, _BLOCK):
                self._fold(flat[part_start : min(start, part_start + _BLOCK)], -weight, part_start)
            self._spoiled = False
            raise
        return magnitude

    def _fold(self, part: Float32, weight: int, start: int) -> int:
        """lanes += weight * (bits(M) + q(part)), modulo 2^64. Returns a bound on weight * |q|, in units. Raises as
        ``_bound``, with nothing of the part added."""
        loops, lanes = compiled.loops, self._lanes[start : start + part.size]
        if loops is None:
            units = self._bound(part, weight)
            self._spoiled = True
            self._fold_by_numpy(part, np.int64(weight), lanes)
            return units
        before, self._spoiled = self._spoiled, True
        largest = loops.fold(lanes, part, weight, RANGE)
        units = weight * _units(largest) if largest <= RANGE else 0
        if largest <= RANGE and self._magnitude + units <= TOTAL_LIMIT:
            return units
        if largest <= RANGE:
            loops.fold(lanes, part, -weight, RANGE)
        self._spoiled = before
        peak(part)
        raise _overflow(weight)

    def _fold_by_numpy(self, part: Float32, weight: np.int64, lanes: npt.NDArray[np.int64]) -> None:
        if self._scratch is None:
            self._scratch = _scratch_for(self._lanes)
        rounded = self._scratch[: part.size]
        np.copyto(rounded, part)
        np.add(rounded, _ANCHOR, out=rounded)
        bits = rounded.view(np.int64)
        if weight != 1:
            np.multiply(bits, weight, out=bits)
        np.add(lanes, bits, out=lanes)

    def _fold_small(self, part: Float32, weight: np.int64, start: int, level: int, number: int) -> None:
        """totals += weight * round(x * 2^(32 + 26 level)), ties to even."""
        first = int(self._ends[number - 1]) if number else 0
        if (level, number) not in self._small:
            self._small[level, number] = np.zeros(int(self._ends[number]) - first, np.int64)
        units = np.rint(np.ldexp(part.astype(np.float64), FRACTION_BITS + LEVEL_BITS * level)).astype(np.int64)
        self._small[level, number][start - first : start - first + part.size] += weight * units

    def _count_in(self, count: int, weight: int, magnitude: int) -> None:
        """The end of every change. An interrupt before it leaves lanes and weight apart, and so the sum spoiled."""
        self.count += count
        self.total_weight += weight
        self._magnitude += magnitude
        self._spoiled = False


def _bound(part: Float32) -> float:
    """The root of dot(x, x), a bound of max|x| at half the cost of max|x|; infinity where an x is not finite, or where
    the squares overflow. 1.02 covers float32's rounding of the dot product: a relative error below
    _BLOCK * 2^-24 = 1.2 %. A compiled loop finds max|x| itself at that cost.
    """
    if compiled.loops is not None:
        return min(math.inf, _magnitude(part))  # infinity for NaN too
    square = float(part.dot(part))
    return math.sqrt(square * 1.02) if 0.0 <= square < math.inf else math.inf


def _scratch_for(lanes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """A block of float64, half a page away from ``lanes`` modulo a page: a processor that compares only the low bits of
    addresses would otherwise take the read of one for the write of the other, and wait (5 % of the sum).
    """
    size = 8 * min(lanes.size, _BLOCK)
    room = np.empty(size + 4096, np.uint8)
    start = (lanes.ctypes.data + 2048 - room.ctypes.data) % 4096
    return room[start : start + size].view(np.float64)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise NotFinite("the values hold NaN or infinity")
    return value


def _units(bound: float) -> int:
    """A magnitude in units of 2^-32, rounded up."""
    return math.ceil(math.ldexp(bound, FRACTION_BITS))


def _wrapped(value: int) -> np.int64:
    """``value`` modulo 2^64, as an int64."""
    return np.int64((value + 2**63) % 2**64 - 2**63)


def _overflow(weight: int) -> SumOverflow:
    return SumOverflow(f"a weight of {weight} with values this large would take the sum out of its range of 2^31")
