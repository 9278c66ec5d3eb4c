"""One client after another, in this process and thread: the reference for every other engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol.devices import Score
from client_sdk.tensors import ManifestMismatch, Tensors
from client_sdk.tensors.exact_sum import ExactSum
from simulation.engines.kernel import Kernel
from simulation.engines.partial import Partial
from simulation.engines.port import Job, Meanwhile, Result, nothing
from simulation.errors import SimulationError, not_scored


class SerialEngine:
    """See ``Engine``. A job is trained when its result is requested, so none is trained in vain."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._partial = Partial(kernel)

    def begin(self, round: int, model: Tensors) -> None:
        self._partial.begin(model)

    def submit(self, jobs: Sequence[Job]) -> None:
        pass

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        return self._partial.work(job)

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
