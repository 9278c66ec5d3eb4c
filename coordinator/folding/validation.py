"""Validates the body of an update against its task: names, shapes, dtypes, values, and the report in its metadata.

Everything is checked before the update is acknowledged, so that a round never fails because of one device's update. The
body is read by blocks: memory stays small, however many arrive at once. Errors are problems for the peer.

``Bounds`` says how the values are bounded before they are added: the parameters are scaled together, to a norm, and
each value of a statistic is cut to the range of its tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from client_sdk import codecs
from client_sdk.protocol.devices import UpdateReport
from client_sdk.protocol.problems import problem
from client_sdk.secagg.clip_bit import kappa_of
from client_sdk.tensors import (
    Float32,
    Layout,
    Manifest,
    NotFinite,
    OutOfRange,
    TensorError,
    TensorHeader,
    header_limit,
    l2_norm_of_blocks,
    pieces,
    read_header,
    scaled,
)
from client_sdk.tensors.exact_sum import BOUND_OVER_PEAK, FRACTION_BITS, bound, peak, range_for, rounding_of
from client_sdk.tensors.manifest import shown
from client_sdk.tensors.safetensors_file import Source
from client_sdk.update import decode_report
from coordinator.engine.aggregation.section import reason_against
from coordinator.engine.event_fields import Treated
from coordinator.engine.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Of the updates of one run. Blocks are those of the flat vector, in its order (``tensors.manifest``); a block may
    lie across the place where the statistics begin."""

    parameters: int
    """Values of the vector that are of parameters: they come first."""
    ranges: Float32 | None
    """The largest magnitude of each value of a statistic; None where statistics are not bounded."""
    whole: Manifest | None = None
    """The tensors of the vector, in its order, for errors."""
    whole_units: bool = False
    """Whether values are rounded towards zero to the units of the exact sum: then their norm there is no larger."""
    bit: float = 0.0
    """Where the clip adapts: what an update within it adds behind its values (``client_sdk.secagg.clip_bit``)."""
    longest: float = 0.0
    """And how long its values are at most."""

    @classmethod
    def of(cls, plan: Plan, layout: Layout) -> Bounds:
        """The bounds of a plan. Under masks the coordinator sees no update: there the devices bound them."""
        found = [plan.aggregation.range_of(name) for name in layout.statistics]
        bounded = plan.secure is None and any(one is not None for one in found)
        sizes = [spec.elements for spec in layout.statistics.values()]
        limits = [np.inf if one is None else one for one in found]
        ranges = np.repeat(np.array(limits, np.float32), sizes) if bounded else None
        private = plan.privacy if plan.secure is None else None
        bit = longest = 0.0
        if private is not None:
            bit, longest = private.bit(plan), kappa_of(private.beta(plan)) * private.clip * _WITHIN
        return cls(layout.parameters.elements, ranges, layout.whole, private is not None, bit, longest)

    @property
    def bits(self) -> int:
        """How many values an update has behind those of its tensors."""
        return int(self.bit > 0)

    def at(self, measures: Measures, clip: float) -> Measures:
        """The measures of an update in a round with this clip, where that adapts."""
        if not self.bits:
            return measures
        scale = self.longest / max(clip, measures.norm)
        bit = self.bit if measures.norm <= clip else -self.bit
        return Measures(max(self.bit, measures.peak * scale * (1 + 2**-20)), scale, norm=measures.norm, bit=bit)

    def worst(self, blocks: Iterable[Float32]) -> str:
        """Which tensor has the first value that is not finite, else the largest one, as text."""
        at, place, largest = 0, -1, -1.0
        for block in blocks:
            sizes = np.nan_to_num(np.abs(block), nan=np.inf)
            if block.size and sizes.max() > largest:
                place, largest = at + int(sizes.argmax()), float(sizes.max())
            at += block.size
        for name, spec in (self.whole or {}).items():
            if 0 <= place < spec.elements:
                return f"the delta of {shown(name)}"
            place -= spec.elements
        return "the update"

    def applied(self, blocks: Iterable[Float32], scale: float | None, bit: float = 0.0) -> Iterator[Float32]:
        """The values as they are added. ``scale``: of the parameters; None: as they are. ``bit``: comes behind them, if
        there is one."""
        for at, block in self._parts(blocks):
            if at >= self.parameters:
                yield self._cut(at, block)
            else:
                found = block if scale is None else scaled(block, scale)
                yield np.trunc(found * _UNITS) / _UNITS if self.whole_units else found
        if bit:
            yield np.full(1, bit, np.float32)

    def of_parameters(self, blocks: Iterable[Float32]) -> Iterator[Float32]:
        """The blocks of parameters, not scaled."""
        return (block for at, block in self._parts(blocks) if at < self.parameters)

    def of_statistics(self, blocks: Iterable[Float32]) -> Iterator[tuple[Float32, Float32]]:
        """The blocks of statistics: as they are, and cut."""
        return ((block, self._cut(at, block)) for at, block in self._parts(blocks) if at >= self.parameters)

    def _cut(self, at: int, block: Float32) -> Float32:
        if self.ranges is None:
            return block
        ranges = self.ranges[at - self.parameters :][: block.size]
        return np.clip(block, -ranges, ranges)

    def _parts(self, blocks: Iterable[Float32]) -> Iterator[tuple[int, Float32]]:
        """(where it begins, block), each of parameters or of statistics alone."""
        at = 0
        for block in blocks:
            inside = min(max(self.parameters - at, 0), block.size)
            for part in (block[:inside], block[inside:]) if 0 < inside < block.size else (block,):
                yield at, part
                at += part.size


