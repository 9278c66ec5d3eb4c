"""One client's part in a round: train, encode, measure, weigh. The steps and messages are those of a device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.codecs.port import require_encodable
from client_sdk.device.durable_folder import DurableFolder
from client_sdk.device.states import Candidate, Kept, StateFolder, encoded, key_of
from client_sdk.device.strategies import BadNumbers, Keeps, Learn, Local, StrategyError, train_by
from client_sdk.learners import LearnerError, evaluate, wants_rng
from client_sdk.learning.errors import Diverged, LearnerFailed, LearningError, NoExamples, OutOfTime
from client_sdk.protocol.devices import Score, Task, UpdateReport
from client_sdk.tensors import Float32, Layout, ManifestMismatch, TensorError, Tensors, pieces
from client_sdk.tensors.exact_sum import ExactSum
from client_sdk.tensors.floats import joined
from client_sdk.tensors.manifest import of_model
from client_sdk.update import BadReport, Seconds, Update, report_of
from coordinator.engine.aggregation.section import weight_of
from coordinator.engine.event_fields import UNTREATED
from coordinator.engine.plan import Plan, algorithm
from coordinator.folding.validation import Bounds, Measures, measure_blocks
from coordinator.runtime.extensions import installed
from simulation.clients import Clients
from simulation.clients.holdings import ClientData
from simulation.engines.port import CannotTrain, Done, Job
from simulation.engines.steps import Stepper
from simulation.errors import own_trace
from simulation.history.local_steps import EXACT

_OF_THE_DEVICE = (OutOfTime, NoExamples, Diverged)
"""Errors that real devices have too: the device withdraws, and the round goes on."""
_TASKS = 64
"""Tasks that are kept: those of a round, one for each class of devices."""


@dataclass(frozen=True, slots=True)
class Contributed:
    """An update as it would arrive: encoded and decoded again, measured, weighed."""

    done: Done
    delta: tuple[Float32, ...]
    """The flat delta in 1-d pieces, in its order: parameters, then statistics."""
    measures: Measures
    bounds: Bounds

    def blocks(self, block: int = codecs.BLOCK) -> Iterator[Float32]:
        """The flat delta in 1-d blocks, bounded as the plan says."""
        parts = (part for flat in self.delta for part in pieces(flat, block))
        return self.bounds.applied(parts, self.measures.scale, self.measures.bit)


class ClientStates(StateFolder):
    """What simulated clients keep. Where an outcome is known before the round is written to the run's folder, as when
    clients are scored, the candidate is marked and stays: a kill then costs the round, and what was kept before it is
    there still."""

    def put(self, key: str, candidate: Candidate, tensors: Tensors, at: float) -> None:
        """See ``States``. The process that trains a client a second time, to check the learner, writes the same."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.path(key, f"{os.getpid()}.tmp")
        draft.write_bytes(encoded(candidate, tensors, at))
        draft.replace(self.path(key, "next"))

    def mark(self, key: str) -> None:
        """The candidate is what the client keeps by now."""
        self.path(key, "counts").touch()

    def settle(self, key: str, *, keep: bool) -> None:
        self.path(key, "counts").unlink(missing_ok=True)
        super().settle(key, keep=keep)

    def own(self, key: str) -> Kept | None:
        """What the client keeps by now."""
        return self.read(key, "next" if self.path(key, "counts").exists() else "state")


