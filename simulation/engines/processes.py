"""A pool of worker processes, each with a partial sum of its own: the bits of the serial engine, on all cores.

Workers are forked, so they have learners, data and lambdas without pickling. Messages are JSON; the model of a round is
written once, to memory that all workers read, and each worker's sum is in memory that this process reads. The next free
worker gets the next client, the longest first.

A learner that draws from an unseeded generator of its own draws the same numbers in each worker: they are forks of one
process. Global generators are seeded by client and round.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol.devices import Score, UpdateReport
from client_sdk.tensors import Manifest, ManifestMismatch, TensorError, Tensors
from client_sdk.tensors.exact_sum import ExactSum, SumError
from coordinator.engine.event_fields import Treated
from simulation.engines.kernel import Kernel
from simulation.engines.memory import SharedTensors, VectorFile, columns, shared_lanes
from simulation.engines.port import CannotTrain, Done, Job, Meanwhile, Result, nothing
from simulation.engines.process_pool import Channel, JsonObject, ProcessPool, flush_output
from simulation.engines.serial import Partial, by_stack
from simulation.errors import SimulationError, not_scored

# ------------------------------------------------------------ a worker
# One process of the engine ``processes``: it trains and scores clients, and holds the sum of its part.
#
# Messages and answers, one JSON object each:
#
# ======================== =============================================== ============================================
# message                  action                                          answer
# ======================== =============================================== ============================================
# do: tasks, tasks, each
# - task, do: train, jobs, trains these clients, of one stack or one       task, and results, of each: report, weight
#   stack                  alone; their updates are in the sum             (and slot), or reason and trace
# - task, do: score,       scores the model for scoring                    task, and score, or raised
#   device
# do: drop                 drops the tasks that it has not begun           task, dropped, for each of them
# do: begin                the next round, from the model in memory        nothing
# do: restrict, weights    keeps only these devices in the sum             state of the sum, or refused
# ======================== =============================================== ============================================
#
# Answers to tasks are collected for a moment and sent together, ``answers``: a short task is no reason to wake the
# reader.


_TOGETHER_S = 0.02
"""Seconds for which an answer may wait for others. All are sent before the last task in the queue begins, so that the
next tasks arrive while it runs."""


@dataclass(frozen=True, slots=True)
class SharedState:
    """The memory that a worker shares with its parent."""

    model: SharedTensors
    """The model of the round."""
    scored: SharedTensors
    """The model to be scored."""
    lanes: NDArray[np.int64]
    """The memory of the sum."""
    vectors: VectorFile | None
    """The files of updates, for rules that need all of them."""


class TaskWorker:
    """Trains and scores clients, and holds the sum of its part. Tasks and answers are those of the table above."""

    def __init__(self, kernel: Kernel, shared: SharedState) -> None:
        _one_thread()
        self._kernel = kernel
        self._shared = shared
        self._partial = Partial(kernel, shared.lanes)
        self._slots: dict[str, int] = {}

    def begin(self) -> None:
        """The next round, from the model in memory."""
        self._slots.clear()
        self._partial.begin(self._shared.model.view())

    def done(self, task: JsonObject) -> JsonObject:
        """Does a task and returns its answer."""
        answer = self._trained(task) if task["do"] == "train" else self._scored(task)
        flush_output()
        return {"task": task["task"], **answer}

    def restricted(self, weights: Mapping[str, int]) -> JsonObject:
        """Keeps only these devices in the sum."""
        try:
            self._partial.restrict(weights)
            return {"state": self._partial.sum.state, "weights": self._partial.weights}
        except TensorError as error:
            return {"refused": str(error)}

    def _trained(self, task: JsonObject) -> JsonObject:
        stack = tuple(task["stack"])
        jobs = [Job(**job, stack=stack) for job in task["jobs"]]
        results = self._partial.work_stack(jobs) if stack else [self._partial.work(jobs[0])]
        return {"results": [self._answer(job, result) for job, result in zip(jobs, results, strict=True)]}

    def _answer(self, job: Job, result: Result) -> JsonObject:
        if isinstance(result, CannotTrain):
            return {"reason": result.reason, "trace": result.trace, "bad_values": result.bad_values}
        answer: JsonObject = {
            "report": result.report.model_dump_json(),
            "weight": result.weight,
            "treated": asdict(result.treated),
            "digest": result.digest,
        }
        if self._shared.vectors is not None:
            if job.device not in self._slots:
                self._slots[job.device] = len(self._slots)
                self._shared.vectors.put(self._slots[job.device], self._partial.take(job.device))
            answer["slot"] = self._slots[job.device]
        return answer

    def _scored(self, task: JsonObject) -> JsonObject:
        try:
            score = self._kernel.score(self._shared.scored.view(), task["device"])
        except Exception as error:  # noqa: BLE001 - a user's learner may raise anything
            return {"raised": not_scored(f"client {task['device']!r}", error)}
        return {"score": None if score is None else score.model_dump_json()}


class EngineWorker:
    """``serve`` runs until the channel is closed."""

    def __init__(self, kernel: Kernel, shared: SharedState, channel: Channel) -> None:
        self._worker = TaskWorker(kernel, shared)
        self._channel = channel
        self._tasks: deque[JsonObject] = deque()
        self._answers: list[JsonObject] = []
        self._sent_at = 0.0

    def serve(self) -> None:
        """OSError where the parent has ended."""
        while True:
            while (message := self._next()) is not None:
                self._handle(message)
            if self._channel.ended:
                return
            task = self._tasks.popleft()
            if self._channel.at is not None:
                self._channel.at[0] = task["task"]
            self._answers.append(self._worker.done(task))

    def _next(self) -> JsonObject | None:
        """Returns the next message; waits for one only where there is no other work."""
        if len(self._tasks) < 2 or time.monotonic() - self._sent_at > _TOGETHER_S:
            self._flush()
        message = self._channel.arrived()
        if message is not None or self._tasks:
            return message
        return self._channel.receive()

    def _flush(self) -> None:
        if self._answers:
            self._channel.send({"answers": self._answers})
            self._answers = []
        self._sent_at = time.monotonic()

    def _handle(self, message: JsonObject) -> None:
        match message["do"]:
            case "tasks":
                self._tasks.extend(message["tasks"])
            case "drop":
                self._answers += [{"task": task["task"], "dropped": True} for task in self._tasks]
                self._tasks.clear()
            case "begin":
                self._worker.begin()
            case "restrict":
                self._channel.send(self._worker.restricted(message["weights"]))
            case unknown:
                raise AssertionError(f"the engine sent a message that its worker does not know: {unknown!r}")


def _one_thread() -> None:
    """One thread for numerical libraries, of this process: the others have the other cores. It also makes
    torch safe in a fork of a process that has used it: torch does not look for a thread pool that the fork lacks."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