_UNITS = np.float32(2.0**FRACTION_BITS)
_WITHIN = 1 - 2.0**-20
"""Of a bound that must hold exactly: what rounding may add when an update is scaled down to it is less."""
_SMALLEST_ROUNDING = 1e-3
_FLOAT16 = 2.0**-25
"""Half a step of float16's values below 2^-14."""
_SMALL = 2.0**-23
"""Below this the largest magnitude decides how large rounding errors are, so a bound of it is not enough."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The result of a pass over an update's values."""

    peak: float
    """An upper bound of the magnitudes as they are added, after clipping. It is small enough that the round's sum
    cannot overflow."""
    scale: float | None
    """The factor of norm clipping, min(1, clip_norm / norm), of the parameters; None where nothing is clipped."""
    cut: int = 0
    """How many values of statistics are beyond ``aggregation.statistics_range``, and are cut to it when they are
    added."""
    coarse: float = 0.0
    """Half a step of the codec's small values."""
    norm: float = 0.0
    """Of the parameters, where the plan's clip adapts: see ``Bounds.at``."""
    bit: float = 0.0
    """What is added behind the values, where a round's clip adapts."""

    @property
    def treated(self) -> Treated:
        """What is done to the values of the update."""
        rounding = max(rounding_of(self.peak), min(1.0, self.coarse / self.peak) if self.peak else 0.0)
        return Treated(
            clipped=self.scale is not None,
            statistics_cut=self.cut > 0,
            rounding=rounding if rounding >= _SMALLEST_ROUNDING else 0.0,
        )


def check(
    source: BinaryIO, layout: Layout, plan: Plan, *, run: str, round: int, attempt: int
) -> tuple[UpdateReport, Measures]:
    """Returns the report of an update and the measures of its values. ``layout``: of an update of this run, decoded.

    ProblemError where the body is invalid.
    """
    try:
        wanted = plan.task.codec
        codec = codecs.beside(wanted, layout.statistics)
        with _failures(wanted):
            wire = codec.wire(layout.whole)
        header = read_header(source, header_limit(wire))
        report = decode_report(header)
        if (report.run, report.round, report.attempt) != (run, round, attempt):
            raise problem(
                "invalid-update",
                f"the body was made for run {report.run}, round {report.round}, attempt {report.attempt}, "
                f"but was sent to run {run}, round {round}, attempt {attempt}",
            )
        if report.codec != wanted:
            raise problem("invalid-update", f"the body is encoded with {report.codec}; the task asks for {wanted}")
        work = report.work
        weightless = reason_against(
            plan.aggregation,
            examples=report.examples,
            steps=work.steps,
            steps_planned=work.steps_planned,
            complete=work.complete,
        )
        if weightless is not None:
            raise problem("invalid-update", weightless)
        with _failures(wanted):
            wire.require(header.manifest)
            _require_seed(source, header, plan, round)
            bounds = Bounds.of(plan, layout)
            measures = measure_blocks(
                lambda: _whole(codec.blocks(source, header), layout.elements, wanted), plan, bounds
            )
        return report, measures
    except TensorError as error:
        raise problem("invalid-update", str(error)) from None


