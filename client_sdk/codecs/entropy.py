"""Codecs of 1, 2 or 4 bits a value on average, entropy-coded: a value costs as many bits as its block's variance asks
for.

The whole delta has one step size D. With x a value and u its dither, uniform on (-1/2, 1/2), the code is k =
floor(x / D + u + 1/2), and it is decoded as D (k - g(u)). The expectation of k is x / D (Roberts 1962, doi
10.1109/TIT.1962.1057702), so for every odd function g the expectation of what is decoded is x. The least error has g(u)
= E[k | u] over the values of a block. In blocks of large variance that is u itself: subtractive dither, of error D^2 /
12. In blocks of small variance it is near 0: stochastic rounding, whose error shrinks with the values. One step for all
blocks is within a few percent of the optimum at equal slopes: other steps for small blocks were tried, and the error at
equal bytes was the same or more.

A block's variance is told by its *class*, the binary logarithm of mean(x^2) / D^2, rounded down. Tensors of at least
``NARROWEST`` rows and columns have a class for each row (the first dimension) and each column, and the class of a value
is their sum: updates are sums of outer products, so a row that learns little is small in all columns. All other values
have one for each ``RUN`` of the flat delta. The code is coded by ``rans`` in the context of its class and, in small
classes, of its dither: given u, the code of a small value is all but certain, but where u is near the edge. The
frequencies are those of a logistic distribution, so no tables travel. Classes are coded as differences, in a context
that the body names.

The body has as many bytes as the codec's name allows, whatever the delta is; the step is the least that fits. It is
searched with a dither of its own, since a step that hangs on u would be a bias. With the body's dither the codes may
need more than with the search's. That is allowed for, and where it is not enough (in none of 900 bodies), the step
grows and another dither is drawn.

Libraries were measured on the codes of Fashion-MNIST, sorted by class, five codes of -1, 0 and 1 a byte. Without the
classes, Huffman codes of zlib need 13 % more bytes than the whole body at 1 bit a value, 2 % at 2 bits, and 1 % less at
4; all of zlib 28, 15 and 4 %, lzma 30, 13 and 2 %. And another build of a library may write other bytes.

All chance comes from (task's seed, round, device). All operations are of integers, or of single float64 values in a
fixed order, so the bits are the same on every machine.

In the body is one tensor of bytes: the seed of the dither; the step, float32; how many bytes of raw bits there are,
uint32; the context of the classes; the raw bits (the lowest bits of large codes, and codes that no symbol stands for);
the words of the entropy coder; zeros. Beside it are names and shapes without data. Means of codes are not codes of
means, so these codecs do not work under masks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from client_sdk.chance import labelled, sha256_bytes
from client_sdk.codecs import rans
from client_sdk.codecs.port import FlatCodec, Octets, Origin, Pieces, Read, total
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Manifest, OutOfRange, Tensors, TensorSpec

CODES = "entropy.codes"
"""The name under which the bytes travel; no tensor of a model may have it."""
SHORTEST = 512
"""A body has the bytes of so many values at least."""
RUN, NARROWEST = 64, 32
PIECE = 1 << 16
"""Most values that are decoded at a time."""
LANES = 2048
"""Most lanes. Otherwise there are 1,024 values a lane, for which the lane's state is 2 % of the bytes at 1 bit."""
LARGEST_STEP = 1e9
"""What is decoded with it is finite."""

LOW, HIGH = -20, 40
"""The classes. At LOW nearly all codes are 0; at HIGH they are of 20 bits, and the step is never so small."""
FINE = 2
"""Up to this class the dither is part of the context."""
BINS = 24
"""Of 1/2 - abs(u), two an octave."""
MOST = 15
"""Symbols stand for the codes from -MOST to MOST, or, in classes that send lower bits raw, for their upper bits."""
ESCAPE = 2 * MOST + 1
"""The symbol of all other codes, which are sent raw."""
RAW_BITS = 24
"""Of a code after ESCAPE."""
_FINER = 64
"""Step sizes an octave."""
_SPREAD = 3.0
"""Bits, times the square root of the number of values: what another dither may need beyond the search's."""

