"""From the updates of a round to the next checkpoint: their running sum, and what is made of it, written block by
block.

The sum is folded as updates arrive. It exists in this process only, with the list of contributions that it contains:
after a crash, or on another replica, missing updates are folded again from the stored updates, to the same bits.
Memory: one exact sum (the size of two models, of up to six where updates have tiny tensors), whatever the number of
devices.

``Sums`` is the port: a simulation, whose updates never become files, has another implementation. The caller makes sure
that one thread at a time uses it.

In a simulation updates stay in the engine that trained them: what travels is the report, and each engine adds to a
partial sum, since writing, hashing and reading a body costs a millisecond for 200,000 parameters. The exact sum has no
grouping, so the bits are those of deployment (a test compares the digests). Such a run has no raw updates: nothing is
retained, and ``verify`` cannot refold its rounds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.chance import labelled, shake_bytes
from client_sdk.codecs.stochastic8 import uniform
from client_sdk.protocol.wire import canonical
from client_sdk.tensors import (
    Float32,
    Layout,
    Manifest,
    NotFinite,
    Roles,
    TensorError,
    narrow,
    read_header,
)
from client_sdk.tensors.exact_sum import FRACTION_BITS, ExactSum
from coordinator.blobs import BlobError, Blobs, Gone
from coordinator.engine.aggregation.combining import Blocks, Combine, Computed, Sources, Updates
from coordinator.engine.aggregation.parameters import ExtensionError, Settings
from coordinator.engine.aggregation.registry import BUILT_IN, Registry
from coordinator.engine.effects import Contribution
from coordinator.engine.event_fields import NO_EVIDENCE, Evidence, updates_digest
from coordinator.engine.named_tensors import MOST_SMALL, NamedTensors, Small
from coordinator.engine.plan import Plan, algorithm
from coordinator.folding.named_tensors import HashedReads, StoredBlocks, carried
from coordinator.folding.noise import Noise, RoundSeed
from coordinator.folding.validation import Bounds, Measures, measure

Vector = NDArray[np.float32]
_COLUMNS = 1 << 20
"""Elements of a block of columns, over all updates together: 4 MiB."""


class Sums(Protocol):
    """Sums and columns of the updates of one run's rounds. TensorError where updates cannot be added."""

    def remember(self, digest: str, measures: Measures) -> None:
        """Caches the measures of a validated update, so that folding does not measure it again."""

    def fold(self, round: int, item: Contribution, clip: float = 0.0) -> None:
        """Adds one update to the round's running sum, once; does nothing for a round that has ended. ``clip``: the
        round's, where that adapts."""

    def total(self, round: int, items: tuple[Contribution, ...], clip: float = 0.0) -> ExactSum:
        """Returns the exact sum of exactly these updates."""

    def columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        """All these updates at once, by blocks of columns: [updates, width], a row for each item, clipped as for a
        sum."""

    def forget(self, round: int) -> None:
        """Frees the memory of rounds up to this one."""


@dataclass(slots=True)
class _RoundSum:
    round: int
    clip: float
    total: ExactSum
    folded: dict[str, Contribution] = field(default_factory=dict)


