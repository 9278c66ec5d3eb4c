"""Finds a learner whose updates depend on more than model, data, task, client and round: by behaviour.

State that a learner keeps, in whatever object, is lost when a run is resumed, and differs between the processes of a
pool: results would be wrong without a word. Before the first training a process is forked that never trains. In each
of the first three rounds of a call one client is trained in a fork of it too, twice from the same inputs: what a
client leaves behind for itself shows in the second training, also where a pool's workers take turns. Other bits refuse
the run, before the round is committed. A cache that changes no bits passes.

In each round the digest of one client's update is noted, and kept with the run. A call that resumes the run trains that
client again, from the model that it had, before it trains anybody: other bits refuse the resumed run.

``deterministic = False`` on the learner turns it off, and the history shows that. Not checked is where a process cannot
be forked, or torch has begun to use a GPU: a warning says so.

State is found by behaviour: comparing attributes missed state inside objects, and refused caches and counters that
change nothing. A client is trained twice again, since the worker of a pool that trains it in round 2 need not be the
one that did in round 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol.devices import Score
from client_sdk.tensors import Manifest, Tensors
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.datafolder import write_private
from simulation.engines.kernel import Kernel
from simulation.engines.memory import SharedTensors
from simulation.engines.port import CannotTrain, Engine, Job, Meanwhile, Result, nothing
from simulation.engines.process_pool import Channel, ProcessPool
from simulation.errors import SimulationError, SimulationWarning

_ROUNDS = 3
_PATIENCE_S = 120.0
"""Seconds to wait for the second training after the round's own: a fork of a process with threads may hang."""


def is_deterministic(learner: Any) -> bool:
    """Whether the learner's updates are said to be functions of their inputs, as they are where it says nothing."""
    return getattr(learner, "deterministic", True) is not False


