"""The workers of the engine ``processes`` as actors of Ray, on machines of a cluster: the bits of the serial engine.

The model of a round goes to the actors as the bytes of a safetensors file, tasks and answers are JSON, and sums come
back as int64 lanes. Learner, plan and data go there once, as Ray serializes objects (it pickles them): whoever may use
a Ray cluster may run code on it.

========================== =========================================================================================
event                      consequence
========================== =========================================================================================
an actor dies              another one takes its place, and its clients of the round are trained again
a client kills its actor   after the third time SimulationError, with what the actor did
Ctrl-C, ``close``          the actors are ended, and a Ray that was started here is shut down
========================== =========================================================================================

Ray connects to a cluster where it finds one (``RAY_ADDRESS``, or one that runs on this machine), and is started on this
machine else. Where it has GPUs, each actor has one, or a part of one where there are more actors than GPUs.
"""

from __future__ import annotations

import heapq
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError

from client_sdk.protocol.devices import Score
from client_sdk.tensors import Manifest, ManifestMismatch, Tensors, from_bytes, to_bytes
from client_sdk.tensors.exact_sum import ExactSum, SumError
from simulation.engines.kernel import Kernel
from simulation.engines.memory import COLUMNS, SharedTensors, VectorFile, shared_lanes
from simulation.engines.port import Job, Meanwhile, Result, nothing
from simulation.engines.processes import SharedState, TaskWorker, result_of, said, score_of, training
from simulation.engines.serial import by_stack
from simulation.errors import SimulationError

_DEPTH = 2
"""Tasks at an actor: the one under way, and one that waits, so that the actor never does."""
_DEATHS = 3
"""Actors that may die over the same task."""
_AS_OURS = {"worker_niceness": 0}
"""Of a Ray that is started here: its workers have the priority of this process, not the lowest but four."""
_SAID = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Variables of Ray, unless the user sets them: nothing of a run is told to its makers, and there is no warning."""
_PARTS = 10_000
"""Ray counts resources in these parts of one."""
JsonObject = dict[str, Any]


class Actor:
    """A worker of the engine in a process of Ray."""

    def __init__(self, kernel: Kernel, model: bytes) -> None:
        manifest = Manifest.of(from_bytes(model))
        self._shared = SharedState(
            model=SharedTensors(manifest),
            scored=SharedTensors(manifest),
            lanes=shared_lanes(0 if kernel.needs_all else kernel.lanes),
            vectors=VectorFile(kernel.layout.elements) if kernel.needs_all else None,
        )
        self._worker = TaskWorker(kernel, self._shared)

    def begin(self, model: bytes) -> None:
        """The next round, from this model."""
        self._shared.model.write(from_bytes(model))
        self._worker.begin()

    def scoring(self, model: bytes) -> None:
        """From now on this model is scored."""
        self._shared.scored.write(from_bytes(model))

    def done(self, task: bytes) -> bytes:
        """Does a task."""
        return json.dumps(self._worker.done(json.loads(task))).encode()

    def restricted(self, weights: bytes) -> tuple[bytes, bytes]:
        """Keeps only these devices in the sum: its state, and its lanes."""
        return json.dumps(self._worker.restricted(json.loads(weights))).encode(), self._shared.lanes.tobytes()

    def rows(self, slots: Sequence[int], start: int, width: int) -> bytes:
        """Of the stored updates in these places the values from ``start``: float32 [slots, width]."""
        found = np.empty((len(slots), width), np.float32)
        if self._shared.vectors is not None:
            for row, slot in zip(found, slots, strict=True):
                self._shared.vectors.read(slot, start, row)
        return found.tobytes()


@dataclass(slots=True)
class _Task:
    message: JsonObject
    what: str
    """In words, "trained client 'c7' in round 3"."""
    cost: int


@dataclass(slots=True, eq=False)
class _Worker:
    actor: Any
    under_way: dict[Any, int] = field(default_factory=dict)
    """Ray's reference -> number of the task."""
    told: list[Any] = field(default_factory=list)
    """Ray's references of the models that it was sent: where one did not come, its tasks would go on with another."""


