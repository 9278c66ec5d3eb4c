"""A datacenter worker's session driven over HTTP, with real time, a folder, and a trainer in a thread.

This file performs the actions of leases, and ``client_sdk.http.driver`` those that a device has as well. It needs no
torch: the trainer launches what does.

A worker in five lines::

    folder = AgentFolder(Path("/var/lib/quorate-worker"))
    with folder, DatacenterWorker("https://coordinator.example", folder, trainer) as worker:
        worker.run(stop=stop)
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Event, Lock, Thread
from typing import assert_never

from client_sdk.device.actions import Answered, Certify, Failed, RequestRefused, Save, Send, Sleep
from client_sdk.device.record import Record
from client_sdk.device.requests import Pacing
from client_sdk.http.driver import DeviceDriver, Notice
from client_sdk.http.transport import Interrupted, until
from client_sdk.protocol.devices import Noted
from client_sdk.protocol.names import Route, copied
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import Lease, LeaseEnd, WorkerPoll
from coordinator.datacenter.agent_folder import AgentFolder
from coordinator.datacenter.trainer import Halted, JobTrainer, NotNow, TrainingFailed
from coordinator.datacenter.worker_session import (
    AwaitJob,
    Begin,
    Ended,
    Finished,
    Halt,
    Job,
    JobProgress,
    TrainLease,
    Unable,
    WorkerAction,
    WorkerReply,
    WorkerSession,
    work,
)

log = logging.getLogger("quorate.worker")
HALT_S = 60.0
"""Seconds that the worker waits for a job that was asked to stop, before it continues without it."""


class RunningJob:
    """A job in a separate thread: ``done`` is set once ``reply`` is available; ``halted`` asks it to stop."""

    def __init__(self, do: Callable[[RunningJob], WorkerReply], now: Callable[[], float]) -> None:
        self.done = Event()
        self.halted = Event()
        self._do = do
        self._now = now
        self._lock = Lock()
        self._step, self._metrics = 0, dict[str, float]()
        self._reply: WorkerReply = None
        self._error: BaseException | None = None
        Thread(target=self._run, name="quorate-job", daemon=True).start()

    def note(self, step: int, metrics: dict[str, float]) -> None:
        """Record progress: ``loss``, ``samples_per_s``, ``communication_share``, finite. May be called from any
        thread."""
        with self._lock:
            self._step, self._metrics = step, metrics

    def progress(self) -> JobProgress:
        with self._lock:
            return JobProgress(self._step, dict(self._metrics), self._now())

    def reply(self) -> WorkerReply:
        """The job's reply, once it is done. Raises what the job raised."""
        if self._error is not None:
            raise self._error
        return self._reply

    def _run(self) -> None:
        try:
            self._reply = self._do(self)
        except Interrupted:
            self._reply = Failed("The job was stopped.", self._now())
        except BaseException as error:  # noqa: BLE001 - raised again by reply()
            self._error = error
        finally:
            self.done.set()


