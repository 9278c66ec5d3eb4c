"""A torchrun group as one device: its processes train a round together and submit one update.

A hospital or a silo with several GPUs is one device of the federation: between devices models are averaged rarely,
within this one gradients are averaged at every step. Rank 0 holds the device's session (``Client``); the other ranks
follow it.

::

    rank 0     Client -> GroupTrainer.train: post the assignment in the group's store -> train together -> Update
    the rest   follow(): wait for the next assignment -> train together -> discard the update

The update is the one that a single process would have made: the task's batch is the *global* batch, its order the one
that (seed, round, device) gives, and each step's gradient that of the mean over it. Only layers that draw numbers
(dropout) draw others. Only rank 0 reads the clock and decides for all ranks when training ends.

With ``shard`` (``sharding``) a copy of the model is divided over the ranks, and the update is gathered from it.

``client_sdk.learning.collective`` is the command. Where the group fails, the process ends with the round unfinished:
the launcher starts all ranks again, and the device's session continues with its saved assignment.
"""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

import torch
from torch import nn

from client_sdk.chance import derive_seed
from client_sdk.data import held_out_part, training_part
from client_sdk.isolation import seeded
from client_sdk.learners import Catalogue, LearnerError, LearnerTrainer, require_roles, roles_of
from client_sdk.learning import state
from client_sdk.learning.budget import TimeLimit
from client_sdk.learning.data import TensorExamples
from client_sdk.learning.errors import OutOfTime
from client_sdk.learning.evaluation import defined, explained
from client_sdk.learning.group import Group, GroupLost, Unreached
from client_sdk.learning.learner import Learner
from client_sdk.learning.local_sgd import LocalResult, OptimizerFactory, PlainSGD, add_proximal, batch_order
from client_sdk.learning.measures import Measurement
from client_sdk.learning.sharding import FullShards, GradientShards
from client_sdk.learning.sync_sgd import GlobalGradient, for_group
from client_sdk.protocol.devices import Assignment, Task, Work
from client_sdk.tensors import Manifest, Roles, Tensors, from_bytes, to_bytes
from client_sdk.update import Update

log = logging.getLogger("quorate.group")

SHARDS: Mapping[str, type[GlobalGradient]] = {"none": GlobalGradient, "gradients": GradientShards, "full": FullShards}
"""What is divided over the ranks of a group: see ``sharding``."""
_SESSION_END = "over"
_LOOK_S = 0.1
"""Seconds between two checks of a follower for work. Waiting inside the store would print torch's warnings at every
timeout."""


@dataclass(eq=False)
class GroupTrainer:
    """The trainer of rank 0, for ``Client``: each ``train`` is done by all ranks of the group.

    ``stop``: the client's event; set where the group failed, so that the client stops without withdrawing. ``shard``:
    one of SHARDS, what of the model is divided over the ranks.
    ``close()`` ends the followers.
    """

    group: Group
    catalogue: Catalogue
    data: Any
    stop: Event = field(default_factory=Event)
    shard: str = "none"
    broke: GroupLost | None = None
    """Why the group is unusable; the process must then exit with code 1."""
    _posted: int = 0

    @property
    def learners(self) -> dict[str, str]:
        return self.catalogue.usable

    @property
    def examples(self) -> int:
        return LearnerTrainer(self.catalogue, self.data).examples

    def first_model(self, learner: str) -> Callable[[int], Tensors] | None:
        """See ``LearnerTrainer``."""
        return LearnerTrainer(self.catalogue, self.data).first_model(learner)

    def roles(self, learner: str, model: Manifest) -> Roles | None:
        """See ``LearnerTrainer``."""
        return roles_of(self.catalogue.load(learner), model)

    def train(self, assignment: Assignment, checkpoint: Tensors, device: str, deadline: Callable[[], float]) -> Update:
        """Trains on all ranks; parameters and result are those of ``Trainer.train``. Raises GroupLost, once
        ``stop`` is set, where a rank died or hangs."""
        require_roles(self.catalogue.load(assignment.task.learner), checkpoint, assignment)
        try:
            task = assignment.task.model_dump(mode="json")
            self._post({"task": task, "round": assignment.round, "device": device, "shard": self.shard})
            self.group.hand_out(to_bytes(checkpoint))
            return train_together(
                self.group,
                self.catalogue,
                self.data,
                assignment.task,
                checkpoint,
                round=assignment.round,
                device=device,
                deadline=deadline,
                shard=self.shard,
            )
        except GroupLost as lost:
            self.broke = lost
            self.stop.set()
            raise

    def close(self) -> None:
        """End the followers' work. Does nothing where the group failed."""
        if self.broke is None:
            self._post(None)

    def _post(self, work: Mapping[str, Any] | None) -> None:
        self._posted += 1
        if self.group.store is not None:
            with self.group.unbroken():
                self.group.store.set(f"work/{self._posted}", _SESSION_END if work is None else json.dumps(work))