# ------------------------------------------------------------ the engine


_JOB = tuple(found.name for found in fields(Job) if found.name != "stack")


def training(jobs: Sequence[Job]) -> JsonObject:
    """The task of jobs of one stack, or of one job."""
    bodies = [{name: getattr(job, name) for name in _JOB} for job in jobs]
    return {"do": "train", "jobs": bodies, "stack": jobs[0].stack}


def said(jobs: Sequence[Job]) -> str:
    """What the task of these jobs does, in the past tense."""
    return f"trained client {jobs[0].device!r} in round {jobs[0].round}"


class ProcessEngine:
    """See ``Engine``. Workers are started with the first model and live until ``close``."""

    def __init__(self, kernel: Kernel, workers: int | None = None) -> None:
        """``workers``: how many processes; None: one for each core that this process may use, but not more than
        a round has clients."""
        self._kernel = kernel
        self._size = workers if workers is not None else min(cores(), kernel.plan.cohort.goal)
        self._pool: ProcessPool | None = None
        self._needs_all = kernel.needs_all
        self._shared: list[SharedState] = []
        self._tasks: dict[Job, tuple[int, int]] = {}
        """Which task a job is of, and its place there."""
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
        for stack in by_stack(job for job in jobs if job not in self._tasks):
            self._put(pool, stack)
        pool.start()

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        pool = self._begun()
        if job not in self._tasks:
            self._put(pool, [job], now=True)
        task, place = self._tasks[job]
        if not pool.has(task):
            meanwhile()
        return result_of(pool.answer(task).body["results"][place])

    def total(self, weights: Mapping[str, int]) -> ExactSum:
        pool = self._begun()
        self._settle(pool)
        parts = self._parts(pool, weights)
        if self._needs_all:
            return ExactSum(0)
        total = self._kernel.empty_sum()
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
        for job, worker, body in self._answers(self._begun()):
            vectors = self._shared[worker].vectors
            if vectors is not None and "slot" in body:
                found.setdefault(job.device, (vectors, body["slot"]))
        missing = next((device for device in devices if device not in found), None)
        if missing is not None:
            raise ManifestMismatch(f"the update of {missing!r} was never trained here")
        return columns(self._kernel.layout.elements, [found[device] for device in devices])

    def score(self, model: Tensors, devices: Sequence[str]) -> list[Score | None]:
        pool = self._started(model)
        self._settle(pool)
        self._shared[0].scored.write(model)
        tasks = [pool.put({"do": "score", "device": device}, f"scored client {device!r}") for device in devices]
        return [score_of(pool.answer(task).body) for task in tasks]

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
                    lanes=shared_lanes(0 if self._needs_all else self._kernel.lanes),
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

    def _put(self, pool: ProcessPool, jobs: Sequence[Job], *, now: bool = False) -> None:
        task = pool.put(training(jobs), said(jobs), cost=sum(job.cost for job in jobs), now=now)
        self._tasks |= {job: (task, place) for place, job in enumerate(jobs)}

    def _settle(self, pool: ProcessPool) -> None:
        """Waits for tasks under way; tasks that no worker has begun are as if they had not been submitted."""
        dropped = pool.settle()
        self._tasks = {job: at for job, at in self._tasks.items() if at[0] not in dropped}

    def _answers(self, pool: ProcessPool) -> Iterator[tuple[Job, int, JsonObject]]:
        """Yields (job, worker, answer) of what has been trained in this round so far, in that order."""
        jobs: dict[int, list[tuple[Job, int]]] = {}
        for job, (task, place) in self._tasks.items():
            jobs.setdefault(task, []).append((job, place))
        for task, answer in pool.answers.items():
            for job, place in jobs.get(task, ()):
                if "report" in (body := answer.body["results"][place]):
                    yield job, answer.worker, body

    def _parts(self, pool: ProcessPool, weights: Mapping[str, int]) -> list[dict[str, int]]:
        """Returns each worker's part of ``weights``: the devices whose updates it has. Each device counts once.

        ManifestMismatch for one that no worker has.
        """
        parts: list[dict[str, int]] = [{} for _ in range(len(pool))]
        left = dict(weights)
        for job, worker, body in self._answers(pool):
            if left.get(job.device) == body["weight"]:
                parts[worker][job.device] = left.pop(job.device)
        if left:
            raise ManifestMismatch("an update that counts was never trained here")
        return parts


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def result_of(body: JsonObject) -> Result:
    """The result of a job, as the answer to its task has it."""
    if "report" in body:
        report = UpdateReport.model_validate_json(body["report"])
        return Done(report=report, weight=body["weight"], treated=Treated(**body["treated"]), digest=body["digest"])
    return CannotTrain(reason=body["reason"], trace=body["trace"], bad_values=body["bad_values"])


def score_of(body: JsonObject) -> Score | None:
    """The score of a client, from the answer to its task. SimulationError where it could not be scored."""
    if "raised" in body:
        raise SimulationError(body["raised"])
    return None if body["score"] is None else Score.model_validate_json(body["score"])