class DatacenterWorker(DeviceDriver):
    """One worker of one coordinator.

    ``folder`` stores received checkpoints and this worker's key and certificate over restarts, and is not closed here.
    For the other arguments see ``client_sdk.http.client.Client``. ValueError as there.
    """

    def __init__(
        self,
        coordinator: str,
        folder: AgentFolder,
        trainer: JobTrainer,
        *,
        enrolment_token: str | None = None,
        label: str = "",
        hold_s: float = 25.0,
        pacing: Pacing | None = None,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        super().__init__(coordinator, folder, enrolment_token=enrolment_token, on_notice=on_notice)
        self.instance = os.urandom(8).hex()
        self._files = folder
        self._trainer = trainer
        self._label = label
        self._hold_s = hold_s
        self._pacing = pacing
        self._ended = 0
        self._job: RunningJob | None = None
        self._lease: Lease | None = None

    def run(self, leases: int | None = None, stop: Event | None = None) -> int:
        """Take datacenter rounds: ``leases`` of them, or until stopped. Returns how many leases ended.

        ``stop`` ends it soon, also during training; the lease is then returned, and another worker may take the round.
        Raises ProblemError where the coordinator rejects this worker for good.
        """
        self._stop = stop if stop is not None else Event()
        self._ended = 0
        try:
            with suppress(Interrupted):
                self._drive(self._session(self._poll, leases), self._do)
        finally:
            self._halt()
            if self._lease is not None and self._stop.is_set():
                self._give_back(self._lease)
        return self._ended

    def check(self) -> None:
        """Enrol and register, where that is still to do, and check with one poll that the coordinator takes this
        worker. The poll offers nothing, so no round is leased.

        Raises ProblemError where the authority or the coordinator refuses; the problem is ``busy`` where one of them
        does not answer."""
        session = self._session(lambda: WorkerPoll(instance=self.instance, hold_s=0))
        with closing(session):
            action = next(session)
            while not (isinstance(action, Send) and action.route is Route.LEASES):
                if isinstance(action, Sleep):
                    raise problem("busy", action.reason)
                action = session.send(self._do(action))
        reply = self._exchange.send(action)
        if isinstance(reply, RequestRefused):
            raise ProblemError(reply.problem)
        if not isinstance(reply, Answered):
            raise problem("busy", reply.reason)

    def _session(self, offer: Callable[[], WorkerPoll], leases: int | None = None) -> WorkerSession:
        record = self._files.load()
        self._use(record if record is not None else Record())
        return work(
            record,
            offer,
            coordinator=self.coordinator,
            enrolment_token=self._token,
            label=self._label,
            leases=leases,
            pacing=self._pacing,
            at=self._now(),
        )

    # ------------------------------------------------------------ performing

    def _do(self, action: WorkerAction) -> WorkerReply:
        match action:
            case Begin():
                self._begin(action.job)
            case AwaitJob():
                return self._await_job(action.for_s)
            case Halt():
                self._halt()
            case Ended():
                self._end(action)
            case Save() | Certify() | Send() | Sleep():
                reply = self._perform(action)
                if isinstance(reply, Answered) and isinstance(reply.message, Lease):
                    self._lease = lease = reply.message
                    text = f"Has round {lease.round} of {lease.run} (lease {lease.attempt}, fence {lease.fence})."
                    self._notify("leased", text, lease)
                return reply
            case _:
                assert_never(action)
        return None

    def _begin(self, job: Job) -> None:
        if isinstance(job, TrainLease):
            self._notify("training", f"Training {job.lease.task.learner} on {job.lease.datacenter.data}.")
        self._job = RunningJob(lambda running: self._run_job(job, running), self._now)

    def _run_job(self, job: Job, running: RunningJob) -> WorkerReply:
        """Run the job, in its thread."""
        with until(lambda: running.halted.is_set() or self._stop.is_set()):
            return self._train(job, running) if isinstance(job, TrainLease) else self._perform(job)

    def _train(self, job: TrainLease, running: RunningJob) -> WorkerReply:
        lease = job.lease
        try:
            result = self._trainer.train(
                lease, self._files.checkpoint(lease.checkpoint.digest), running.note, running.halted.is_set
            )
            digest, size = self._files.hold(result.path)
            if digest != result.digest:
                raise TrainingFailed(f"The result {result.path} is damaged: it has another SHA-256 than was written.")
        except (Halted, Interrupted):
            return Failed("The training was stopped.", self._now())
        except NotNow as error:
            return Unable(str(error), self._now())
        except TrainingFailed as error:
            return Failed(str(error), self._now())
        except Exception as error:
            if running.halted.is_set():
                return Failed("The training was stopped.", self._now())
            log.exception("training failed in run %s, round %s", lease.run, lease.round)
            return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}", self._now())
        return copied(Finished, result, digest=digest, bytes=size, at=self._now())

    def _await_job(self, for_s: float) -> WorkerReply:
        job = self._job
        if job is None:
            raise RuntimeError("there is no job to wait for")
        ends_at = time.monotonic() + for_s
        while not self._stop.is_set():
            left_s = ends_at - time.monotonic()
            if job.done.wait(max(0.0, min(0.5, left_s))):
                self._job = None
                return job.reply()
            if left_s <= 0:
                progress = job.progress()
                if progress.step:
                    measured = ", ".join(f"{name} {value:.4g}" for name, value in progress.metrics.items())
                    self._notify("progress", f"Step {progress.step}" + (f": {measured}" if measured else ""))
                return progress
        raise Interrupted

    def _halt(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.halted.set()
            if not job.done.wait(HALT_S):
                log.warning("the training does not stop; going on without it")

    def _end(self, action: Ended) -> None:
        self._ended += 1
        self._lease = None
        where = f"round {action.lease.round} of {action.lease.run}"
        text = {
            "committed": f"The result of {where} is version {action.version}.",
            "lost": f"The lease of {where} is lost: {action.reason}",
            "failed": f"Could not train {where}: {action.reason}",
            "refused": f"The result of {where} was not accepted: {action.reason}",
            "given-back": f"Gave {where} back: {action.reason}",
        }[action.result]
        self._notify(action.result, text, action.lease)

    def _give_back(self, lease: Lease) -> None:
        """Return the lease once, as the process ends; without an answer it expires."""
        reason = "The worker is being stopped."
        message = LeaseEnd(attempt=lease.attempt, fence=lease.fence, failed=False, reason=reason)
        path: dict[str, str | int] = {"run": lease.run, "round": lease.round}
        self._exchange.send(Send(method="POST", route=Route.LEASE_END, answers=(Noted,), path=path, message=message))
        self._lease = None
        self._notify("given-back", f"Gave round {lease.round} of {lease.run} back: {reason}", lease)

    def _poll(self) -> WorkerPoll:
        installation = self._files.installation()
        return self._trainer.offer(instance=self.instance, installation=installation, hold_s=self._hold_s)
