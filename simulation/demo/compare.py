"""Repeats a run in the bare loop: the same initial checkpoint, the same cohorts, the same shards.

It reads the run through the operators' API and calls ``simulation.demo.bare_loop``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from client_sdk.http.operator import OperatorClient
from client_sdk.learners import Catalogue
from client_sdk.learning import Learner, PlainSGD
from client_sdk.protocol.operators import RoundView
from client_sdk.tensors import from_bytes
from coordinator.engine.plan import Plan
from simulation.demo.bare_loop import LoopPart, LoopRecipe, accuracy, fedavg
from simulation.fleet.split import Split, cut

_PAGE = 1000


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
        "aggregation.server_optimizer": rule.server_optimizer != "average",
    }
    for name, used in lacking.items():
        if used:
            raise ValueError(f"The bare loop does not support {name}: leave it out of the plan to compare.")
    equal, cap = rule.weighting == "equal", rule.weight_cap
    return LoopRecipe(
        model=learner.model,
        loss=learner.loss,
        epochs=task.epochs or 1,
        batch_size=task.batch_size,
        learning_rate=task.learning_rate,
        seed=task.seed,
        weigh=lambda examples: 1 if equal else min(examples, cap),
        server_learning_rate=rule.server_learning_rate,
        statistics=learner.roles().keys(),
    )


def counted(operator: OperatorClient, run: str, split: Split, rounds: list[RoundView]) -> dict[int, list[LoopPart]]:
    """Round -> the parts that its commit counted: the log's reports of that round.

    Raises ValueError where their number differs from the round's.
    """
    numbers: dict[str, int] = {}
    after = ""
    while page := operator.devices(after=after, limit=_PAGE):
        numbers.update({view.device: split.number(view.label) for view in page})
        after = page[-1].device
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
