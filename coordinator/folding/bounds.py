"""How the values of an update are bounded before they are added: the parameters are scaled together, to a norm, and
each value of a statistic is cut to the range of its tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from client_sdk.tensors import Float32, Layout, Manifest, scaled
from client_sdk.tensors.manifest import shown
from coordinator.engine.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Of the updates of one run. Blocks are those of the flat vector, in its order (``tensors.roles``); a block may lie
    across the place where the statistics begin."""

    parameters: int
    """Values of the vector that are of parameters: they come first."""
    ranges: Float32 | None
    """The largest magnitude of each value of a statistic; None where statistics are not bounded."""
    whole: Manifest | None = None
    """The tensors of the vector, in its order, for errors."""

    @classmethod
    def of(cls, plan: Plan, layout: Layout) -> Bounds:
        """The bounds of a plan. Under masks the coordinator sees no update: there the devices bound them."""
        found = [plan.aggregation.range_of(name) for name in layout.statistics]
        bounded = plan.secure is None and any(one is not None for one in found)
        sizes = [spec.elements for spec in layout.statistics.values()]
        limits = [np.inf if one is None else one for one in found]
        ranges = np.repeat(np.array(limits, np.float32), sizes) if bounded else None
        return cls(layout.parameters.elements, ranges, layout.whole)

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

    def applied(self, blocks: Iterable[Float32], scale: float | None) -> Iterator[Float32]:
        """The values as they are added. ``scale``: of the parameters; None: as they are."""
        for at, block in self._parts(blocks):
            if at >= self.parameters:
                yield self._cut(at, block)
            else:
                yield block if scale is None else scaled(block, scale)

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
