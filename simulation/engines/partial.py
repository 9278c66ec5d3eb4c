"""The part of a round that one thread trains: its running sum, and which devices are in it.

The serial engine is one of these; a pool has one in each worker. This file has never heard of processes or sessions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from client_sdk.tensors import ManifestMismatch, TensorError, Tensors
from client_sdk.tensors.exact_sum import ExactSum
from simulation.engines.kernel import Contributed, Kernel
from simulation.engines.port import CannotTrain, Job, Result

_COLUMNS = 1 << 20
"""Elements that a block of columns holds, over all updates together: 4 MiB."""


class Partial:
    """``work`` trains a client and adds its update. Memory: one exact sum; where the plan's rule needs all updates at
    once, the updates too."""

    def __init__(self, kernel: Kernel, lanes: NDArray[np.int64] | None = None) -> None:
        """``lanes``: where the sum is kept (int64 [elements], zeros); None: in memory of its own."""
        self.kernel = kernel
        self._lanes = lanes
        self._needs_all = kernel.needs_all
        self._model: Tensors = {}
        self._jobs: dict[str, Job] = {}
        self._kept: dict[str, Contributed] = {}
        self.weights: dict[str, int] = {}
        """Device -> weight of the updates in the sum."""
        self.sum = self._empty()

    def begin(self, model: Tensors) -> None:
        """The next round, from this model."""
        self._model = model
        self._jobs.clear()
        self._kept.clear()
        self.weights = {}
        self.sum = self._empty()

    def work(self, job: Job) -> Result:
        """Trains the client. Its update is in the sum, once, however often it is asked for."""
        found = self.kernel.train(self._model, job)
        if isinstance(found, CannotTrain):
            return found
        self._jobs[job.device] = job
        if job.device not in self.weights:
            try:
                self._add(job.device, found)
            except TensorError as error:
                return CannotTrain(reason=f"The update cannot be counted: {error}.")
        return found.done

    def restrict(self, weights: Mapping[str, int]) -> None:
        """Leaves just these devices in the sum, of those that are in it. Where there are others all are trained again:
        rare, since who counts is known before anyone trains."""
        if self.weights.items() <= weights.items():
            return
        jobs = [job for device, job in self._jobs.items() if self.weights.get(device) == weights.get(device, -1)]
        self.begin(self._model)
        for job in jobs:
            self.work(job)

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """See ``Engine.columns``; of updates that are kept here."""
        if not self._needs_all:
            raise ManifestMismatch("the plan's rule adds updates up: none of them is kept")
        width = max(256, _COLUMNS // max(1, len(devices)))
        for row in zip(*(self._kept[device].blocks(width) for device in devices), strict=True):
            yield np.stack(row)

    def take(self, device: str) -> Iterator[NDArray[np.float32]]:
        """The blocks of an update that is kept; from here on it is the caller's to keep."""
        return self._kept.pop(device).blocks()

    def _add(self, device: str, found: Contributed) -> None:
        if self._needs_all:
            self._kept[device] = found
        else:
            self.sum.add_blocks(found.blocks(), found.done.weight, found.measures.peak)
        self.weights[device] = found.done.weight

    def _empty(self) -> ExactSum:
        return ExactSum(0 if self._needs_all else self.kernel.delta.elements, self._lanes)
