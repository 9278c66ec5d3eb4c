"""Repeats a run in the bare loop: the same initial checkpoint, the same cohorts, the same shards.

It reads the run through the operators' API.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from client_sdk.data import Examples
from client_sdk.http.paging import PAGE, every_page
from client_sdk.learners import Catalogue
from client_sdk.learning import Learner, PlainSGD, batch_order
from client_sdk.protocol.names import copied
from client_sdk.protocol.operators import RoundView
from client_sdk.tensors import Tensors, from_bytes
from coordinator.engine.plan import Plan
from simulation.fleet.split import Split, cut

if TYPE_CHECKING:  # its HTTP client takes long to import, and the bare loop alone needs none
    from client_sdk.http.operator import OperatorClient

# ------------------------------------------------------------ the bare loop
# The bare loop: federated averaging as a plain loop on one machine, for comparison with Quorate's rounds.
#
# It uses plain ``torch.optim.SGD`` and plain sums in float64, and no engine. With a federated run it shares only the
# inputs of the comparison: the initial checkpoint, the cohorts, the shards, the hyperparameters, and the order of a
# device's batches, which is public (``client_sdk.learning.batch_order``).
#
# McMahan et al. 2017, arXiv:1602.05629, Algorithm 1::
#
#     for each round t:  w_{t+1} <- sum over k in S_t of (n_k / n) w_k,   n = sum over k in S_t of n_k
#     with w_k:          w <- w - lr * grad l(w; b), for each batch b of each epoch, from w_t


@dataclass(frozen=True, kw_only=True)
class LoopRecipe:
    """The model and its hyperparameters, named as in a plan."""

    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], torch.Tensor]
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int = 0
    """Seed of the shuffles: the task's."""
    weigh: Callable[[int], int] = int
    """Examples -> weight."""
    server_learning_rate: float = 1.0
    """w_{t+1} <- w_t + rate * (mean - w_t); 1 is the mean itself."""
    statistics: Collection[str] = ()
    """Tensors that get the mean itself, such as BatchNorm's running mean."""


@dataclass(frozen=True, kw_only=True)
class LoopPart:
    """One device's part in a committed round."""

    round: int
    device: str
    """The device's id: the shuffles depend on it."""
    shard: int


def fedavg(
    recipe: LoopRecipe, initial: Tensors, shards: Sequence[Examples], rounds: Iterable[Sequence[LoopPart]]
) -> Iterator[dict[str, torch.Tensor]]:
    """The global model after each round, as a state dict. ``rounds``: the parts that counted, round by round.

    Raises ValueError for a round without any part, RuntimeError (from torch) where ``initial`` is another model's.
    """
    module = recipe.model()
    world = {name: torch.from_numpy(np.array(array)) for name, array in initial.items()}
    for parts in rounds:
        if not parts:
            raise ValueError("a round needs at least one device")
        total = 0
        sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in world.items()}
        for part in sorted(parts, key=lambda part: part.device):
            shard = shards[part.shard]
            weight = recipe.weigh(len(shard))
            module.load_state_dict(world)
            _train(module, recipe, shard, part)
            for name, tensor in module.state_dict().items():
                sums[name] += weight * tensor.double()
            total += weight
        rates = {name: 1.0 if name in recipe.statistics else recipe.server_learning_rate for name in world}
        world = {
            name: (before.double() + rates[name] * (sums[name] / total - before)).to(before.dtype)
            for name, before in world.items()
        }
        yield world


@torch.no_grad()
def accuracy(recipe: LoopRecipe, world: dict[str, torch.Tensor], test: Examples) -> float:
    """The fraction of ``test`` whose label has the largest logit."""
    module = recipe.model()
    module.load_state_dict(world)
    module.eval()
    guesses = module(torch.from_numpy(test.x)).argmax(dim=1)
    return float((guesses == torch.from_numpy(test.y)).double().mean())


