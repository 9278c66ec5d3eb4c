"""The trainer of a datacenter's worker: each leased round is a job of processes, on this machine or on a group of them.

It needs no torch: ``worker`` renews the lease while a job runs. A round whose agent was killed continues from
the last saved step, since a job is identified by its run and the checkpoint that it started from.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from client_sdk.protocol.names import copied
from client_sdk.protocol.workers import Lease, WorkerPoll, all_strategies
from coordinator.datacenter.agent_folder import AgentFolder
from coordinator.datacenter.job import launch
from coordinator.datacenter.multi_machine import ConditionEvent, FollowerPool, MachineLost, lead
from coordinator.datacenter.progress import OnMessage
from coordinator.datacenter.recipe import examples_in, recipe_of, steps_between_saves
from coordinator.datacenter.spec import JobFailed, JobResult, JobSpec, JobStopped

OnLeaseMessage = Callable[[Lease, dict[str, Any]], None]
"""Receives a job's messages (``progress``), each with its lease."""
MEASURES = ("loss", "samples_per_s", "communication_share")
"""The metrics of a training that heartbeats and the result report, where known; beside them ``restarts``, where the
processes were started again."""


class TrainingFailed(Exception):
    """The round cannot be trained here or anywhere: one plain sentence, shown to the operator."""


class NotNow(Exception):
    """The round cannot be trained here now, but elsewhere or later: one plain sentence. The lease is returned."""


class Halted(Exception):
    """The trainer stopped because it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedCheckpoint:
    """The result: a safetensors file without metadata, of the names, shapes and dtypes that training started from."""

    path: Path
    digest: str
    """SHA-256 of the bytes that were written there."""
    parent: str
    """SHA-256 of the checkpoint that training started from, of the bytes as each process read them."""
    steps: int
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How this machine trains."""

    nproc: int = 1
    """The most processes that train together here."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    """Of each process; as in ``JobSpec``."""
    checkpoint_every: int | None = None
    """Steps between two that are saved; None: a tenth of the round, 100 at most."""
    hang_s: float = 300.0
    max_restarts: int = 3


class JobTrainer:
    """Trains leased rounds. ``learners``: name -> version; ``data``: name in the plan -> installed data set or .npz
    file."""

    def __init__(
        self,
        folder: AgentFolder,
        learners: Mapping[str, str],
        data: Mapping[str, str],
        machine: Machine,
        on_lease_message: OnLeaseMessage | None = None,
        pool: FollowerPool | None = None,
        gpu_bytes: tuple[int, ...] = (),
    ) -> None:
        """``pool``: the other machines, where this one leads a group. ``gpu_bytes``: the memory of each GPU on which it
        trains; none: on CPUs."""
        self._folder = folder
        self._pool = pool
        self._data = dict(data)
        self._machine = machine
        self._on_lease_message = on_lease_message
        self._learners = dict(learners)
        self._strategies = tuple(name for name in all_strategies() if gpu_bytes or name != "precision=float16")
        self._memory = min(gpu_bytes) if gpu_bytes else psutil.virtual_memory().total // machine.nproc

    def offer(self, **polled: Any) -> WorkerPoll:
        """A poll with the capabilities here, and with the processes of the machines that respond at this moment."""
        others = [] if self._pool is None else self._pool.compatible()
        return WorkerPoll(
            learners=self._learners,
            data=tuple(self._data),
            nproc=self._machine.nproc + sum(status.nproc for status in others),
            strategies=self._strategies,
            memory_bytes=self._memory,
            **polled,
        )

    def train(
        self, lease: Lease, checkpoint: Path, note: Callable[[int, dict[str, float]], None], halted: Callable[[], bool]
    ) -> TrainedCheckpoint:
        """Train from ``checkpoint`` to the end of the lease's task; called in a separate thread.

        ``note`` gets the step and the MEASURES that are known, at any time. Raises Halted soon after ``halted()`` is
        true, and retains saved steps: this worker may get the next lease of the same run and checkpoint. Raises NotNow
        where another worker, or this one later, can train it, and TrainingFailed where nobody can; any other exception
        counts as TrainingFailed.
        """
        spec = self.job_of(lease, checkpoint)
        known: dict[str, float] = {}
        examples = 0

        def on_message(message: dict[str, Any]) -> None:
            nonlocal examples
            known.update(measures(message))
            if message["event"] == "started":
                examples = int(message["examples"])
            if message["event"] == "restarted":
                known["restarts"] = float(message["attempt"])
            if message["event"] in ("started", "progress"):
                note(int(message["step"]), dict(known))
            if self._on_lease_message is not None:
                self._on_lease_message(lease, message)

        try:
            result = self._done(lease, spec, on_message, ConditionEvent(halted))
        except JobStopped:
            raise Halted from None
        except MachineLost as lost:
            raise NotNow(str(lost)) from None
        except JobFailed as failed:
            raise TrainingFailed(str(failed)) from None
        known.update(measures(result.report))
        steps = int(result.report["steps"])
        return TrainedCheckpoint(
            path=_written(result.out),
            digest=result.digest,
            parent=spec.init_digest,
            steps=steps,
            examples=examples_in(steps, spec.recipe.batch_size, examples) if examples else 0,
            metrics=known,
        )

    def _done(self, lease: Lease, spec: JobSpec, on_message: OnMessage, stop: threading.Event) -> JobResult:
        """Run the job on this machine, or on as many as its processes need."""
        if self._pool is None or spec.nproc <= self._machine.nproc:
            return launch(spec, on_message, stop)
        found = self._pool.group(spec.nproc, self._machine.nproc)
        if found is None:
            raise NotNow(f"The round needs {spec.nproc} processes, and a machine of the group has gone.")
        mine, group = found
        spec = JobSpec.model_validate({**spec.model_dump(), "nproc": mine, "device": self._pool.device})
        return lead(spec, group, lease.datacenter.data, on_message, stop)

    def job_of(self, lease: Lease, checkpoint: Path) -> JobSpec:
        """The round as a job, in its own folder. TrainingFailed where it does not fit this machine."""
        source = self._data.get(lease.datacenter.data)
        if source is None:
            raise TrainingFailed(f"This worker does not hold the data {lease.datacenter.data!r}.")
        if lease.task.learner not in self._learners:
            raise TrainingFailed(f"This worker may not train the learner {lease.task.learner}.")
        folder = self._folder.job(lease.run, lease.checkpoint.digest, lease.plan_digest)
        try:
            return copied(
                JobSpec,
                self._machine,
                learner=lease.task.learner,
                data=source,
                recipe=recipe_of(lease),
                init=checkpoint.resolve(),
                init_digest=lease.checkpoint.digest,
                out=folder / "result.safetensors",
                checkpoints=folder / "steps",
                checkpoint_every=steps_between_saves(lease.datacenter.steps, self._machine.checkpoint_every),
                resume=True,
                nproc=lease.datacenter.nproc,
            )
        except ValueError as error:
            raise TrainingFailed(f"The plan cannot be trained here: {' '.join(str(error).split())}") from None


def measures(message: Mapping[str, Any]) -> dict[str, float]:
    """The MEASURES of a message, without those that are missing or not finite."""
    found = {name: message.get(name) for name in MEASURES}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def _written(path: Path | None) -> Path:
    if path is None:
        raise TrainingFailed("The training left no result.")
    return path
