"""A pool of worker processes, each with a partial sum of its own: the bits of the serial engine, on all cores.

Workers are forked, so they have learners, data and lambdas without pickling. Messages are JSON; the model of a round is
written once, to memory that all workers read, and each worker's sum is in memory that this process reads. The next free
worker gets the next client, the longest first.

A learner that draws from an unseeded generator of its own draws the same numbers in each worker: they are forks of one
process. Global generators are seeded by client and round.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol.devices import Score, UpdateReport
from client_sdk.tensors import Manifest, ManifestMismatch, Tensors
from client_sdk.tensors.exact_sum import ExactSum, SumError
from coordinator.engine.treatment import Treated
from simulation.engines.frames import Channel
from simulation.engines.kernel import Kernel
from simulation.engines.memory import SharedTensors, VectorFile, columns, shared_lanes
from simulation.engines.port import CannotTrain, Done, Job, Meanwhile, Result, nothing
from simulation.engines.process_pool import Answer, ProcessPool
from simulation.engines.worker import EngineWorker, SharedState
from simulation.errors import SimulationError

_JOB = tuple(found.name for found in fields(Job))


class ProcessEngine:
    """See ``Engine``. Workers are started with the first model and live until ``close``."""

    def __init__(self, kernel: Kernel, workers: int | None = None) -> None:
        """``workers``: how many processes; None: one for each core that this process may use, but not more than
        a round has clients."""
        self._kernel = kernel
        self._size = workers if workers is not None else min(_cores(), kernel.plan.cohort.goal)
        self._pool: ProcessPool | None = None
        self._needs_all = kernel.needs_all
        self._shared: list[SharedState] = []
        self._tasks: dict[Job, int] = {}
        self._closed = False

    def begin(self, round: int, model: Tensors) -> None:
        pool = self._started(model)
        pool.settle()
        pool.forget()
        self._tasks.clear()
        self._shared[0].model.write(model)
        for number, shared in enumerate(self._shared):
            if shared.vectors is not None:
                shared.vectors.clear()
            pool.send(number, {"do": "begin"})

    def submit(self, jobs: Sequence[Job]) -> None:
        pool = self._begun()
        for job in jobs:
            if job not in self._tasks:
                self._tasks[job] = self._put(pool, job)
        pool.start()

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        pool = self._begun()
        if job not in self._tasks:
            self._tasks[job] = self._put(pool, job, now=True)
        if not pool.has(self._tasks[job]):
            meanwhile()
        return _result(pool.answer(self._tasks[job]))

    def total(self, weights: Mapping[str, int]) -> ExactSum:
        pool = self._begun()
        self._settle(pool)
        parts = self._parts(pool, weights)
        if self._needs_all:
            return ExactSum(0)
        total = ExactSum.of(self._kernel.layout.whole)
        for number, part in enumerate(parts):
            pool.send(number, {"do": "restrict", "weights": part})
        body = [pool.receive(number) for number in range(len(parts))]
        for answer, part, shared in zip(body, parts, self._shared, strict=True):
            if "refused" in answer:
                raise SumError(answer["refused"])
            if answer["weights"] != part:
                raise ManifestMismatch("an update that counts could not be made a second time")
            if part:
                total.merge(ExactSum.on(shared.lanes, answer["state"], total.ends))
        return total

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        if not self._needs_all:
            raise ManifestMismatch("the plan's rule adds updates up: none of them is stored")
        found: dict[str, tuple[VectorFile, int]] = {}
        for job, answer in self._answers(self._begun()):
            vectors = self._shared[answer.worker].vectors
            if vectors is not None and "slot" in answer.body:
                found.setdefault(job.device, (vectors, answer.body["slot"]))
        missing = next((device for device in devices if device not in found), None)
        if missing is not None:
            raise ManifestMismatch(f"the update of {missing!r} was never trained here")
        return columns(self._kernel.layout.elements, [found[device] for device in devices])

    def score(self, model: Tensors, devices: Sequence[str]) -> list[Score | None]:
        pool = self._started(model)
        self._settle(pool)
        self._shared[0].scored.write(model)
        tasks = [pool.put({"do": "score", "device": device}, f"scored client {device!r}") for device in devices]
        return [_score(pool.answer(task)) for task in tasks]

    def close(self) -> None:
        self._closed = True
        if self._pool is not None:
            self._pool.close()
        for shared in self._shared:
            if shared.vectors is not None:
                shared.vectors.close()
        self._shared = []

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [] if self._pool is None else self._pool.pids

    # ------------------------------------------------------------ inside

    def _started(self, model: Tensors) -> ProcessPool:
        """Returns the workers, forked when the first model is known: its memory must exist before."""
        if self._closed:
            raise SimulationError("the engine was closed")
        if self._pool is None:
            manifest, elements = Manifest.of(model), self._kernel.layout.elements
            one, other = SharedTensors(manifest), SharedTensors(manifest)
            self._shared = [
                SharedState(
                    model=one,
                    scored=other,
                    lanes=shared_lanes(0 if self._needs_all else elements),
                    vectors=VectorFile(elements) if self._needs_all else None,
                )
                for _ in range(self._size)
            ]
            self._pool = ProcessPool(self._size, self._serve)
        return self._pool

    def _serve(self, number: int, channel: Channel) -> None:
        EngineWorker(self._kernel, self._shared[number], channel).serve()

    def _begun(self) -> ProcessPool:
        if self._pool is None:
            raise SimulationError("no round has begun")
        return self._pool

    def _put(self, pool: ProcessPool, job: Job, *, now: bool = False) -> int:
        what = f"trained client {job.device!r} in round {job.round}"
        return pool.put(
            {"do": "train", "job": {name: getattr(job, name) for name in _JOB}}, what, cost=job.cost, now=now
        )

    def _settle(self, pool: ProcessPool) -> None:
        """Waits for tasks under way; tasks that no worker has begun are as if they had not been submitted."""
        dropped = pool.settle()
        self._tasks = {job: task for job, task in self._tasks.items() if task not in dropped}

    def _answers(self, pool: ProcessPool) -> Iterator[tuple[Job, Answer]]:
        """Yields what has been trained in this round so far, in that order."""
        numbers = {task: job for job, task in self._tasks.items()}
        for task, answer in pool.answers.items():
            if task in numbers and "report" in answer.body:
                yield numbers[task], answer

    def _parts(self, pool: ProcessPool, weights: Mapping[str, int]) -> list[dict[str, int]]:
        """Returns each worker's part of ``weights``: the devices whose updates it has. Each device counts once.

        ManifestMismatch for one that no worker has.
        """
        parts: list[dict[str, int]] = [{} for _ in range(len(pool))]
        left = dict(weights)
        for job, answer in self._answers(pool):
            if left.get(job.device) == answer.body["weight"]:
                parts[answer.worker][job.device] = left.pop(job.device)
        if left:
            raise ManifestMismatch("an update that counts was never trained here")
        return parts


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _result(answer: Answer) -> Result:
    body = answer.body
    if "report" in body:
        report = UpdateReport.model_validate_json(body["report"])
        return Done(report=report, weight=body["weight"], treated=Treated(**body["treated"]), digest=body["digest"])
    return CannotTrain(reason=body["reason"], trace=body["trace"], bad_values=body["bad_values"])


def _score(answer: Answer) -> Score | None:
    body = answer.body
    if "raised" in body:
        raise SimulationError(body["raised"])
    return None if body["score"] is None else Score.model_validate_json(body["score"])
