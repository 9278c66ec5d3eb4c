"""The running sum of a round, from updates that are stored as blobs.

It is folded as updates arrive. It exists in this process only, with the list of contributions that it contains: after a
crash, or on another replica, missing updates are folded again from the stored updates, to the same bits. Memory: one
exact sum (the size of two models, of up to six where updates have tiny tensors), whatever the number of devices.

``Sums`` is the port: a simulation, whose updates never become files, has another implementation. The caller makes sure
that one thread at a time uses it.

In a simulation updates stay in the engine that trained them: what travels is the report, and each engine adds to a
partial sum, since writing, hashing and reading a body costs a millisecond for 200,000 parameters. The exact sum has no
grouping, so the bits are those of deployment (a test compares the digests). Such a run has no raw updates: nothing is
retained, and ``verify`` cannot refold its rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.tensors import Layout, read_header
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.blobs import Blobs
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan
from coordinator.folding.validation import Bounds, Measures, measure

Vector = NDArray[np.float32]
_COLUMNS = 1 << 20
"""Elements of a block of columns, over all updates together: 4 MiB."""


class Sums(Protocol):
    """Sums and columns of the updates of one run's rounds. TensorError where updates cannot be added."""

    def remember(self, digest: str, measures: Measures) -> None:
        """Caches the measures of a validated update, so that folding does not measure it again."""

    def fold(self, round: int, item: Contribution) -> None:
        """Adds one update to the round's running sum, once; does nothing for a round that has ended."""

    def total(self, round: int, items: tuple[Contribution, ...]) -> ExactSum:
        """Returns the exact sum of exactly these updates."""

    def columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        """All these updates at once, by blocks of columns: [updates, width], a row for each item, clipped as for a
        sum."""

    def forget(self, round: int) -> None:
        """Frees the memory of rounds up to this one."""


@dataclass(slots=True)
class _RoundSum:
    round: int
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

    def fold(self, round: int, item: Contribution) -> None:
        if self._current is not None and self._current.round > round:
            return
        current = self._sum_of(round)
        if item.device not in current.folded:
            self._add(current, item)

    def forget(self, round: int) -> None:
        if self._current is not None and self._current.round <= round:
            self._current = None
        self._measures.clear()

    def total(self, round: int, items: tuple[Contribution, ...]) -> ExactSum:
        """Completes the running sum where it is a subset of ``items``; otherwise folds all again."""
        wanted = {item.device: item for item in items}
        current = self._sum_of(round)
        if any(wanted.get(device) != item for device, item in current.folded.items()):
            self._current = None
            current = self._sum_of(round)
        for item in items:
            if item.device not in current.folded:
                self._add(current, item)
        return current.total

    def columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        width = max(256, _COLUMNS // len(items))
        rows = [self._blocks(item, self._measured(item).scale, width) for item in items]
        for row in zip(*rows, strict=True):
            yield np.stack(row)

    # ------------------------------------------------------------ inside

    def _sum_of(self, round: int) -> _RoundSum:
        if self._current is None or self._current.round != round:
            self._current = _RoundSum(round, ExactSum.of(self._layout.whole))
        return self._current

    def _add(self, current: _RoundSum, item: Contribution) -> None:
        measures = self._measured(item)
        try:
            current.total.add_blocks(self._blocks(item, measures.scale), item.weight, measures.peak)
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

    def _blocks(self, item: Contribution, factor: float | None, width: int = codecs.BLOCK) -> Iterator[Vector]:
        with self._blobs.open(item.digest) as file:
            yield from self._bounds.applied(self._codec.blocks(file, read_header(file), block=width), factor)
