"""The running sum of a round, from the updates that lie as blobs.

Folded as updates arrive, it lives in this process only and carries the contributions that it contains: after a crash,
or on another replica, whatever is missing is folded again from the spooled updates, to the same bits. Memory: one exact
sum (two models' worth), whatever the number of devices.

``Sums`` is the port: a simulation, whose updates never become files, brings another. This file has never heard of
checkpoints, databases or deadlines. Whoever calls sees to it that one thread does at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.tensors import Manifest, read_header, scaled
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.blobs import Blobs
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan
from coordinator.folding.validation import Measures, measure

Vector = NDArray[np.float32]
_COLUMNS = 1 << 20
"""Elements that a block of columns holds, over all updates together: 4 MiB."""


class Sums(Protocol):
    """The updates of one run's rounds, by what is made of them. TensorError where they cannot be added."""

    def remember(self, digest: str, measures: Measures) -> None:
        """What the intake measured of an update, so that folding need not measure again."""

    def fold(self, round: int, item: Contribution) -> None:
        """Adds one update to the round's running sum; a second time, or for a round that is over, does nothing."""

    def total(self, round: int, items: tuple[Contribution, ...]) -> ExactSum:
        """The exact sum of just these updates."""

    def columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        """All these updates at once, by blocks of columns: [updates, width], a row for each item, clipped as for a
        sum."""

    def forget(self, round: int) -> None:
        """Frees what is kept for rounds up to this one."""


@dataclass(slots=True)
class _RoundSum:
    round: int
    total: ExactSum
    folded: dict[str, Contribution] = field(default_factory=dict)


class SpooledSums:
    """``Sums`` over the bodies that devices sent, each a blob. ``delta``: the manifest of an update, decoded."""

    def __init__(self, blobs: Blobs, plan: Plan, delta: Manifest) -> None:
        self._blobs = blobs
        self._plan = plan
        self._delta = delta
        self._codec = codecs.get(plan.task.codec)
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
        """The running sum where it is a subset of ``items``, completed; else all are folded afresh."""
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
            self._current = _RoundSum(round, ExactSum(self._delta.elements))
        return self._current

    def _add(self, current: _RoundSum, item: Contribution) -> None:
        measures = self._measured(item)
        try:
            current.total.add_blocks(self._blocks(item, measures.scale), item.weight, measures.peak)
        except BaseException:
            self._current = None  # the sum may hold part of this update: it is folded afresh
            raise
        current.folded[item.device] = item

    def _measured(self, item: Contribution) -> Measures:
        return self._measures.pop(item.digest, None) or measure(self._blobs.path(item.digest), self._plan)

    def _blocks(self, item: Contribution, factor: float | None, width: int = codecs.BLOCK) -> Iterator[Vector]:
        path = self._blobs.path(item.digest)
        blocks: Iterator[Vector] = self._codec.blocks(path, read_header(path), block=width)
        return blocks if factor is None else (scaled(block, factor) for block in blocks)
