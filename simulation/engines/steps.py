"""How a simulation makes the local steps of its clients.

============= =========================================================================================================
steps         what it does
============= =========================================================================================================
exact         autograd, client by client: the bits of deployment
traced        graphs of loss and gradients, client by client (``client_sdk.learning.traced``)
channels_last the same, with convolutions' weights in that memory format
stacked-K     K clients at once, in one graph (``client_sdk.learning.stacked``)
============= =========================================================================================================

All but *exact* give updates that differ from it by the order of roundings. Each is held against it before round 1, on
the first three clients that the plan may select, one of them with a smaller last batch: where the relative L2
difference of an update is above ``CLOSE``, or the steps cannot be made so, they are *exact*. *fast* takes the one of
them that took the least time there, and *stacked* the fastest K. What was taken stands in the run's origin, and a call
that resumes the run takes the same: the choice may be another on the next day, and bits would be too.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from client_sdk.learners import train
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.engine.plan import Plan
from simulation.clients import Clients
from simulation.errors import SimulationWarning
from simulation.history.local_steps import EXACT, Steps

CLOSE = 1e-5
"""The largest relative L2 difference of an update."""
CHOICES = ("exact", "fast", "traced", "channels_last", "stacked")
_LANES = (4, 8, 16, 32, 64)
_CACHE_BYTES = 1 << 22
"""Of a stack's weights: larger ones do not fit into a core's cache, and stacking them gains nothing."""
_TRIALS = 3


def asked(steps: str) -> tuple[str, int]:
    """(kind, K) of what a user asks for; K is 0 where the user leaves it open. ValueError for an unknown name."""
    kind, dash, lanes = str(steps).partition("-")
    if kind not in CHOICES or (dash and (kind != "stacked" or not lanes.isdigit() or int(lanes) < 2)):
        raise ValueError(
            f"there are no local steps {steps!r}; there are {', '.join(CHOICES)}, and stacked-<clients at once>, 2 or "
            "more"
        )
    return kind, int(lanes or 0)


class Stepper:
    """Trains clients in one way of making steps: ``train`` one, ``stack`` several."""

    def __init__(self, learner: Any, steps: Steps) -> None:
        self.steps = steps
        self.learner = learner
        self._loop: dict[str, Any] = {}
        self.graphs: Any = None
        self.refused = ""
        """Why clients were not stacked, the first reason; empty where all were."""
        self._stacks: Any = None
        if steps.kind == "exact":
            return
        from client_sdk.learning.local_sgd import local_sgd
        from client_sdk.learning.stacked import Stacks
        from client_sdk.learning.traced import Graphs

        if steps.kind == "channels_last":
            self.learner = dataclasses.replace(learner, model=partial(_channels_last, learner.model))
        self.graphs = Graphs(learner.loss)
        self._loop = {"loop": partial(local_sgd, graphs=self.graphs)}
        if steps.kind == "stacked":
            self._stacks = Stacks(learner.loss, steps.lanes)

    def train(self, model: Tensors, data: Any, task: Task, **more: Any) -> Update:
        """See ``client_sdk.learners.train``."""
        return train(self.learner, model, data, task, seeds=True, **self._loop, **more)

    def stack(
        self, model: Tensors, clients: Sequence[tuple[str, Any]], task: Task, round: int
    ) -> list[Update | Exception]:
        """What ``train`` gives these clients, (device, data), or the error that it raises; together where that can
        be."""
        from client_sdk.learning.traced import NotTraced

        try:
            found: list[Update | Exception] = self.learner.train_stack(
                model, clients, task, round=round, stacks=self._stacks
            )
            return found
        except NotTraced as error:
            if not self.refused:
                self.refused = str(error)
                text = f"in round {round} clients could not be stacked, and were trained one by one: {error}"
                warnings.warn(text, SimulationWarning, stacklevel=2)
            return [self._alone(model, data, task, device, round) for device, data in clients]

    def all(
        self, model: Tensors, clients: Sequence[tuple[str, Any]], task: Task, round: int
    ) -> list[Update | Exception]:
        """The updates of these clients, in stacks where that is the way."""
        lanes = self.steps.lanes
        if lanes == 1:
            return [self._alone(model, data, task, device, round) for device, data in clients]
        stacks = [clients[start : start + lanes] for start in range(0, len(clients), lanes)]
        return [update for stack in stacks for update in self.stack(model, stack, task, round)]

    def _alone(self, model: Tensors, data: Any, task: Task, device: str, round: int) -> Update | Exception:
        try:
            return self.train(model, data, task, device=device, round=round, deadline=None)
        except Exception as error:  # noqa: BLE001 - a user's learner may raise anything
            return error


def _channels_last(model: Callable[[], Any]) -> Any:
    import torch

    return model().to(memory_format=torch.channels_last)


# ------------------------------------------------------------ the trial


def chosen(steps: str, learner: Any, plan: Plan, clients: Clients, model: Tensors) -> Stepper:
    """Makes steps in the way that the user asks for, or exactly, and says why. A stack has no more clients than a
    round. Processes that are forked later have the graphs of the trial."""
    kind, lanes = asked(steps)
    if kind == "exact":
        return Stepper(learner, EXACT)
    from client_sdk.learning.learner import Learner

    if not isinstance(learner, Learner):
        return Stepper(
            learner, Steps(reason="the learner is no client_sdk.learning.Learner, and makes its steps itself")
        )
    try:
        few = list(islice(_selectable(clients, plan.task, plan.cohort.min_examples), 3))
        return _tried(kind, lanes, learner, plan.task, few, model, plan.cohort.select)
    except Exception as error:  # noqa: BLE001 - a user's learner may raise anything, and will raise it in round 1
        return Stepper(learner, Steps(reason=f"they could not be tried, {type(error).__name__}: {error}"))


def _tried(
    kind: str, lanes: int, learner: Any, task: Task, clients: list[tuple[str, Any]], model: Tensors, most: int
) -> Stepper:
    if not clients:
        return Stepper(learner, Steps(reason="no client has as many examples as the plan asks for"))
    plain = _Trial(Stepper(learner, EXACT), model, clients, task)
    best, seconds = plain.stepper, plain.seconds() if kind == "fast" else float("inf")
    ways = list(_ways(kind, lanes, model, most))
    reason = "" if ways else "so many models do not fit into a cache, or a round has not so many clients"
    stackable = True
    for way in ways:
        if way.kind == "stacked" and not stackable:
            continue
        trial = _Trial(Stepper(learner, way), model, clients, task)
        if refused := trial.differs(plain):
            reason = reason or refused
            stackable = not trial.stepper.refused  # where a few cannot be stacked, more cannot
        elif len(ways) == 1 and kind != "fast":
            return trial.stepper
        elif (took := trial.seconds()) < seconds:
            best, seconds = trial.stepper, took
    return best if best is not plain.stepper else Stepper(learner, Steps(reason=reason or "nothing was faster"))


def _ways(kind: str, lanes: int, model: Tensors, most: int) -> Iterator[Steps]:
    if kind in ("fast", "traced"):
        yield Steps("traced")
    if kind == "channels_last" or (kind == "fast" and any(array.ndim == 4 for array in model.values())):
        yield Steps("channels_last")
    if kind == "stacked" and lanes:
        yield Steps("stacked", lanes)
    elif kind in ("fast", "stacked"):
        size = sum(array.nbytes for array in model.values())
        yield from (Steps("stacked", one) for one in _LANES if one <= most and one * size <= _CACHE_BYTES)


def _selectable(clients: Clients, task: Task, least: int) -> Iterator[tuple[str, Any]]:
    """(device, data) of clients with as many examples as the plan asks for, in their order, one example less where that
    makes the last batch a smaller one: also than the power of two to which a stack fills up batches of clients that
    have less than one batch. Clients of ``least`` examples keep them all."""
    from client_sdk.data import training_part
    from client_sdk.learning.data import ArrayExamples, as_examples

    for number in range(min(len(clients), 1000)):
        if clients.holdings.examples(number) >= least:
            device = clients.id(number)
            data: Any = training_part(clients[device])
            examples = as_examples(data)
            count = len(examples)
            is_whole = count % task.batch_size == 0 and not task.drop_last
            if count < task.batch_size:
                is_whole = count.bit_count() == 1
            if isinstance(examples, ArrayExamples) and count > least and is_whole:
                data = examples.x[: count - 1], examples.y[: count - 1]
            yield device, data


class _Trial:
    def __init__(self, stepper: Stepper, model: Tensors, clients: Sequence[tuple[str, Any]], task: Task) -> None:
        self.stepper, self._model, self._task = stepper, model, task
        lanes = stepper.steps.lanes
        many = (clients[place % len(clients)] for place in range(lanes))
        self._clients = clients if lanes == 1 else [*clients, *_renamed(islice(many, len(clients), None))]
        self._few = len(clients)

    def differs(self, plain: _Trial) -> str:
        """Why these steps cannot be taken for the plain ones, as a part of a sentence; empty where they can."""
        found = self.updates()
        if self.stepper.refused or self.stepper.graphs.reason:
            return self.stepper.refused or str(self.stepper.graphs.reason)
        for one, other in zip(found[: self._few], plain.updates(), strict=True):
            ours, theirs = _flat(one), _flat(other)
            difference, norm = float(np.linalg.norm(ours - theirs)), float(np.linalg.norm(theirs))
            if not difference <= CLOSE * norm:
                return f"an update differed by {difference / norm if norm else difference:.1g} of its norm"
        return ""

    def updates(self) -> list[Update]:
        """Of the clients. Raises what the first of them raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SimulationWarning)  # the history says why
            found: list[Any] = self.stepper.all(self._model, self._clients, self._task, 1)
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    def seconds(self) -> float:
        """CPU seconds of a client: the least of a few trials, after one that is not counted."""
        self.updates()
        took = []
        for _ in range(_TRIALS):
            began = time.process_time()
            self.updates()
            took.append((time.process_time() - began) / len(self._clients))
        return min(took)


def _renamed(clients: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The clients under names of their own."""
    return ((f"{device} {number}", data) for number, (device, data) in enumerate(clients))


def _flat(update: Update) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.concatenate([array.ravel() for array in update.delta.values()]).astype(np.float64)