def follow(group: Group, catalogue: Catalogue, data: Any) -> int:
    """Run the ranks other than 0: train what rank 0 is assigned, until it closes. Returns the number of rounds.

    Rank 0 reports a round that failed (an error of the learner, no time left); only GroupLost is raised.
    """
    rounds = 0
    while (work := _next_work(group, rounds + 1)) is not None:
        rounds += 1
        checkpoint = from_bytes(group.hand_out(None))
        task = Task.model_validate(work["task"])
        try:
            who = {name: work[name] for name in ("round", "device", "shard")}
            train_together(group, catalogue, data, task, checkpoint, **who)
        except Exception as error:
            if isinstance(error, GroupLost):
                raise
            log.debug("round %d of this group failed here: %s", rounds, error)
    return rounds


def train_together(
    group: Group,
    catalogue: Catalogue,
    data: Any,
    task: Task,
    checkpoint: Tensors,
    *,
    round: int,
    device: str,
    deadline: Callable[[], float] | None = None,
    shard: str = "none",
) -> Update:
    """One local round by all ranks, which call it together; the same update on each of them.

    The global generators of Python, numpy and torch are seeded by (seed, round, device, rank) meanwhile, and restored.
    ``data``: all of the device's data, on every rank. ``deadline`` counts on rank 0 only, and so does held-out
    scoring. Raises what ``Learner.train`` raises, on the rank it concerns, and RankFailed on the others; LearnerError
    where the task's learner is none that a group can train.
    """
    began = False

    def together(*args: Any, **options: Any) -> LocalResult:
        nonlocal began
        began = True
        group.agree(None)
        return group_sgd(*args, **options, group=group, shard=shard, blocks=learner.blocks)

    try:
        learner = _learner(catalogue, task.learner)
        train = partial(learner.train, checkpoint, training_part(data), task, device=device, round=round, loop=together)
        with seeded(task.seed, round, _who(device, group)):
            if group.rank == 0:
                return train(deadline=deadline, held_out=held_out_part(data))
            return train()
    except GroupLost:
        raise
    except Exception as error:
        if not began:
            group.agree(error)
        raise