class CheckedEngine:
    """An engine whose first rounds are checked. See ``Engine``."""

    def __init__(self, engine: Engine, kernel: Kernel) -> None:
        self._engine = engine
        self._kernel = kernel
        self._checks = is_deterministic(kernel.learner)
        self._left = _ROUNDS if self._checks else 0
        self._pool: ProcessPool | None = None
        self._model: SharedTensors | None = None
        self._before: set[str] = set()
        self._given: dict[Job, Job] = {}
        """The jobs of the round that are trained in stacks: as they were submitted -> with their stack."""
        self._job: Job | None = None
        self._task = 0
        self._found: str | None = None
        self.noted: tuple[Job, str] | None = None
        """The client that was trained last among those that are checked, and the digest of its update."""

    def require_as_before(self, model: Tensors, job: Job, digest: str) -> None:
        """SimulationError where the client's update from ``model`` is not the one that an earlier call noted: before
        any training of this call."""
        if self._left:
            self._start(model)
        if self._pool is not None:
            self._check(job)
            self._found = digest
            self._compare(earlier=True)

    def begin(self, round: int, model: Tensors) -> None:
        self._compare()
        self._job = self.noted = None
        self._given.clear()
        if self._left:
            self._start(model)
        else:
            self._end()
        self._engine.begin(round, model)

    def submit(self, jobs: Sequence[Job]) -> None:
        given, jobs = jobs, self._kernel.stacked(jobs)
        self._given |= {one: job for one, job in zip(given, jobs, strict=True) if job.stack}
        if self._checks and jobs and self._job is None:
            # One that has been trained before, and comes last: others have left behind what they leave behind.
            place = max(range(len(jobs)), key=lambda at: (jobs[at].device in self._before, -jobs[at].cost, at))
            self._before.update(job.device for job in jobs)
            self._job, self._found = jobs[place], None
            if self._pool is not None and self._left:
                self._left -= 1
                self._check(jobs[place])
        self._engine.submit([self._marked(job) for job in jobs])

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        job = self._given.get(job, job)
        result = self._engine.result(self._marked(job), meanwhile)
        if job == self._job and not isinstance(result, CannotTrain):
            self._found = result.digest
            self.noted = None if result.digest is None else (job, result.digest)
        return result

    def total(self, weights: Mapping[str, int]) -> ExactSum:
        self._compare()
        return self._engine.total(weights)

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        self._compare()
        return self._engine.columns(devices)

    def score(self, model: Tensors, devices: Sequence[str]) -> list[Score | None]:
        return self._engine.score(model, devices)

    def close(self) -> None:
        self._end()
        self._engine.close()

    # ------------------------------------------------------------ inside

    def _marked(self, job: Job) -> Job:
        return replace(job, checked=True) if job == self._job else job

    def _check(self, job: Job) -> None:
        """The client is trained again, beside its own training."""
        if self._pool is not None:
            self._job = job
            self._task = self._pool.put({"job": asdict(replace(job, checked=True))}, "checked a client")
            self._pool.start()

    def _start(self, model: Tensors) -> None:
        if self._pool is None:
            torch = sys.modules.get("torch")
            reason = "this system cannot fork processes" if not hasattr(os, "fork") else ""
            if torch is not None and torch.cuda.is_initialized():
                reason = "torch has begun to use a GPU, which a fork of this process could not"
            if reason:
                self._give_up(reason)
                return
            self._model = SharedTensors(Manifest.of(model))
            self._pool = ProcessPool(1, self._serve)
        if self._model is not None:
            self._model.write(model)

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _give_up(self, reason: str) -> None:
        self._left = 0
        warnings.warn(f"whether the learner keeps state is not checked: {reason}", SimulationWarning, stacklevel=2)

    def _compare(self, *, earlier: bool = False) -> None:
        """SimulationError where the second training has given other bits. Waits for it."""
        job, wanted = self._job, self._found
        if self._pool is None or job is None or wanted is None:
            return
        self._found = None
        until = time.monotonic() + _PATIENCE_S
        try:
            while not self._pool.has(self._task) and time.monotonic() < until:
                time.sleep(0.002)
            body = self._pool.answers[self._task].body if self._pool.has(self._task) else {}
        except SimulationError as error:
            body = {"failed": str(error)}
        if "digests" not in body:
            self._give_up(body.get("failed", f"the second training of a client did not end in {_PATIENCE_S:g} s"))
            return
        if body["digests"] != [wanted, wanted]:
            raise SimulationError(_sentence(job, earlier, body["changed"][:5]))
        if not self._left:
            self._end()

    def _serve(self, number: int, channel: Channel) -> None:
        """The process that never trains: each task is done in a fork of it."""
        while (message := channel.receive()) is not None:
            for task in message["tasks"]:
                child = os.fork()
                if child == 0:
                    self._retrain(task, channel)
                if os.waitpid(child, 0)[1]:
                    channel.send({"answers": [{"task": task["task"], "failed": "the second training ended by itself"}]})

    def _retrain(self, task: dict[str, Any], channel: Channel) -> None:
        status = 1
        try:
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(1)
            before = state_of(self._kernel.learner)
            model = {} if self._model is None else self._model.view()
            job = Job(**task["job"] | {"stack": tuple(task["job"]["stack"])})
            found = [self._kernel.train(model, job) for _ in range(2)]
            after = state_of(self._kernel.learner)
            body: dict[str, Any] = {"task": task["task"]}
            body["changed"] = [what for what, mark in after.items() if before.get(what) != mark]
            body["digests"] = ["" if isinstance(one, CannotTrain) else one.done.digest for one in found]
            channel.send({"answers": [body]})
            status = 0
        finally:
            os._exit(status)


def _sentence(job: Job, earlier: bool, changed: Sequence[str]) -> str:
    when = f"as in round {job.round} of an earlier call" if earlier else f"in round {job.round}"
    more = ", or it, the client's data or a library is not what it was then" if earlier else ""
    where = f" While it trained it changed {', '.join(changed)}." if changed else ""
    return (
        f"client {job.device!r} was trained again {when}, in a fresh process from the same inputs, and gave other "
        "bits: the learner keeps state from one training to the next, changes data in place, or draws chance of its own"
        f"{more}.{where} A resumed run, or another engine, would give another model. Where that is meant, set "
        "deterministic = False on the learner"
    )


# ------------------------------------------------------------ the plain values that a learner keeps
# The plain values that a learner keeps, by name: those that a training changes are likely where its state is.
#
# Looked at are values (numbers, texts, arrays, torch tensors, and lists, sets and dicts of these) in the learner's own
# attributes and those of its class, in the arguments of ``functools.partial``, and of the learner that is a function,
# of its methods ``train`` and ``__call__``, and of functions among its attributes: default values, the variables of
# enclosing functions, and the global variables that their code names, but for values above 16 MiB. ``checked`` finds
# state in any other place too, and cannot name it.