def _train(module: nn.Module, recipe: LoopRecipe, shard: Examples, part: LoopPart) -> None:
    """Local SGD, in place."""
    module.train()
    x, y = torch.from_numpy(shard.x), torch.from_numpy(shard.y)
    optimizer = torch.optim.SGD(module.parameters(), lr=recipe.learning_rate)
    batches = batch_order(len(y), recipe.batch_size, seed=recipe.seed, round=part.round, device=part.device)
    for _ in range(recipe.epochs * -(-len(y) // recipe.batch_size)):
        chosen = next(batches)
        optimizer.zero_grad()
        recipe.loss(module(x[chosen]), y[chosen]).backward()
        optimizer.step()


# ------------------------------------------------------------ the comparison


def bare_accuracy(operator: OperatorClient, run: str, split: Split, on_round: Callable[[int, float], None]) -> float:
    """The accuracy (0 to 1) on the data's test part that the bare loop has after the run's last committed round.

    ``on_round`` gets the number and accuracy of each. ValueError where the plan uses a field that the bare loop does
    not support, or the data has no test part.
    """
    torch.set_num_threads(1)  # for such a small model, more threads only wait for each other
    plan = Plan.parse(operator.run(run).plan)
    recipe = recipe_of(plan)
    rounds = [view for view in operator.rounds(run, limit=plan.finish.rounds * 10) if view.status == "committed"]
    parts = counted(operator, run, split, rounds)
    initial = from_bytes(operator.checkpoint(operator.checkpoints(run)[0].digest))
    data, shards = cut(split)
    if data.test is None:
        raise ValueError(f"{split.data} has no test part to compare accuracies on.")
    found = 0.0
    by_number = [shards[number] for number in range(split.devices)]
    for view, world in zip(
        rounds, fedavg(recipe, initial, by_number, [parts[view.round] for view in rounds]), strict=True
    ):
        found = accuracy(recipe, world, data.test)
        on_round(view.round, found)
    return found


def recipe_of(plan: Plan) -> LoopRecipe:
    """The plan's hyperparameters for the bare loop. ValueError, with the first field that it does not support."""
    task, rule = plan.task, plan.aggregation
    learner: Any = Catalogue().load(task.learner)
    if not isinstance(learner, Learner) or learner.optimizer is not PlainSGD:
        raise ValueError(
            f"The bare loop trains learners of client_sdk.learning with plain SGD only, not {task.learner}."
        )
    lacking = {
        "task.steps": task.steps is not None,
        "task.mu": task.mu > 0,
        "task.max_grad_norm": task.max_grad_norm is not None,
        "task.time_budget_s": task.time_budget_s is not None,
        "task.averaged": task.averaged != ("*",) or learner.averaged != ("*",),
        "aggregation.rule": rule.rule != "mean",
        "aggregation.clip_norm": rule.clip_norm is not None,
        "aggregation.statistics_range": rule.statistics_range is not None,
        "aggregation.inverse_participation": rule.inverse_participation is not None,
        "aggregation.step_bits": rule.step_bits is not None,
        "aggregation.server_optimizer": rule.server_optimizer != "average",
    }
    for name, used in lacking.items():
        if used:
            raise ValueError(f"The bare loop does not support {name}: leave it out of the plan to compare.")
    equal, cap = plan.weighting == "equal", rule.weight_cap
    return copied(
        LoopRecipe,
        task,
        rule,
        model=learner.model,
        loss=learner.loss,
        epochs=task.epochs or 1,
        weigh=lambda examples: 1 if equal else min(examples, cap),
        statistics=learner.roles().keys(),
    )


def counted(operator: OperatorClient, run: str, split: Split, rounds: list[RoundView]) -> dict[int, list[LoopPart]]:
    """Round -> the parts that its commit counted: the log's reports of that round.

    Raises ValueError where their number differs from the round's.
    """
    devices = every_page(lambda last: operator.devices(after="" if last is None else last.device, limit=PAGE))
    numbers = {view.device: split.number(view.label) for view in devices}
    parts: dict[int, list[LoopPart]] = {view.round: [] for view in rounds}
    for event in operator.events(run):
        if event.kind == "Reported" and event.body["round"] in parts:
            device = str(event.body["device"])
            number = int(str(event.body["round"]))
            parts[number].append(LoopPart(round=number, device=device, shard=numbers[device]))
    for view in rounds:
        if len(parts[view.round]) != view.funnel.reported:
            raise ValueError(
                f"Round {view.round} counted {view.funnel.reported}, the log has {len(parts[view.round])}."
            )
    return parts