HEAD = Struct("<16sfIB")

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EntropyCoded(FlatCodec):
    """One of the codecs of this file."""

    name: str
    bits: int
    """Of a value, on average."""
    lossless: bool = False

    OWN: ClassVar = (CODES,)

    def _own(self, manifest: Manifest) -> dict[str, TensorSpec]:
        return {CODES: TensorSpec("U8", (self._bytes(manifest),))}

    def _encoded(self, flat: Float32, manifest: Manifest, origin: Origin) -> Tensors:
        """The bytes."""
        body = np.zeros(self._bytes(manifest), np.uint8)
        if flat.any():
            found = _Encoder(flat, _Layout.of(manifest), origin).within(body.size)
            body[: len(found)] = np.frombuffer(found, np.uint8)
        return {CODES: body}

    def _read(self, manifest: Manifest, own: Mapping[str, Octets]) -> Read:
        """See ``FlatCodec``; the vector is read in order. Memory: a piece's arrays, some 5 MB, 3 MB of tables, and the
        classes, at most one for 16 values. OutOfRange where the bytes are none that this codec writes, at the latest
        behind the last block."""
        layout = _Layout.of(manifest)
        decoded = _decoded(own[CODES], self._bytes(manifest), layout)
        return Pieces([0, *(stop for _, _, stop in layout.pieces())], lambda _: next(decoded)).read

    def _bytes(self, manifest: Manifest) -> int:
        return -(-max(manifest.elements, SHORTEST) * self.bits // 8) if manifest.elements else 0


# ------------------------------------------------------------ where values and classes are


@dataclass(frozen=True, slots=True)
class _Region:
    """Neighbours in the flat delta that share a rule for classes: a matrix, or what is between matrices."""

    start: int
    stop: int
    columns: int
    """Of a matrix; else 0."""

    @property
    def rows(self) -> int:
        """Classes of rows or runs."""
        return -(-(self.stop - self.start) // (self.columns or RUN))

    def of_values(self, classes: Ints, start: int, stop: int) -> Ints:
        """The classes of the values from ``start`` to ``stop``; ``classes``: those of this region."""
        row, column = np.divmod(np.arange(start - self.start, stop - self.start), self.columns or RUN)
        found = classes[row]
        if self.columns:
            found += classes[self.rows :][column]
        return np.clip(found, LOW, HIGH)


@dataclass(frozen=True, slots=True)
class _Layout:
    regions: list[_Region]
    elements: int

    @classmethod
    def of(cls, manifest: Manifest) -> _Layout:
        regions: list[_Region] = []
        for name, place in manifest.slices().items():
            rows = manifest[name].shape[0] if manifest[name].shape else 1
            columns = (place.stop - place.start) // max(rows, 1)
            if min(rows, columns) < NARROWEST:
                columns = 0
            start = place.start
            if regions and not columns and not regions[-1].columns:
                start = regions.pop().start
            regions.append(_Region(start, place.stop, columns))
        return cls([region for region in regions if region.start < region.stop], manifest.elements)

    @property
    def lanes(self) -> int:
        return min(max(self.elements // 1024, 1), LANES)

    @property
    def classes(self) -> int:
        return sum(region.rows + region.columns for region in self.regions)

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """(region, start, stop) of values that are coded together."""
        for number, region in enumerate(self.regions):
            for start in range(region.start, region.stop, PIECE):
                yield number, start, min(start + PIECE, region.stop)

    def of_values(self, classes: Ints) -> Iterator[tuple[slice, Ints]]:
        """Each piece, and the classes of its values."""
        ends = np.cumsum([0, *(region.rows + region.columns for region in self.regions)])
        for number, start, stop in self.pieces():
            yield slice(start, stop), self.regions[number].of_values(classes[ends[number] :], start, stop)


def _steps(sizes: list[int], lanes: int) -> list[tuple[int, int]]:
    """(first, last) of each step; none goes beyond one of the parts of these sizes."""
    steps, at = [], 0
    for size in sizes:
        steps += [(at + start, at + min(start + lanes, size)) for start in range(0, size, lanes)]
        at += size
    return steps


# ------------------------------------------------------------ the model of codes


@dataclass(frozen=True, slots=True)
class _Model:
    """What follows from a context: one for each class and bin up to FINE, then one for each class."""

    tables: rans.Tables
    cost: Ints
    """[contexts, symbols]: 1/256 bits, raw bits included."""
    base: Floats
    slope: Floats
    """g(u) = sign(u) (base + slope abs(u))."""
    shift: Ints
    """How many of the lowest bits are sent raw."""
    half: Ints
    """What is added to a code before its lowest bits are cut off."""


@lru_cache(maxsize=1)
def _model() -> _Model:
    classes = np.concatenate([np.repeat(np.arange(LOW, FINE + 1), BINS), np.arange(FINE + 1, HIGH + 1)])
    octave, odd = np.divmod(np.arange(BINS), 2)
    outer = np.ldexp(0.5, -octave)
    inner = np.where(odd == 1, 0.5, 0.75) * outer
    inner[-1] = 0
    begin = np.concatenate([np.tile(0.5 - np.where(odd == 1, 0.75, 1) * outer, FINE - LOW + 1), np.zeros(HIGH - FINE)])
    end = np.concatenate([np.tile(0.5 - inner, FINE - LOW + 1), np.full(HIGH - FINE, 0.5)])
    deviation = np.array([math.sqrt(math.ldexp(math.sqrt(2), int(place))) for place in classes])
    shift = np.maximum(0, (classes - 1) // 2)
    half = (1 << shift) >> 1

    bounds = np.arange(-MOST, MOST + 2) * (1 << shift)[:, None] - half[:, None] - 0.5
    parts = np.zeros((classes.size, 2 * MOST + 1))
    for part in (1, 3, 5, 7):
        dither = begin + (end - begin) * (part / 8)
        parts += np.diff(_below((bounds - dither[:, None]) / deviation[:, None]), axis=1) / 4
    frequency = np.floor(parts * 2.0**rans.BITS + 0.5).astype(np.int64)
    escape = np.maximum(1, 2**rans.BITS - frequency.sum(axis=1))
    frequency = np.concatenate([frequency, escape[:, None]], axis=1)
    frequency[np.arange(classes.size), frequency.argmax(axis=1)] += 2**rans.BITS - frequency.sum(axis=1)

    log2 = np.array([0] + [(part**256).bit_length() - 1 for part in range(1, 2**rans.BITS + 1)])  # in 1/256, down
    cost = rans.BITS * 256 - log2[frequency] + 256 * shift[:, None]
    cost[:, ESCAPE] += 256 * (RAW_BITS - shift)

    def expected(dither: Floats) -> Floats:
        found = np.zeros(classes.size)
        for code in range(1, 41):
            found += _below((dither + 0.5 - code) / deviation) - _below((0.5 - code - dither) / deviation)
        return found

    fine = (classes > LOW) & (classes <= FINE)
    at_begin, at_end = expected(begin), expected(end)
    slope = np.where(fine, (at_end - at_begin) / (end - begin), np.where(classes == LOW, 0.0, 1.0))
    base = np.where(fine, at_begin - slope * begin, 0.0)
    return _Model(rans.Tables.of(frequency.astype(np.uint16)), cost, base, slope, shift, half)


def _below(x: Floats) -> Floats:
    """The logistic distribution of variance 1, by operations that have the same bits everywhere."""
    part = np.clip(x * -1.8137993642342178, -60, 60) / 4096  # pi / sqrt(3)
    power = 1 + part * (1 + part * (1 / 2 + part * (1 / 6 + part / 24)))
    for _ in range(12):
        power = power * power
    found: Floats = 1 / (1 + power)
    return found


def _contexts(classes: Ints, dither: Floats) -> Ints:
    to_edge = (0.5 - np.abs(dither)).view(np.int64) >> 51  # the exponent and the first bit of the fraction
    of_bin = np.minimum(2 * 1021 + 1 - to_edge, BINS - 1)
    fine = (classes - LOW) * BINS + of_bin
    return np.where(classes <= FINE, fine, (FINE - LOW + 1) * BINS + classes - FINE - 1)


def _symbols(codes: Ints, contexts: Ints) -> tuple[Ints, Ints, Ints]:
    """(symbols, raw, widths): ``raw`` has ``widths`` bits."""
    model = _model()
    shift, moved = model.shift[contexts], codes + model.half[contexts]
    upper = (moved >> shift) + MOST
    symbols = np.where((upper >= 0) & (upper < ESCAPE), upper, ESCAPE)
    symbols[model.tables.frequency[contexts, symbols] == 0] = ESCAPE
    escaped = symbols == ESCAPE
    raw = np.where(escaped, codes + (1 << RAW_BITS - 1), moved & ((1 << shift) - 1))
    return symbols, raw, np.where(escaped, RAW_BITS, shift)


def _philox(key: bytes) -> np.random.Philox:
    return np.random.Philox(key=np.frombuffer(key, "<u8").astype(np.uint64))


def _dither(philox: np.random.Philox, count: int) -> Floats:
    """The next ``count`` numbers on (-1/2, 1/2), as likely as their negatives."""
    words = np.asarray(philox.random_raw(-(-count // 2)), np.dtype("<u8"))
    found: Floats = (words.view("<u4")[:count] + 0.5) * 2.0**-32 - 0.5
    return found


# ------------------------------------------------------------ encoding


class _Encoder:
    def __init__(self, values: Float32, layout: _Layout, origin: Origin) -> None:
        self._values, self._layout, self._origin = values, layout, origin
        self._squares = [_squares(values, region) for region in layout.regions]

    def within(self, size: int) -> bytes:
        """The body's bytes, at most ``size``."""
        elements, lanes = self._layout.elements, self._layout.lanes
        most = 8 * (size - HEAD.size) - 26 * lanes - _SPREAD * math.sqrt(elements)
        stride = -(-elements // PIECE)
        rising = range(40 * _FINER)  # steps
        place = bisect_left(rising, True, key=lambda place: self._bits(place, stride) <= most)
        while place and self._bits(place - 1, 1) <= most:
            place -= 1
        while self._bits(place, 1) > most:
            place += 1
        while len(found := self._body(place)) > size:
            place += 1
        return found

    def _step(self, place: int) -> float:
        """The step is at least a 2^20th of the largest magnitude, so that a code has at most 21 bits."""
        octaves, part = divmod(place, _FINER)
        largest = float(np.abs(self._values).max())
        step = np.float32(math.ldexp(largest * _ROOTS[part], octaves - 20))
        return float(max(step, np.finfo(np.float32).smallest_subnormal))

    def _seed(self, purpose: str, place: int = 0) -> bytes:
        origin = self._origin
        return sha256_bytes(labelled(f"entropy {purpose}", origin.seed, origin.round, origin.device, place), 16)

    def _bits(self, place: int, stride: int) -> float:
        """About how many bits a body needs, from each ``stride``-th value."""
        step, philox = self._step(place), _philox(self._seed("search"))
        classes = self._classes(step)
        bits = min(self._of_classes(classes))[0] / 256
        for part, of_values in self._layout.of_values(classes):
            contexts, codes = self._coded(self._values[part][::stride], of_values[::stride], step, philox)
            symbols, _, _ = _symbols(codes, contexts)
            bits += float(_model().cost[contexts, symbols].sum()) / 256 * of_values.size / codes.size
        return bits

    def _body(self, place: int) -> bytes:
        step, seed = self._step(place), self._seed("dither", place)
        classes, philox, tables = self._classes(step), _philox(seed), _model().tables
        context = min(self._of_classes(classes))[1]
        parts = [(np.full(classes.size, context * BINS), np.diff(classes, prepend=0))]
        for part, of_values in self._layout.of_values(classes):
            parts.append(self._coded(self._values[part], of_values, step, philox))
        frequencies, starts, raw = [], [], []
        for contexts, codes in parts:
            symbols, values, widths = _symbols(codes, contexts)
            frequencies.append(tables.frequency[contexts, symbols])
            starts.append(tables.start[contexts, symbols])
            raw.append(_to_bits(values, widths))
        bits = np.packbits(np.concatenate(raw), bitorder="little").tobytes()
        steps = _steps([codes.size for _, codes in parts], self._layout.lanes)
        words = rans.encode(np.concatenate(frequencies), np.concatenate(starts), steps, self._layout.lanes)
        return HEAD.pack(seed, step, len(bits), context) + bits + words.astype("<u2").tobytes()

    def _classes(self, step: float) -> Ints:
        """Of all rows or runs and columns, region by region. Where a sum is below LOW it does not matter by how
        much."""
        found = []
        for rows, columns in self._squares:
            of_rows = np.frexp(rows / step / step)[1].astype(np.int64) - 1
            of_rows[rows == 0] = -(1 << 15)
            highest = columns.max(initial=-(1 << 15)) if columns.size else 0
            of_rows = np.maximum(of_rows, LOW - highest)
            found += [of_rows, np.maximum(columns, LOW - of_rows.max())]
        return np.concatenate(found)

    def _of_classes(self, classes: Ints) -> Iterator[tuple[int, int]]:
        """(cost, context) of the classes in each context that they may have."""
        codes, counts = np.unique(np.diff(classes, prepend=0), return_counts=True)
        for context in range(FINE - LOW + 1):
            contexts = np.full(codes.size, context * BINS)
            yield int((_model().cost[contexts, _symbols(codes, contexts)[0]] * counts).sum()), context

    @staticmethod
    def _coded(values: Float32, classes: Ints, step: float, philox: np.random.Philox) -> tuple[Ints, Ints]:
        """(contexts, codes); codes of values with a dither below 0 have the other sign."""
        dither = _dither(philox, values.size)
        codes = np.floor(values.astype(np.float64) / step + dither + 0.5).astype(np.int64)
        return _contexts(classes, dither), np.where(dither < 0, -codes, codes)


_ROOTS = [1.0]
for _ in range(_FINER - 1):
    _ROOTS.append(_ROOTS[-1] * math.sqrt(math.sqrt(math.sqrt(math.sqrt(math.sqrt(math.sqrt(2.0)))))))


def _squares(values: Float32, region: _Region) -> tuple[Floats, Ints]:
    """(mean squares of rows or runs; classes of columns, relative to the whole's)."""
    width = region.columns or RUN
    rows, columns = [], np.zeros(width)
    for start in range(region.start, region.stop, part := max(PIECE // width, 1) * width):
        held = values[start : min(start + part, region.stop)].astype(np.float64)
        squares = np.zeros((-(-held.size // width), width))
        squares.reshape(-1)[: held.size] = held * held
        rows.append(total(squares.T.copy()))
        columns += total(squares)
    of_rows = np.concatenate(rows)
    if region.columns:
        of_columns = columns / max(total(columns.copy()[:, None])[0], 1e-300) * width
        found = np.frexp(of_columns * math.sqrt(2))[1].astype(np.int64) - 1
        found[columns == 0] = -(1 << 14)
        return of_rows / width, found
    counts = np.full(of_rows.size, width)
    counts[-1] -= of_rows.size * width - (region.stop - region.start)
    return of_rows / counts, np.empty(0, np.int64)


def _to_bits(values: Ints, widths: Ints) -> Bits:
    """The ``widths`` lowest bits of each value, the lowest first."""
    starts = np.cumsum(widths) - widths
    bits = np.zeros(int(widths.sum()), np.bool_)
    for place in range(int(widths.max(initial=0))):
        longer = widths > place
        bits[starts[longer] + place] = values[longer] >> place & 1
    return bits


def _from_bits(bits: Bits, widths: Ints) -> Ints:
    starts = np.cumsum(widths) - widths
    values = np.zeros(widths.size, np.int64)
    for place in range(int(widths.max(initial=0))):
        longer = widths > place
        values[longer] |= bits[starts[longer] + place].astype(np.int64) << place
    return values


# ------------------------------------------------------------ decoding


def _decoded(octets: Octets, size: int, layout: _Layout) -> Iterator[Float32]:
    """The flat delta, piece by piece. ``octets`` reads the body's own tensor of ``size`` bytes."""
    if not size:
        return
    seed, step, raw, context = HEAD.unpack(octets(0, HEAD.size))
    if not 0 <= step <= LARGEST_STEP:
        raise OutOfRange(f"the step is {step:g}: one of these codecs is 0 to {LARGEST_STEP:g}")
    if context > FINE - LOW:
        raise OutOfRange(f"the classes have context {context}: there are {FINE - LOW + 1}")
    if not step:
        _require_zeros(octets, 0, size)
        for _, start, stop in layout.pieces():
            yield np.zeros(stop - start, np.float32)
        return
    reader = _Reader(octets, size, raw, layout.lanes)
    classes = np.cumsum(reader.codes(np.full(layout.classes, context * BINS)))
    philox, model = _philox(seed), _model()
    for part, of_values in layout.of_values(classes):
        dither = _dither(philox, of_values.size)
        contexts = _contexts(of_values, dither)
        centred = reader.codes(contexts) - (model.base[contexts] + model.slope[contexts] * np.abs(dither))
        if part.stop == layout.elements:
            reader.require_ended()
        yield (np.where(dither < 0, -centred, centred) * step).astype(np.float32)


class _Reader:
    """Reads codes from a body. OutOfRange where it has other bytes than an encoder writes."""

    def __init__(self, octets: Octets, size: int, raw: int, lanes: int) -> None:
        """``raw``: how many bytes of raw bits there are."""
        self._octets, self._size, self._lanes = octets, size, lanes
        self._bit, self._first = 8 * HEAD.size, HEAD.size + raw
        self._at = self._first
        states = self._words(2 * lanes)
        if states.size < 2 * lanes:
            raise OutOfRange(f"{raw} bytes of raw bits and {lanes} states do not fit {size} bytes")
        self._coder = rans.Decoder(_model().tables, states)

    def codes(self, contexts: Ints) -> Ints:
        """The codes in these contexts."""
        first, words = self._at, self._words(contexts.size)
        symbols, read = np.empty(contexts.size, np.uint8), 0
        for start, stop in _steps([contexts.size], self._lanes):
            try:
                symbols[start:stop], count = self._coder.step(contexts[start:stop], words[read:])
            except IndexError:
                raise OutOfRange("the words of the entropy coder end before the last code") from None
            read += count
        self._at = first + 2 * read
        model, escaped = _model(), symbols == ESCAPE
        shift = model.shift[contexts]
        raw = self._raw(np.where(escaped, RAW_BITS, shift))
        codes = ((symbols.astype(np.int64) - MOST) << shift) - model.half[contexts] + raw
        return np.where(escaped, raw - (1 << RAW_BITS - 1), codes)

    def require_ended(self) -> None:
        if not self._coder.ended or -(-self._bit // 8) != self._first:
            raise OutOfRange("the words of the entropy coder, or the raw bits, are not those of these codes")
        _require_zeros(self._octets, self._at, self._size)

    def _words(self, most: int) -> rans.Words:
        """The next words, as many as there are."""
        found = self._octets(self._at, 2 * max(min(most, (self._size - self._at) // 2), 0))
        self._at += len(found)
        return np.frombuffer(found, "<u2").astype(np.uint16)

    def _raw(self, widths: Ints) -> Ints:
        start, self._bit = self._bit, self._bit + int(widths.sum())
        if self._bit > 8 * self._first:
            raise OutOfRange("the raw bits end before the last code")
        held = np.frombuffer(self._octets(start // 8, -(-self._bit // 8) - start // 8), np.uint8)
        return _from_bits(np.unpackbits(held, bitorder="little").view(np.bool_)[start % 8 :], widths)


def _require_zeros(octets: Octets, start: int, stop: int) -> None:
    for begin in range(start, stop, PIECE):
        if any(octets(begin, min(PIECE, stop - begin))):
            raise OutOfRange(f"bytes are set behind the last word, from byte {begin} on")


ENTROPY = tuple(EntropyCoded(f"entropy{bits}@1", bits) for bits in (1, 2, 4))
