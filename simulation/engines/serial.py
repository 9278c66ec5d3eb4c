"""One client after another, in this process and thread: the reference for every other engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol.devices import Score
from client_sdk.tensors import ManifestMismatch, TensorError, Tensors
from client_sdk.tensors.exact_sum import ExactSum
from simulation.engines.kernel import Contributed, Kernel
from simulation.engines.port import CannotTrain, Job, Meanwhile, Result, nothing
from simulation.errors import SimulationError, not_scored

# ------------------------------------------------------------ the part of a round that one thread trains
# The part of a round that one thread trains: its running sum, and the devices in it.
#
# The serial engine has one of these; a pool has one in each worker.


_COLUMNS = 1 << 20
"""Elements of a block of columns, over all updates together: 4 MiB."""


class Partial:
    """``work`` trains a client and adds its update. Memory: one exact sum; where the plan's rule needs all updates at
    once, the updates too."""

    def __init__(self, kernel: Kernel, lanes: NDArray[np.int64] | None = None) -> None:
        """``lanes``: the memory of the sum (int64 [elements], zeros); None: memory of its own."""
        self.kernel = kernel
        self._lanes = lanes
        self._needs_all = kernel.needs_all
        self._model: Tensors = {}
        self._jobs: dict[str, Job] = {}
        self._stored: dict[str, Contributed] = {}
        self.weights: dict[str, int] = {}
        """Device -> weight of the updates in the sum."""
        self.sum = self._empty()

    def begin(self, model: Tensors) -> None:
        """The next round, from this model."""
        self._model = model
        self._jobs.clear()
        self._stored.clear()
        self.weights = {}
        self.sum = self._empty()

    def work(self, job: Job) -> Result:
        """Trains the client. Its update is in the sum once, however often this is called."""
        return self._taken(job, self.kernel.train(self._model, job))

    def work_stack(self, jobs: Sequence[Job]) -> list[Result]:
        """``work`` for each of these clients, which are of one stack."""
        found = self.kernel.train_stack(self._model, jobs)
        return [self._taken(job, one) for job, one in zip(jobs, found, strict=True)]

    def _taken(self, job: Job, found: Contributed | CannotTrain) -> Result:
        if isinstance(found, CannotTrain):
            return found
        self._jobs[job.device] = job
        if job.device not in self.weights:
            try:
                self._add(job.device, found)
            except TensorError as error:
                return CannotTrain(reason=f"The update cannot be counted: {error}.", bad_values=True)
        return found.done

    def restrict(self, weights: Mapping[str, int]) -> None:
        """Removes all other devices from the sum. Where there are others, these devices are trained again: this is
        rare, since the devices that count are known before training."""
        if self.weights.items() <= weights.items():
            return
        jobs = [job for device, job in self._jobs.items() if self.weights.get(device) == weights.get(device, -1)]
        self.begin(self._model)
        for stack in by_stack(jobs):
            self.work_stack(stack) if stack[0].stack else self.work(stack[0])

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """See ``Engine.columns``; of updates that are stored here."""
        if not self._needs_all:
            raise ManifestMismatch("the plan's rule adds updates up: none of them is stored")
        width = max(256, _COLUMNS // max(1, len(devices)))
        for row in zip(*(self._stored[device].blocks(width) for device in devices), strict=True):
            yield np.stack(row)

    def take(self, device: str) -> Iterator[NDArray[np.float32]]:
        """Removes a stored update and returns its blocks."""
        return self._stored.pop(device).blocks()

    def _add(self, device: str, found: Contributed) -> None:
        if self._needs_all:
            self._stored[device] = found
        else:
            self.sum.add_blocks(found.blocks(), found.done.weight, found.measures.peak)
        self.weights[device] = found.done.weight

    def _empty(self) -> ExactSum:
        return ExactSum(0, self._lanes) if self._needs_all else self.kernel.empty_sum(self._lanes)


def by_stack(jobs: Iterable[Job]) -> list[list[Job]]:
    """The jobs of each stack together; each other job alone."""
    found: dict[object, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.stack or job, []).append(job)
    return list(found.values())


# ------------------------------------------------------------ the engine


class SerialEngine:
    """See ``Engine``. A job is trained when its result, or that of another in its stack, is requested."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._partial = Partial(kernel)
        self._stacks: dict[Job, list[Job]] = {}
        self._results: dict[Job, Result] = {}

    def begin(self, round: int, model: Tensors) -> None:
        self._stacks.clear()
        self._results.clear()
        self._partial.begin(model)

    def submit(self, jobs: Sequence[Job]) -> None:
        self._stacks |= {job: stack for stack in by_stack(jobs) if stack[0].stack for job in stack}

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        if job not in self._stacks:
            return self._partial.work(job)
        if job not in self._results:
            stack = self._stacks[job]
            self._results |= zip(stack, self._partial.work_stack(stack), strict=True)
        return self._results[job]

    def total(self, weights: Mapping[str, int]) -> ExactSum:
        self._partial.restrict(weights)
        if self._partial.weights != dict(weights):
            raise ManifestMismatch("an update that counts was never trained here")
        return self._partial.sum

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        return self._partial.columns(devices)

    def score(self, model: Tensors, devices: Sequence[str]) -> list[Score | None]:
        return [self._score(model, device) for device in devices]

    def close(self) -> None:
        pass

    def _score(self, model: Tensors, device: str) -> Score | None:
        try:
            return self._kernel.score(model, device)
        except Exception as error:
            raise SimulationError(not_scored(f"client {device!r}", error)) from error