class SpooledSums:
    """``Sums`` over the bodies that devices sent, each a blob. ``layout``: of an update, decoded."""

    def __init__(self, blobs: Blobs, plan: Plan, layout: Layout) -> None:
        self._blobs = blobs
        self._plan = plan
        self._layout = layout
        self._bounds = Bounds.of(plan, layout)
        self._codec = codecs.beside(plan.task.codec, layout.statistics)
        self._current: _RoundSum | None = None
        self._measures: dict[str, Measures] = {}

    def remember(self, digest: str, measures: Measures) -> None:
        self._measures[digest] = measures

    def fold(self, round: int, item: Contribution, clip: float = 0.0) -> None:
        if self._current is not None and self._current.round > round:
            return
        current = self._sum_of(round, clip)
        if item.device not in current.folded:
            self._add(current, item)

    def forget(self, round: int) -> None:
        if self._current is not None and self._current.round <= round:
            self._current = None
        self._measures.clear()

    def total(self, round: int, items: tuple[Contribution, ...], clip: float = 0.0) -> ExactSum:
        """Completes the running sum where it is a subset of ``items``; otherwise folds all again."""
        wanted = {item.device: item for item in items}
        current = self._sum_of(round, clip)
        if any(wanted.get(device) != item for device, item in current.folded.items()):
            self._current = None
            current = self._sum_of(round, clip)
        for item in items:
            if item.device not in current.folded:
                self._add(current, item)
        return current.total

    def columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        width = max(256, _COLUMNS // len(items))
        rows = [self._blocks(item, self._measured(item), width) for item in items]
        for row in zip(*rows, strict=True):
            yield np.stack(row)

    # ------------------------------------------------------------ inside

    def _sum_of(self, round: int, clip: float) -> _RoundSum:
        if self._current is None or (self._current.round, self._current.clip) != (round, clip):
            self._current = _RoundSum(round, clip, ExactSum.of(self._layout.whole, more=self._bounds.bits))
        return self._current

    def _add(self, current: _RoundSum, item: Contribution) -> None:
        measures = self._bounds.at(self._measured(item), current.clip)
        try:
            current.total.add_blocks(self._blocks(item, measures), item.weight, measures.peak)
        except BaseException:
            self._current = None  # the sum may contain part of this update: it is folded again
            raise
        current.folded[item.device] = item

    def _measured(self, item: Contribution) -> Measures:
        known = self._measures.pop(item.digest, None)
        if known is not None:
            return known
        with self._blobs.open(item.digest) as file:
            return measure(file, self._plan, self._layout)

    def _blocks(self, item: Contribution, measures: Measures, width: int = codecs.BLOCK) -> Iterator[Vector]:
        with self._blobs.open(item.digest) as file:
            blocks = self._codec.blocks(file, read_header(file), block=width)
            yield from self._bounds.applied(blocks, measures.scale, measures.bit)


# ------------------------------------------------------------ the next checkpoint


MakeSums = Callable[[Blobs, Plan, Layout], Sums]
BLOCK = 1 << 16
"""Elements handled at a time: 256 KiB of float32, which stays in a core's cache."""
_ROUNDING = 2.0**-FRACTION_BITS
"""A mean of values from 0 up is below 0 by less than this, where a model's value is no multiple of the exact scale."""


class CannotAggregate(Exception):
    """These updates cannot become a checkpoint, also when it is tried again. The message has the reason."""


class LostUpdate(CannotAggregate):
    """The stored bytes of an update are damaged or gone. Its device may send it again."""

    def __init__(self, item: Contribution, error: Gone) -> None:
        super().__init__(f"the update of {item.device} is damaged or gone: {error}")
        self.item = item


Key = bytes


class NewCheckpoint(NamedTuple):
    """What a commit has written: durable, and without a reference yet."""

    digest: str
    bytes: int
    named_tensors: NamedTensors = MappingProxyType({})
    """The tensors that go with it."""
    small: Small = MappingProxyType({})
    """The small state that goes with it."""
    zero_sum: bool = False
    """Whether the mean of the updates was zero in every value."""
    raised: int = 0
    """How many values of non-negative statistics are 0 in it, and would be below: not by rounding, but by what devices
    sent."""
    evidence: Evidence = NO_EVIDENCE
    """Of the bytes that it was made of."""
    rounding: float = 0.0
    """Under masks: about how much of the mean is rounding; 0 below 0.3."""
    noise_key: Key = b""
    """The secret key of its noise, where later rounds need it: to be stored with the commit."""


@contextmanager
def _final_errors() -> Iterator[None]:
    """Raises errors that a retry would not change as CannotAggregate."""
    try:
        yield
    except (TensorError, ExtensionError) as error:
        raise CannotAggregate(str(error)) from None


@contextmanager
def _lost_updates(items: tuple[Contribution, ...]) -> Iterator[None]:
    """Raises the loss of an update as LostUpdate. Whoever waits for any other file may try again: its bytes can be
    stored again, and a round cannot be done without them."""
    try:
        yield
    except Gone as error:
        lost = next((item for item in items if item.digest == error.digest), None)
        if lost is None:
            raise
        raise LostUpdate(lost, error) from None


class Aggregator:
    """The checkpoints of one run. Safe from several threads: one at a time folds or commits.

    ``sums``: makes the ``Sums`` of the run, from blobs, plan and the layout of an update.
    """

    def __init__(
        self,
        blobs: Blobs,
        plan: Plan,
        checkpoint: str,
        sums: MakeSums = SpooledSums,
        *,
        roles: Roles,
        registry: Registry = BUILT_IN,
        run: str = "",
        noise: Noise | None = None,
    ) -> None:
        """``roles``: the run's. ``registry``: the rules and server optimizers of packages. ``run``: for the labels of
        the optimizer's state. ``noise``: that of another aggregator of a private run; None: its own. PlanError where
        the plan's rule or optimizer is missing."""
        self._blobs = blobs
        self._plan = plan
        self._run = run
        self.algorithm = algorithm(plan, registry)
        self._combine: Combine = self.algorithm
        self._lock = threading.Lock()
        with blobs.open(checkpoint) as file:
            self.manifest: Manifest = read_header(file).manifest
        """Manifest of every checkpoint of the run: shapes never change."""
        self.layout = Layout.of(self.manifest, plan.task.averaged, roles)
        """Layout of an update, decoded."""
        codec = codecs.beside(plan.task.codec, self.layout.statistics)
        self.max_update_bytes = codecs.longest_body(codec, self.layout.whole)
        """The longest body of an update in bytes."""
        self._sums = sums(blobs, plan, self.layout)
        self._noise = None if plan.privacy is None else noise or Noise(plan, plan.privacy)

    def remember(self, digest: str, measures: Measures) -> None:
        """Caches the measures of a validated update, so that folding does not measure it again."""
        self._sums.remember(digest, measures)

    def fold(self, round: int, item: Contribution, small: Small | None = None) -> None:
        """Adds one update to the round's running sum, once; does nothing for a round that has ended. ``small``: see
        ``commit``. LostUpdate."""
        if self.needs_sum:
            with self._lock, _lost_updates((item,)):
                self._sums.fold(round, item, self._clip(small))

    def forget(self, round: int) -> None:
        """Frees the running sum of a round that has ended."""
        with self._lock:
            self._sums.forget(round)

    def commit(
        self,
        round: int,
        parent: str,
        items: tuple[Contribution, ...],
        named_tensors: NamedTensors | None = None,
        small: Small | None = None,
        settings: Settings | None = None,
        seed: Callable[[], RoundSeed] | None = None,
    ) -> NewCheckpoint:
        """Writes the next checkpoint durably, and its named tensors beside it. ``named_tensors``, ``small``: what
        ``parent`` was committed with. ``settings``: the round's numbers; None: those of the first version. ``seed``:
        gives that of the noise, where the plan is private, once the sum is complete. The same parent, tensors, numbers,
        seed and set of updates give the same digests.

        CannotAggregate when the result would not be finite, the sum out of range, or an update lost (LostUpdate);
        BlobError when files could not be read or written.
        """
        with self._lock, _final_errors(), _lost_updates(items):
            updates = updates_digest((item.device, item.digest, item.weight) for item in items)
            if self._noise is None or seed is None:
                return self._write(round, parent, named_tensors, small, settings, self._updates(round, items), updates)
            clip = self._clip(small)
            # An update that is lost is noticed before the round costs anything.
            total = self._sums.total(round, items, clip)
            mean, key, within = self._noise.mean(total, seed(), parent, clip)
            elements = self.layout.parameters.elements
            sources = Sources(lambda: mean, self.layout.whole, elements, self._plan.cohort.goal)
            made = self._write(round, parent, named_tensors, small, settings, sources, updates)
            return self.with_clip(made._replace(noise_key=key), small, within)

    def apply(
        self,
        round: int,
        parent: str,
        mean: Blocks,
        named_tensors: NamedTensors | None = None,
        small: Small | None = None,
        settings: Settings | None = None,
        updates: str = "",
        count: int = 0,
        groups: Sequence[Blocks] = (),
    ) -> NewCheckpoint:
        """Writes the next checkpoint as ``commit`` does, of a mean of deltas from elsewhere: under secure aggregation
        the updates are unknown. ``updates``: what the evidence says of them; ``count``: how many they are; ``groups``:
        the means of groups of them, where the plan's rule looks at more than the sum."""
        with self._lock, _final_errors():
            sources = Sources(lambda: mean, self.layout.whole, self.layout.parameters.elements, count)
            if groups:
                sources = self._means(groups, mean)
            return self._write(round, parent, named_tensors, small, settings, sources, updates)

    def with_clip(self, made: NewCheckpoint, small: Small | None, within: float | None) -> NewCheckpoint:
        """The checkpoint with the next round's clip in its small state. ``small``: that of its parent; ``within``: the
        part of its updates within the clip, by their noised bits; None: the clip does not adapt."""
        privacy = self._plan.privacy
        after = {} if privacy is None else privacy.after(small or {}, within)
        return made._replace(small={**made.small, **after}) if after else made

    def _clip(self, small: Small | None) -> float:
        """That of a round which begins with this small state; 0: the plan's clip does not adapt."""
        privacy = self._plan.privacy
        return 0.0 if privacy is None or privacy.adapt is None else privacy.clip_after(small or {})

    @property
    def needs_sum(self) -> bool:
        """Whether what makes the next checkpoint needs the sum of the updates alone."""
        return self._combine.needs == "sum"

    def _means(self, groups: Sequence[Blocks], mean: Blocks) -> Updates:
        """Each mean as one update of weight 1."""
        width = max(256, _COLUMNS // len(groups))

        def read(places: Sequence[int]) -> Iterator[Vector]:
            for tensor in self.layout.whole.slices().values():
                for start in range(tensor.start, tensor.stop, width):
                    count = min(width, tensor.stop - start)
                    yield np.stack([groups[place].read(start, count) for place in places])

        weights = np.ones(len(groups), np.int64)
        return Updates(read, weights, lambda: mean, self.layout.whole, self.layout.parameters.elements)

    def _updates(self, round: int, items: tuple[Contribution, ...]) -> Updates:
        rows = sorted(items, key=lambda item: item.device)

        def mean() -> Blocks:
            total = self._sums.total(round, items)
            return Computed(lambda start, count: total.mean_block(start, start + count))

        updates = Updates(
            lambda places: self._sums.columns(tuple(rows[place] for place in places)),
            np.array([item.weight for item in rows], np.int64),
            mean,
            self.layout.whole,
            self.layout.parameters.elements,
        )
        updates.reports = [{**item.metrics, "steps": item.steps} for item in rows]
        return updates

    # ------------------------------------------------------------ the checkpoint

    def _write(
        self,
        round: int,
        parent: str,
        named_tensors: NamedTensors | None,
        small: Small | None,
        settings: Settings | None,
        sources: Sources,
        updates: str,
    ) -> NewCheckpoint:
        before, label = named_tensors or {}, f"{self._run} {round}"
        seed = shake_bytes(labelled("combine", self._plan.digest, round), 32)
        places, raised, bits = self.layout.whole.slices(), 0, self._plan.aggregation.step_bits
        firsts = self._combine.keeps
        with ExitStack() as stack:
            file = stack.enter_context(self._blobs.open(parent))
            header = read_header(file)
            parameters = {name: spec for name, spec in header.manifest.items() if name in self.layout.parameters}
            kept = {
                name: stack.enter_context(
                    carried(self._blobs, before.get(name), name, parameters, places, first, label)
                )
                for name, first in firsts.items()
            }
            spool = stack.enter_context(self._blobs.spool())
            source = HashedReads(file)
            spool.write(source.read(header.data_start))
            tensors = {name: one.before for name, one in kept.items()}
            numbers, stored = settings or self._plan.settings_at(0), StoredBlocks(source, header, places)
            made = self._combine.combine(stored, sources, tensors, small or {}, numbers, seed)
            kept_small = _as_json(made.small)
            for name, spec in header.manifest.items():
                if name not in places:
                    for chunk in _chunks(source, spec.nbytes):
                        spool.write(chunk)
                    continue
                for start in range(0, spec.elements, BLOCK):
                    at, count = places[name].start + start, min(BLOCK, spec.elements - start)
                    with np.errstate(over="ignore", invalid="ignore"):
                        following = _made(made.model, at, count)
                        if bits is not None and name in parameters and spec.dtype == "F32":
                            following = coarse(stored.read(at, count), following, bits, seed, at)
                    if not np.isfinite(following).all():
                        raise NotFinite(f"the next checkpoint would hold values in {name} that are not finite")
                    if name in parameters:
                        for key, one in kept.items():
                            one.after.write(name, _made(made.tensors[key], at, count, firsts[key]))
                    elif name in self.layout.non_negative:
                        raised += int(np.count_nonzero(following < -_ROUNDING))
                        following = np.where(following < 0, np.float32(0), following)
                    spool.write(narrow(following, spec.dtype).tobytes())
            read = {name: one.read.digest for name, one in kept.items() if one.read is not None}
            evidence = Evidence(parent=source.digest, named_tensors=read, updates=updates)
            digest, after = spool.commit(), {name: one.after.commit() for name, one in kept.items()}
            return NewCheckpoint(
                digest,
                spool.size,
                after,
                kept_small,
                getattr(made.model, "zero_sum", False) and self._plan.privacy is None,
                raised,
                evidence,
            )


def _made(blocks: Blocks, start: int, count: int, first: Sequence[float] | None = None) -> Float32:
    """A block of what the plan's algorithm makes. ExtensionError where it fails, or is none: packages bring some, and a
    block of another length would become a file that is no checkpoint. ``first``: of named tensors, a value a column."""
    try:
        found = blocks.read(start, count)
    except (BlobError, OSError, TensorError, ExtensionError, MemoryError):
        raise
    except Exception as error:
        raise ExtensionError(f"the strategy of the plan failed: {type(error).__name__}: {error}") from error
    shape = (count,) if first is None else (count, len(first))
    if isinstance(found, np.ndarray) and found.dtype == np.float32 and found.shape == shape:
        return found
    gives = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
    raise ExtensionError(f"the strategy of the plan gives {gives} for a block of float32 {list(shape)}")


def _as_json(small: Small) -> Small:
    """A small state as the log gives it back. ExtensionError where it is no JSON, or too large."""
    try:
        text = canonical(dict(small))
    except (TypeError, ValueError) as error:
        raise ExtensionError(f"the small state is no JSON: {error}") from None
    if len(text) > MOST_SMALL:
        raise ExtensionError(f"the small state has {len(text):,} bytes, more than {MOST_SMALL:,}")
    found: Small = json.loads(text)
    return found


def _chunks(source: HashedReads, size: int) -> Iterator[bytes]:
    while size:
        chunk = source.read(min(size, 4 * BLOCK))
        if not chunk:
            raise BlobError("the checkpoint ends before its header says")
        size -= len(chunk)
        yield chunk


def coarse(before: Float32, after: Float32, bits: int, seed: bytes, place: int) -> Float32:
    """The block ``after``, whose steps from ``before`` have so many bits, with their signs: a round's step in few bits
    makes the difference of two checkpoints short (``client_sdk.tensors.checkpoint_delta``).

    With x a value's step and s the block's power of two, the multiple is n = floor(x / s + u), u uniform on [0, 1): its
    expectation is x / s, so that of n s is x. s is the least power of two for which all |x| are below 2^(bits - 1) s.
    The step of the next round begins at the model as it was committed, so errors do not add up: a model is off by the
    rounding of its last steps, as by the noise of a batch.

    ``place``: where the block begins, which draws apart. The operations are of single values, so the bits are the same
    on every machine."""
    step = after.astype(np.float64) - before
    largest = float(np.abs(step).max(initial=0.0))
    if not 0 < largest < np.inf:
        return after
    exponent = int(np.frexp(largest)[1]) - (bits - 1)
    key = np.frombuffer(shake_bytes(labelled("coarse step", seed.hex(), place), 16), "<u8").astype(np.uint64)
    whole = np.floor(np.ldexp(step, -exponent) + uniform(np.random.Philox(key=key), step.size))
    found: Float32 = (before + np.ldexp(whole, exponent)).astype(np.float32)
    return found