_LARGEST_BYTES = 1 << 24
"""Larger values of variables are data that a function looks at; to compare them would take longer than to train."""


def state_of(learner: Any) -> dict[str, bytes]:
    """What is compared, in words -> digest of its value."""
    found = {}
    for what, _, value in _values(learner):
        digest = hashlib.blake2b(digest_size=16)
        if value is not None and _added(digest, value):
            found[what] = digest.digest()
    return found


def _values(learner: Any) -> Iterator[tuple[str, str, Any]]:
    """(what it is, name, value) of the learner's attributes, and of the variables that its functions name."""
    while isinstance(learner, partial):
        for place, value in [*enumerate(learner.args, 1), *learner.keywords.items()]:
            yield f"the argument {place} of functools.partial", str(place), value
        learner = learner.func
    for owner in reversed(type(learner).__mro__):
        for name, value in vars(owner).items():
            if not name.startswith("__") and not _is_large(value):
                yield f"the attribute {name!r} of the class {owner.__name__}", name, value
    attributes = getattr(learner, "__dict__", {})
    for name, value in attributes.items():
        yield f"its attribute {name!r}", name, value
    nested = [item for value in attributes.values() if isinstance(value, Mapping) for item in value.values()]
    methods = [getattr(getattr(learner, name, None), "__func__", None) for name in ("train", "__call__")]
    for function in (learner, *methods, *attributes.values(), *nested):
        if isinstance(function, FunctionType):
            yield from _variables(function)


def _variables(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    """The default values of a function, and the variables of enclosing functions and the global ones that its code
    names."""
    code, defaults = function.__code__, function.__defaults__ or ()
    last = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    for name, value in [*zip(last, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]:
        if not _is_large(value):
            yield f"the default value of the argument {name!r} of {function.__name__}", name, value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if not _is_large(value):
            yield f"the variable {name!r} of the function around {function.__name__}", name, value
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        if not _is_large(value := function.__globals__[name]):
            yield f"the global variable {name!r}", name, value


def _names(code: CodeType) -> set[str]:
    """The names that a code, and the functions that are defined in it, look up."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _is_large(value: Any) -> bool:
    return _bytes(value, _LARGEST_BYTES) > _LARGEST_BYTES


def _bytes(value: Any, most: int) -> int:
    """About how many bytes a plain value has. It stops counting above ``most``."""
    if not isinstance(value, dict | list | tuple | set | frozenset):
        size = getattr(value, "nbytes", 8)  # of a class that has it: a descriptor
        return size if isinstance(size, int) else 8
    total = 0
    for item in value.values() if isinstance(value, dict) else value:
        total += _bytes(item, most - total)
        if total > most:
            break
    return total


def _added(digest: Any, value: Any) -> bool:
    """Whether the value is plain; it is then in the digest."""
    if isinstance(value, bool | int | float | complex | str | bytes) or value is None:
        digest.update(repr(value).encode())
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy() if value.layout is torch.strided else None
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return False
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        return True
    items: Any = value.items() if isinstance(value, Mapping) else value
    if isinstance(value, dict | list | tuple | set | frozenset):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        if isinstance(value, set | frozenset):
            items = sorted(value, key=repr)
        plain = [_added(digest, item) for item in items]
        return all(plain)
    return False


# ------------------------------------------------------------ what a run's folder notes
# The training that a run's folder notes for a call that resumes it: a client's job, its model, its update's digest.
#
# It is no part of the run: without it a resumed run is the same, and is not held against what was trained before.


_FILE = "{run}.noted.json"


def note(folder: Path, run: str, model: str, job: Job, digest: str) -> None:
    """Replaces what is noted of this run. ``model``: digest of the checkpoint from which the client trained."""
    body = {"model": model, "job": asdict(job), "digest": digest}
    write_private(folder / _FILE.format(run=run), json.dumps(body).encode())


def noted(folder: Path, run: str) -> tuple[str, Job, str] | None:
    """(model, job, digest) of what was noted last; None where that cannot be read."""
    try:
        body = json.loads((folder / _FILE.format(run=run)).read_bytes())
        job = Job(**body["job"] | {"stack": tuple(body["job"]["stack"])})
        return str(body["model"]), job, str(body["digest"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