def group_sgd(
    module: nn.Module,
    params: list[nn.Parameter],
    examples: TensorExamples,
    loss: Callable[[Any, Any], Any],
    optimizer: OptimizerFactory,
    task: Task,
    *,
    round: int,
    device: str,
    limit: TimeLimit,
    metrics: Mapping[str, Any],
    floating: torch.dtype,
    group: Group,
    shard: str = "none",
    blocks: Sequence[str] = (),
) -> LocalResult:
    """``local_sgd`` by a group: the same steps on the same batches, each batch split over the ranks.

    ``shard``: one of SHARDS. ``blocks``: ``Learner.blocks``. A divided model gives a parameter that the loss did not
    reach a gradient of zero, where a whole one gives it none.

    Every rank calls it with the same arguments, except ``limit``, which counts on rank 0. Raises as ``local_sgd``.
    """
    count, planned = len(examples), task.planned_steps(len(examples))
    group.same_data(count)
    rest = 0 if task.drop_last and count > task.batch_size else count % task.batch_size
    smallest = min(task.batch_size, rest or task.batch_size)
    whole = module if shard == "none" or group.alone else copy.deepcopy(module)
    if whole is not module:
        places = {id(one): name for name, one in module.named_parameters()}
        copies = dict(whole.named_parameters())
        params = [copies[places[id(one)]] for one in params]
    if whole is module:
        module.to(group.device)  # a divided one is moved block by block: the whole need not fit
    trained = for_group(whole, group, smallest=smallest)
    unreached = Unreached.ZERO if optimizer is PlainSGD else Unreached.ABSENT  # plain SGD does not move by zero
    measures = Measurement(metrics, loss) if metrics else None
    kind = GlobalGradient if group.alone else SHARDS[shard]
    options: dict[str, Any] = {"floating": floating, "measures": measures, "unreached": unreached, "blocks": blocks}
    gradient = kind(trained, params, loss, group, **options)
    params = gradient.params
    batches = batch_order(count, task.batch_size, seed=task.seed, round=round, device=device, drop_last=task.drop_last)
    received = [weight.detach().clone() for weight in params] if task.mu else []
    with explained("while it made the optimizer"):
        stepper = optimizer(params, lr=task.learning_rate)
    torch.random.default_generator.manual_seed(derive_seed("layers", task.seed, round, _who(device, group)))
    losses = weights = 0.0
    steps = seen = 0
    with torch.enable_grad():
        while group.decide(group.rank == 0 and steps < planned and limit.allows(steps)):
            batch = next(batches)
            total, weight = gradient.compute(examples, batch, steps)
            losses, weights = losses + total, weights + weight
            if task.mu:
                add_proximal(params, received, task.mu)
            if task.max_grad_norm is not None:
                gradient.clip(task.max_grad_norm, steps + 1)
            stepper.step()
            steps += 1
            seen += len(batch)
    for one in params:
        one.grad = None
    if whole is module:
        module.to("cpu")
    else:
        own = state.named_tensors(module)
        with torch.no_grad():
            for name, tensor in state.named_tensors(whole).items():
                own[name].copy_(gradient.whole(name, tensor))
    if not steps:
        raise OutOfTime("The time ran out before one step of training could be done.")
    work = Work(steps=steps, steps_planned=planned, epochs=seen / count, examples_seen=seen, complete=steps == planned)
    found = {"loss": losses / weights if weights else 0.0}
    return LocalResult(work, defined(found | (_of_all_ranks(measures, group) if measures is not None else {})))


def _who(device: str, group: Group) -> str:
    """Whose random numbers: those of rank 0 are the device's, as of one process."""
    return f"{device} rank {group.rank}" if group.rank else device


def _of_all_ranks(measures: Measurement, group: Group) -> dict[str, float]:
    """The metrics of the examples of all ranks, on each of them."""
    error, own = None, b""
    try:
        own = measures.exported()
    except Exception as found:  # noqa: BLE001  (the other ranks must not wait for this one)
        error = found
    group.agree(error)
    parts = group.gather_bytes(own)
    with torch.no_grad(), explained("on all examples that it has trained on"):
        return {name: one.value for name, one in measures.absorbed(parts).results().items()}


def _learner(catalogue: Catalogue, name: str) -> Learner:
    learner = catalogue.load(name)
    if not isinstance(learner, Learner):
        raise LearnerError(f"The learner {name} is a {type(learner).__name__}: a group trains only a torch Learner.")
    return learner


def _next_work(group: Group, number: int) -> dict[str, Any] | None:
    """The assignment with this number, as soon as rank 0 posts it; None when there is no more."""
    if group.store is None:
        return None
    key = f"work/{number}"
    try:
        while not group.store.check([key]):
            time.sleep(_LOOK_S)
        posted = group.store.get(key).decode()
    except RuntimeError as error:
        raise GroupLost("The group's store is gone: rank 0 or the launcher died.") from error
    return None if posted == _SESSION_END else dict(json.loads(posted))