def _require_seed(source: BinaryIO, header: TensorHeader, plan: Plan, round: int) -> None:
    """Raise a problem where what all devices of the round draw alike was drawn from another seed than the plan's."""
    codec = codecs.get(plan.task.codec)
    if isinstance(codec, codecs.LinearMap) and codec.seed_of(source, header) != codecs.shared_seed(plan.digest, round):
        raise problem("invalid-update", f"the update is encoded with another seed than the plan gives round {round}")


@contextmanager
def _failures(codec: str) -> Iterator[None]:
    """Within the block a bug in a package's codec is a TensorError. Not a lack of memory, nor an error of the disk."""
    try:
        yield
    except (TensorError, MemoryError, OSError):
        raise
    except Exception as error:
        if ":" not in codec:
            raise
        raise TensorError(f"the codec {codec} failed on it: {type(error).__name__}: {error}") from error


def _whole(blocks: Iterable[Float32], elements: int, codec: str) -> Iterator[Float32]:
    """The blocks. TensorError unless they are 1-d float32 and together have so many elements: a sum takes no others."""
    found = 0
    for block in blocks:
        if not isinstance(block, np.ndarray) or block.dtype != np.float32 or block.ndim != 1:
            given = f"{block.dtype} {list(block.shape)}" if isinstance(block, np.ndarray) else type(block).__name__
            raise TensorError(f"the codec {codec} gives {given} in place of a 1-d float32 block")
        found += block.size
        yield block
    if found != elements:
        raise TensorError(f"the codec {codec} gives {found} values in place of {elements}")


def measure(source: Source, plan: Plan, layout: Layout) -> Measures:
    """Measures all values of an update that was checked before.

    TensorError for NaN, infinity, and values that could take the round's sum out of range.
    """
    header = read_header(source)
    codec = codecs.beside(plan.task.codec, layout.statistics)
    return measure_blocks(lambda: codec.blocks(source, header), plan, Bounds.of(plan, layout))


def measure_blocks(blocks: Callable[[], Iterable[Float32]], plan: Plan, bounds: Bounds) -> Measures:
    """``measure`` for values in blocks of any source. ``blocks`` may be called several times."""
    try:
        return _measured(blocks, plan, bounds)
    except (NotFinite, OutOfRange) as error:
        raise type(error)(f"{bounds.worst(blocks())}: {error}") from None


def _measured(blocks: Callable[[], Iterable[Float32]], plan: Plan, bounds: Bounds) -> Measures:
    most_weight = plan.heaviest
    most = range_for(most_weight, plan.cohort.goal)
    private = plan.privacy if plan.secure is None else None
    limit = plan.aggregation.clip_norm if private is None else private.clip * _WITHIN
    coarse = _FLOAT16 if plan.task.codec == codecs.FLOAT16.name else 0.0
    small = max(_SMALL, coarse / _SMALLEST_ROUNDING) * BOUND_OVER_PEAK
    if limit is None and bounds.ranges is None and small <= (largest := bound(blocks())) <= most:
        return Measures(peak=largest, scale=None)
    largest = peak(bounds.of_parameters(blocks()))
    scale = None
    if limit is not None:
        norm = l2_norm_of_blocks((part for block in bounds.of_parameters(blocks()) for part in pieces(block)), largest)
        if bounds.bits:
            return Measures(peak=largest, scale=None, norm=norm)
        if norm > limit:
            scale = limit / norm
            largest = min(largest, limit * (1 + 2**-20))
    cut = 0
    for block, bounded in bounds.of_statistics(blocks()):
        peak(block)  # refuses what is not finite, or out of range whatever it is cut to
        largest = max(largest, peak(bounded))
        cut += int(np.count_nonzero(block != bounded))
    if largest > most:
        raise OutOfRange(
            f"a value of magnitude {largest:g} is above {most:g}, the most that {plan.cohort.goal} updates "
            f"of weight {most_weight} can be summed with: lower aggregation.weight_cap, or weigh devices equally; "
            "clip_norm bounds parameters, and statistics_range bounds statistics"
        )
    return Measures(peak=largest, scale=scale, cut=cut, coarse=coarse * (1.0 if scale is None else scale))
