"""A pool of worker processes, each with a partial sum of its own: the bits of the serial engine, on all cores.

Workers are forked, so learners, data and lambdas are simply there. What goes to and fro is JSON; the model of a round
is written once, to memory that all workers read, and each worker's sum lies in memory that this process reads. Clients
go to whoever gets free, the longest first. This file has never heard of sessions, time or how a client is trained.

A learner that draws from a generator of its own, seeded by nobody, draws the same numbers in each worker: they are
forks of one process. Quorate's ``Learner`` seeds what it draws by client and round.
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
from simulation.engines.frames import Channel
from simulation.engines.kernel import Kernel
from simulation.engines.memory import SharedTensors, Shelf, columns, shared_lanes
from simulation.engines.port import Done, Job, JobFailed, Meanwhile, Result, nothing
from simulation.engines.process_pool import Answer, ProcessPool
from simulation.engines.worker import EngineWorker, SharedState
from simulation.errors import SimulationError

_JOB = tuple(found.name for found in fields(Job))


class ProcessEngine:
    """See ``Engine``. Workers are started with the first model and live until ``close``."""

    def __init__(self, kernel: Kernel, workers: int | None = None) -> None:
        """``workers``: how many processes; None: one for each core that this process may use, as far as a round has
        clients for them."""
        self._kernel = kernel
        self._size = workers if workers is not None else min(_cores(), kernel.plan.cohort.goal)
        self._needs_all = kernel.needs_all
        self._crew: ProcessPool | None = None
        self._shared: list[SharedState] = []
        self._tasks: dict[Job, int] = {}
        self._closed = False

    def begin(self, round: int, model: Tensors) -> None:
        crew = self._started(model)
        crew.settle()
        crew.forget()
        self._tasks.clear()
        self._shared[0].model.write(model)
        for number, shared in enumerate(self._shared):
            if shared.shelf is not None:
                shared.shelf.clear()
            crew.tell(number, {"do": "begin"})

    def submit(self, jobs: Sequence[Job]) -> None:
        crew = self._begun()
        for job in jobs:
            if job not in self._tasks:
                self._tasks[job] = self._put(crew, job)
        crew.start()

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        crew = self._begun()
        if job not in self._tasks:
            self._tasks[job] = self._put(crew, job, now=True)
        if not crew.has(self._tasks[job]):
            meanwhile()
        return _result(crew.answer(self._tasks[job]))

    def total(self, weights: Mapping[str, int]) -> ExactSum:
        crew = self._begun()
        self._settle(crew)
        parts = self._parts(crew, weights)
        if self._needs_all:
            return ExactSum(0)
        total = ExactSum(self._kernel.delta.elements)
        for number, part in enumerate(parts):
            crew.tell(number, {"do": "restrict", "weights": part})
        said = [crew.heard(number) for number in range(len(parts))]
        for answer, part, shared in zip(said, parts, self._shared, strict=True):
            if "refused" in answer:
                raise SumError(answer["refused"])
            if answer["weights"] != part:
                raise ManifestMismatch("an update that counts could not be made a second time")
            if part:
                count, weight, magnitude = answer["state"]
                total.merge(ExactSum.on(shared.lanes, (count, weight, magnitude)))
        return total

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        if not self._needs_all:
            raise ManifestMismatch("the plan's rule adds updates up: none of them is kept")
        found: dict[str, tuple[Shelf, int]] = {}
        for job, answer in self._answers(self._begun()):
            shelf = self._shared[answer.worker].shelf
            if shelf is not None and "slot" in answer.said:
                found.setdefault(job.device, (shelf, answer.said["slot"]))
        missing = next((device for device in devices if device not in found), None)
        if missing is not None:
            raise ManifestMismatch(f"the update of {missing!r} was never trained here")
        return columns(self._kernel.delta.elements, [found[device] for device in devices])

    def score(self, model: Tensors, devices: Sequence[str]) -> list[Score | None]:
        crew = self._started(model)
        self._settle(crew)
        self._shared[0].scored.write(model)
        tasks = [crew.put({"do": "score", "device": device}, f"scored client {device!r}") for device in devices]
        return [_score(crew.answer(task)) for task in tasks]

    def close(self) -> None:
        self._closed = True
        if self._crew is not None:
            self._crew.close()
        for shared in self._shared:
            if shared.shelf is not None:
                shared.shelf.close()
        self._shared = []

    @property
    def pids(self) -> list[int]:
        """Of the workers that are there."""
        return [] if self._crew is None else self._crew.pids

    # ------------------------------------------------------------ inside

    def _started(self, model: Tensors) -> ProcessPool:
        """The workers, forked when the first model is known: memory for it must be there before."""
        if self._closed:
            raise SimulationError("the engine was closed")
        if self._crew is None:
            manifest, elements = Manifest.of(model), self._kernel.delta.elements
            one, other = SharedTensors(manifest), SharedTensors(manifest)
            self._shared = [
                SharedState(
                    model=one,
                    scored=other,
                    lanes=shared_lanes(0 if self._needs_all else elements),
                    shelf=Shelf(elements) if self._needs_all else None,
                )
                for _ in range(self._size)
            ]
            self._crew = ProcessPool(self._size, self._serve)
        return self._crew

    def _serve(self, number: int, channel: Channel) -> None:
        EngineWorker(self._kernel, self._shared[number], channel).serve()

    def _begun(self) -> ProcessPool:
        if self._crew is None:
            raise SimulationError("no round has begun")
        return self._crew

    def _put(self, crew: ProcessPool, job: Job, *, now: bool = False) -> int:
        what = f"trained client {job.device!r} in round {job.round}"
        return crew.put(
            {"do": "train", "job": {name: getattr(job, name) for name in _JOB}}, what, cost=job.cost, now=now
        )

    def _settle(self, crew: ProcessPool) -> None:
        """Whoever trains has finished; what nobody has begun is as if it had never been submitted."""
        dropped = crew.settle()
        self._tasks = {job: task for job, task in self._tasks.items() if task not in dropped}

    def _answers(self, crew: ProcessPool) -> Iterator[tuple[Job, Answer]]:
        """What has been trained in this round so far, in the order in which it was."""
        numbers = {task: job for job, task in self._tasks.items()}
        for task, answer in crew.answers.items():
            if task in numbers and "report" in answer.said:
                yield numbers[task], answer

    def _parts(self, crew: ProcessPool, weights: Mapping[str, int]) -> list[dict[str, int]]:
        """Each worker's part of ``weights``: the devices whose updates it holds. Each device counts once.

        ManifestMismatch for one that no worker holds.
        """
        parts: list[dict[str, int]] = [{} for _ in range(len(crew))]
        left = dict(weights)
        for job, answer in self._answers(crew):
            if left.get(job.device) == answer.said["weight"]:
                parts[answer.worker][job.device] = left.pop(job.device)
        if left:
            raise ManifestMismatch("an update that counts was never trained here")
        return parts


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _result(answer: Answer) -> Result:
    said = answer.said
    if "report" in said:
        return Done(report=UpdateReport.model_validate_json(said["report"]), weight=said["weight"])
    return JobFailed(reason=said["reason"], trace=said["trace"])


def _score(answer: Answer) -> Score | None:
    said = answer.said
    if "raised" in said:
        raise SimulationError(said["raised"])
    return None if said["score"] is None else Score.model_validate_json(said["score"])