class Kernel:
    """``train`` is a function of its arguments, in every process."""

    def __init__(
        self,
        plan: Plan,
        learner: Any,
        clients: Clients,
        layout: Layout,
        *,
        weight_unit: int | None = None,
        states: Path | None = None,
        stepper: Stepper | None = None,
    ) -> None:
        """``layout``: of an update, decoded. ``weight_unit``: the run's; None: of a new run. ``states``: the folder of
        what clients keep for a strategy. ``stepper``: makes clients' local steps; None: exactly. PlanError where the
        plan's rule is not installed here."""
        self.plan = plan
        self._weight_unit = plan.weight_unit if weight_unit is None else weight_unit
        self._secure = plan.secure is not None
        chosen = algorithm(plan, installed(plan))
        self.needs_all = self._secure or chosen.needs != "sum"
        """Whether each update is needed, rather than their sum: by the plan's rule, or to be masked."""
        self.layout = layout
        self._bounds = Bounds.of(plan, layout)
        self.learner = learner
        self._stepper = Stepper(learner, EXACT) if stepper is None else stepper
        self._clients = clients
        self._codec = codecs.beside(plan.task.codec, layout.statistics)
        self._digest = plan.digest
        self._tasks: dict[tuple[tuple[str, float], ...], Task] = {}
        self._half, self._strategy = chosen.strategy.device, chosen.local(plan.strategy)
        self.keeps: Keeps = "nothing" if self._strategy is None else self._strategy.keeps
        has_states = states is not None and self.keeps != "nothing"
        self.states = ClientStates(DurableFolder(states, durable=False)) if states is not None and has_states else None
        """What clients keep, under ``state_key``; None where the plan's strategy keeps nothing."""

    @property
    def lanes(self) -> int:
        """Of a sum of updates."""
        return self.layout.elements + self._bounds.bits

    def empty_sum(self, lanes: NDArray[np.int64] | None = None) -> ExactSum:
        """``lanes``: its memory; None: of its own."""
        return ExactSum.of(self.layout.whole, lanes, more=self._bounds.bits)

    def _task(self, changes: Mapping[str, float]) -> Task:
        """Time is virtual: ``Job.steps`` says what the device has time for."""
        found = self._tasks.get(key := tuple(changes.items()))
        if found is None:
            if len(self._tasks) >= _TASKS:
                self._tasks.clear()
            found = self.plan.task.model_copy(update={**changes, "time_budget_s": None, "strategy": self._strategy})
            self._tasks[key] = found
        return found

    @cached_property
    def _with_rng(self) -> bool:
        return wants_rng(self.learner)

    def stacked(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs of a round, each with the stack in which its client is trained: those that take about as long are
        trained together, whatever the engine. Each alone where local steps are made client by client."""
        lanes = self._stepper.steps.lanes
        if lanes == 1 or self._half is not None:
            return list(jobs)
        alike: dict[tuple[tuple[str, float], ...], list[int]] = {}
        for place, job in enumerate(jobs):
            if job.steps is None:
                alike.setdefault(tuple(job.changes.items()), []).append(place)
        found = list(jobs)
        for places in alike.values():
            places.sort(key=lambda place: (jobs[place].cost, place))
            for start in range(0, len(places), lanes):
                stack = places[start : start + lanes]
                devices = tuple(jobs[place].device for place in stack)
                for place in stack:
                    found[place] = replace(jobs[place], stack=devices)
        return found

    def train_stack(self, model: Tensors, jobs: Sequence[Job]) -> list[Contributed | CannotTrain]:
        """Returns what ``train`` gives each job; ``jobs`` are of one stack."""
        try:
            made = self._stack(model, jobs[0])
        except Exception as error:  # noqa: BLE001 - it is the same for all of them
            made = dict.fromkeys(jobs[0].stack, (error, 0))
        return [self._outcome(job, partial(self._of_stack, made, job)) for job in jobs]

    def train(self, model: Tensors, job: Job) -> Contributed | CannotTrain:
        """Returns the client's update from ``model``, or why there is none."""
        if job.stack:
            return self.train_stack(model, [job])[0]
        return self._outcome(job, partial(self._alone, model, job))

    def _alone(self, model: Tensors, job: Job) -> tuple[Local, int]:
        """What the client's training gives, and how many examples it has."""
        data = self._clients[job.device]
        return self._local(model, data, job), data.examples

    def _stack(self, model: Tensors, job: Job) -> dict[str, tuple[Update | Exception, int]]:
        """The updates of all clients of the job's stack, or why one has none, and how many examples each has."""
        clients = [(device, self._clients[device]) for device in job.stack]
        with one_thread():
            found = self._stepper.stack(model, clients, self._task(job.changes), job.round)
        return {device: (one, data.examples) for (device, data), one in zip(clients, found, strict=True)}

    def _of_stack(self, made: Mapping[str, tuple[Update | Exception, int]], job: Job) -> tuple[Local, int]:
        found, examples = made[job.device]
        if isinstance(found, Exception):
            raise found
        return Local(update=found), examples

    def _outcome(self, job: Job, make: Callable[[], tuple[Local, int]]) -> Contributed | CannotTrain:
        try:
            try:
                local, examples = make()
            except TensorError as error:
                raise LearnerFailed(f"The learner's update cannot be made: {error}.") from error
            contributed = self._contributed(local.update, job, most=examples)
            if self.states is not None:
                self.states.put(state_key(job.device), Candidate(job.round, job.attempt, "-"), local.state, 0.0)
            return contributed
        except _OF_THE_DEVICE as error:
            return CannotTrain(reason=str(error), bad_values=isinstance(error, Diverged))
        except BadNumbers as error:
            return CannotTrain(reason=str(error), bad_values=True)
        except (LearnerError, StrategyError, codecs.CodecFailed) as error:
            return _own(str(error), error.__cause__ if isinstance(error.__cause__, Exception) else error)
        except (BadReport, ManifestMismatch) as error:
            return _own(f"The learner's update cannot be counted: {error}", error)
        except TensorError as error:
            return CannotTrain(reason=f"The update cannot be counted: {error}.", bad_values=True)
        except LearningError as error:
            cause = error.__cause__ if isinstance(error, LearnerFailed) and error.__cause__ is not None else error
            return _own(str(error), cause)
        except Exception as error:  # noqa: BLE001 - a user's learner may raise anything
            line = (str(error).strip() or "no message").split("\n", 1)[0]
            return _own(f"The learner raised {type(error).__name__}: {line}", error)

    def score(self, model: Tensors, device: str) -> Score | None:
        """Returns the model's score on the device's own held-out examples; None where it has none."""
        data = self._clients[device]
        if data.test is None:
            return None
        if self._half is not None and self.states is not None:
            kept = self.states.own(state_key(device))
            model = self._half.own(of_model(model), {} if kept is None else kept.tensors, self._task({}))
        with one_thread():
            return evaluate(self.learner, self.plan.task.learner, model, data.test, device=device)

    def update(self, model: Tensors, job: Job) -> Update:
        """Returns the client's update from its data. Errors of the learner pass through."""
        return self._local(model, self._clients[job.device], job).update

    def _state(self, device: str) -> Tensors:
        kept = None if self.states is None else self.states.current(state_key(device))
        return {} if kept is None else kept.tensors

    def _local(self, model: Tensors, data: ClientData, job: Job) -> Local:
        if self._half is None:
            return Local(update=self._update(model, data, job, self._task(job.changes)))

        def learn(model: Tensors, task: Task, *, offset: Tensors | None = None) -> Update:
            return self._update(model, data, job, task, offset)

        coded = partial(self._coded, job)
        return train_by(self._half, Learn(learn, coded), model, self._state(job.device), self._task(job.changes))

    def _coded(self, job: Job, delta: Tensors) -> Tensors:
        """The deltas as they arrive."""
        origin = codecs.Origin(seed=self.plan.task.seed, round=job.round, device=job.device, plan=self._digest)
        return codecs.as_decoded(self._codec, delta, origin)

    def _update(self, model: Tensors, data: ClientData, job: Job, task: Task, offset: Tensors | None = None) -> Update:
        if not hasattr(self.learner, "train") and job.steps is not None:
            raise OutOfTime(
                "The time ran out before the whole task was done, and a learner that is a function cannot stop "
                "early: an object with train(..., deadline=) can."
            )
        with one_thread():
            return self._stepper.train(
                model,
                data,
                task,
                device=job.device,
                round=job.round,
                deadline=_whole if job.steps is None else _Steps(job.steps),
                with_rng=self._with_rng,
                offset=offset,
            )

    def _contributed(self, update: Update, job: Job, *, most: int) -> Contributed:
        """``most``: the client's examples. A coordinator counts no more, whatever the learner reports."""
        seconds = Seconds(fetch_s=job.fetch_s, train_s=job.train_s)
        private = self.plan.privacy is not None
        report = report_of(update, self._codec.name, job.run, job.round, job.attempt, seconds, private=private)
        self.layout.whole.require(update.manifest, "the update")
        delta = update.delta
        if self._secure:  # it is encoded under the attempt's header
            for name, array in delta.items():
                require_encodable(name, array, self._codec.name)
        else:
            delta = self._coded(job, delta)
        parts = (self.layout.parameters, self.layout.statistics)
        flat = tuple(piece for part in parts for piece in joined(delta[name] for name in part))
        measures = self._bounds.at(measure_blocks(lambda: flat, self.plan, self._bounds), job.clip)
        weight = weight_of(
            self.plan.aggregation,
            self._weight_unit,
            examples=min(report.examples, max(1, most)),
            steps=report.work.steps,
            steps_planned=report.work.steps_planned,
            complete=report.work.complete,
            times=job.times,
        )
        digest = _digest(report, flat) if job.checked else None
        treated = UNTREATED if private else measures.treated
        done = Done(report=report, weight=weight, treated=treated, digest=digest)
        return Contributed(done, flat, measures, self._bounds)


def state_key(client: str) -> str:
    """Under which key the folder of states has a client's."""
    return key_of(client)


def _digest(report: UpdateReport, flat: tuple[Float32, ...]) -> str:
    measured = report.model_dump_json(include={"examples", "work", "metrics", "held_out"})
    found = blake2b(measured.encode(), digest_size=16)
    for part in flat:
        found.update(np.ascontiguousarray(part).data)
    return found.hexdigest()


class _Steps:
    """A deadline that passes after so many optimizer steps: it is called once before each."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def __call__(self) -> float:
        self._left -= 1
        return float("inf") if self._left >= 0 else -1.0


def _whole() -> float:
    return float("inf")


def _own(reason: str, error: BaseException) -> CannotTrain:
    return CannotTrain(reason=reason, trace=own_trace(error), error=error)


def one_thread() -> AbstractContextManager[None]:
    """One thread for torch's arithmetic while a client is trained or scored, and as many as before afterwards: how many
    threads share a sum decides how it is rounded, so a client's update would differ between engines, and between
    machines. Does nothing where torch has not been imported, or uses one thread already."""
    torch = sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    return _UNCHANGED if threads == 1 else _changed(torch, threads)


_UNCHANGED = nullcontext()


@contextmanager
def _changed(torch: Any, before: int) -> Iterator[None]:
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