class RayEngine:
    """See ``Engine``. Actors are started with the first model and live until ``close``."""

    def __init__(self, kernel: Kernel, workers: int | None = None) -> None:
        """``workers``: how many actors; None: one for each GPU of the cluster, or for each core where it has none, but
        not more than a round has clients. SimulationError where clients keep a state: it lies on one machine's disk."""
        if kernel.states is not None:
            raise SimulationError(
                'the plan\'s strategy keeps a state for each client, which the actors of engine="ray" do not share: '
                'engine="processes" trains it'
            )
        self._kernel, self._size = kernel, workers
        self._workers: list[_Worker] = []
        self._mine = self._closed = False
        self._options: dict[str, float] = {}
        self._whole: Any = None
        self._model: Any = None
        self._scored: Any = None
        self._jobs: dict[Job, tuple[int, int]] = {}
        """Which task a job is of, and its place there."""
        self._tasks: dict[int, _Task] = {}
        self._waiting: list[tuple[bool, int, int]] = []
        self._answers: dict[int, tuple[_Worker, JsonObject]] = {}
        self._again: set[int] = set()
        """Tasks that were done by an actor that has died since."""
        self._deaths: Counter[int] = Counter()
        self._number = 0

    def begin(self, round: int, model: Tensors) -> None:
        self._again.clear()
        if self._workers:
            self._settle()
        self._jobs.clear()
        self._tasks.clear()
        self._answers.clear()
        self._deaths.clear()
        self._start(model)
        self._model = ray.put(to_bytes(model))
        for worker in self._workers:
            worker.told.append(worker.actor.begin.remote(self._model))

    def submit(self, jobs: Sequence[Job]) -> None:
        for stack in by_stack(job for job in jobs if job not in self._jobs):
            self._put_jobs(stack)
        self._hand_out()

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        if job not in self._jobs:
            self._put_jobs([job], now=True)
        task, place = self._jobs[job]
        if task not in self._answers:
            self._hand_out()
            meanwhile()
        return result_of(self._answer(task)["results"][place])

    def total(self, weights: Mapping[str, int]) -> ExactSum:
        while True:
            self._settle()
            parts = self._parts(weights)
            if self._kernel.needs_all:
                return ExactSum(0)
            asked = [(worker, part, worker.actor.restricted.remote(_json(part))) for worker, part in parts.items()]
            total = self._kernel.empty_sum()
            merged = [self._merged(total, *one) for one in asked]
            if all(merged):
                return total

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        if not self._kernel.needs_all:
            raise ManifestMismatch("the plan's rule adds updates up: none of them is stored")
        elements = self._kernel.layout.elements
        width = max(256, COLUMNS // max(1, len(devices)))
        for start in range(0, elements, width):
            yield self._rows(devices, start, min(width, elements - start))

    def score(self, model: Tensors, devices: Sequence[str]) -> list[Score | None]:
        self._start(model)
        self._settle()
        self._scored = ray.put(to_bytes(model))
        for worker in self._workers:
            worker.told.append(worker.actor.scoring.remote(self._scored))
        tasks = [self._put({"do": "score", "device": one}, f"scored client {one!r}") for one in devices]
        return [score_of(self._answer(task)) for task in tasks]

    def close(self) -> None:
        self._closed = True
        for worker in self._workers:
            ray.kill(worker.actor)
        self._workers = []
        if self._mine:
            ray.shutdown()
            self._mine = False

    # ------------------------------------------------------------ actors

    def _start(self, model: Tensors) -> None:
        if self._closed:
            raise SimulationError("the engine was closed")
        if self._workers:
            return
        if not ray.is_initialized():
            for name, value in _SAID.items():
                os.environ.setdefault(name, value)
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                ray.init("auto", **quiet)
            except ConnectionError:
                ray.init("local", **quiet, include_dashboard=False, _system_config=_AS_OURS)
            self._mine = True
        have = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus, cpus = have.get("GPU", 0.0), have.get("CPU", 1.0)
        size = self._size or min(max(1, int(gpus or cpus)), self._kernel.plan.cohort.goal)
        self._options = {"num_cpus": _share(cpus, size), "num_gpus": _share(gpus, size)}
        self._whole = (ray.put(self._kernel), ray.put(to_bytes(model)))
        self._workers = [_Worker(self._actor()) for _ in range(size)]

    def _actor(self) -> Any:
        return _remote(Actor, **self._options).remote(*self._whole)

    def _lost(self, worker: _Worker) -> None:
        """Another actor takes the place of one that has died, and what that had done is to be done again."""
        ray.kill(worker.actor)
        under_way, worker.under_way = [*worker.under_way.values()], {}
        self._deaths.update(under_way[:1])
        if under_way and self._deaths[under_way[0]] >= _DEATHS:
            what = self._tasks[under_way[0]].what
            self.close()
            raise SimulationError(f"{_DEATHS} actors of Ray died, one after the other, while they {what}")
        gone = [task for task, (who, body) in self._answers.items() if who is worker and "results" in body]
        self._again.update(gone)
        for task in [*under_way, *gone]:
            self._answers.pop(task, None)
            heapq.heappush(self._waiting, (False, -self._tasks[task].cost, task))
        worker.actor = self._actor()
        worker.told = [worker.actor.begin.remote(self._model)]
        if self._scored is not None:
            worker.told.append(worker.actor.scoring.remote(self._scored))

    # ------------------------------------------------------------ tasks

    def _put_jobs(self, jobs: Sequence[Job], *, now: bool = False) -> None:
        if not self._workers:
            raise SimulationError("no round has begun")
        task = self._put(training(jobs), said(jobs), sum(job.cost for job in jobs), now=now)
        self._jobs |= {job: (task, place) for place, job in enumerate(jobs)}

    def _put(self, message: JsonObject, what: str, cost: int = 0, *, now: bool = False) -> int:
        self._number += 1
        self._tasks[self._number] = _Task({"task": self._number, **message}, what, cost)
        heapq.heappush(self._waiting, (not now, -cost, self._number))
        return self._number

    def _hand_out(self) -> None:
        """Sends waiting tasks to the actors that can take more, in turn."""
        for depth in range(1, _DEPTH + 1):
            for worker in self._workers:
                if self._waiting and len(worker.under_way) < depth:
                    task = heapq.heappop(self._waiting)[2]
                    reference = worker.actor.done.remote(_json(self._tasks[task].message))
                    worker.under_way[reference] = task

    def _take_in(self) -> None:
        """Sends tasks, and waits until one has been answered, or an actor has died."""
        self._hand_out()
        at = {reference: worker for worker in self._workers for reference in worker.under_way}
        for reference in ray.wait([*at])[0]:
            worker = at[reference]
            try:
                ray.get(worker.told)  # an actor does what it is sent in that order
                worker.told.clear()
                body = json.loads(ray.get(reference))
            except RayActorError:
                self._lost(worker)
                return
            task = worker.under_way.pop(reference)
            self._again.discard(task)
            self._answers[task] = (worker, body)

    def _answer(self, task: int) -> JsonObject:
        while task not in self._answers:
            self._take_in()
        return self._answers[task][1]

    def _settle(self) -> None:
        """Waits for tasks under way, and for those that are done again; others that no actor has begun are as if they
        had not been submitted."""
        self._waiting = [item for item in self._waiting if item[2] in self._again]
        heapq.heapify(self._waiting)
        while self._again or any(worker.under_way for worker in self._workers):
            self._take_in()
        self._jobs = {job: at for job, at in self._jobs.items() if at[0] in self._answers}

    # ------------------------------------------------------------ updates

    def _trained(self) -> dict[str, tuple[_Worker, JsonObject]]:
        """Device -> who has its update, which was trained first."""
        found: dict[str, tuple[_Worker, JsonObject]] = {}
        for job, (task, place) in self._jobs.items():
            if task in self._answers and "report" in (body := self._answers[task][1]["results"][place]):
                found.setdefault(job.device, (self._answers[task][0], body))
        return found

    def _parts(self, weights: Mapping[str, int]) -> dict[_Worker, dict[str, int]]:
        """Each actor's part of ``weights``. ManifestMismatch for a device whose update no actor has."""
        parts: dict[_Worker, dict[str, int]] = {}
        trained = self._trained()
        for device, weight in weights.items():
            worker, body = trained.get(device, (None, {}))
            if worker is None or body["weight"] != weight:
                raise ManifestMismatch("an update that counts was never trained here")
            parts.setdefault(worker, {})[device] = weight
        return parts

    def _merged(self, total: ExactSum, worker: _Worker, part: Mapping[str, int], reference: Any) -> bool:
        """Adds an actor's sum; False where the actor has died. SumError, ManifestMismatch."""
        try:
            said, lanes = ray.get(reference)
        except RayActorError:
            self._lost(worker)
            return False
        answer = json.loads(said)
        if "refused" in answer:
            raise SumError(answer["refused"])
        if answer["weights"] != part:
            raise ManifestMismatch("an update that counts could not be made a second time")
        total.merge(ExactSum.on(np.frombuffer(lanes, np.int64), answer["state"], total.ends))
        return True

    def _rows(self, devices: Sequence[str], start: int, width: int) -> NDArray[np.float32]:
        while True:
            trained = self._trained()
            missing = next((device for device in devices if device not in trained), None)
            if missing is not None:
                raise ManifestMismatch(f"the update of {missing!r} was never trained here")
            places: dict[_Worker, list[tuple[int, int]]] = {}
            for row, (worker, body) in enumerate(trained[device] for device in devices):
                places.setdefault(worker, []).append((row, body["slot"]))
            found = np.empty((len(devices), width), np.float32)
            asked = [
                (worker, [row for row, _ in of], worker.actor.rows.remote([slot for _, slot in of], start, width))
                for worker, of in places.items()
            ]
            try:
                for worker, chosen, reference in asked:  # noqa: B007 - the one that may have died
                    found[chosen] = np.frombuffer(ray.get(reference), np.float32).reshape(-1, width)
                return found
            except RayActorError:
                self._lost(worker)
                self._settle()


def _share(of: float, among: int) -> float:
    """One for each, or an equal part where there are fewer."""
    return 1.0 if of >= among else math.floor(_PARTS * of / among) / _PARTS


def _remote(actor: type, **options: float) -> Any:
    """The class for Ray, whose types do not say that options come as keywords."""
    return ray.remote(**options)(actor)  # type: ignore[call-overload]


def _json(message: object) -> bytes:
    return json.dumps(message).encode()
