"""The coordinator's ``Sums``, over updates that stay in an engine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from client_sdk.tensors import Manifest
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.blobs import Blobs
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan
from coordinator.folding.aggregator import MakeSums
from coordinator.folding.validation import Measures
from simulation.engines.port import Engine


class EngineSums:
    """Nothing to fold: an engine adds an update up when it has trained it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def remember(self, digest: str, measures: Measures) -> None:
        pass

    def fold(self, round: int, item: Contribution) -> None:
        pass

    def total(self, round: int, items: tuple[Contribution, ...]) -> ExactSum:
        return self._engine.total({item.device: item.weight for item in items})

    def columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        return self._engine.columns([item.device for item in items])

    def forget(self, round: int) -> None:
        pass


def sums_of(engine: Engine) -> MakeSums:
    """What a coordinator is given to make its sums with."""

    def make(engine: Engine, blobs: Blobs, plan: Plan, delta: Manifest) -> EngineSums:
        return EngineSums(engine)

    return partial(make, engine)
