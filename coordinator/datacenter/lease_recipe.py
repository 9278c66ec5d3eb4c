"""Translates a leased datacenter round into a training job: the plan's section has the recipe's names."""

from __future__ import annotations

from client_sdk.protocol.workers import Lease
from coordinator.datacenter.recipe import Recipe

MOST_BETWEEN_SAVES = 100
"""Most steps between two saved ones, where no number is given."""


def recipe_of(lease: Lease) -> Recipe:
    """The recipe of the round's plan.

    The order of the data is drawn by the task's seed plus the version that training starts from: each round of a run
    sees the data in another order, and a round that is started again in the same one. Parameters may be left unused, as
    devices may leave them. ValueError where the plan cannot be trained.
    """
    task = lease.task
    return Recipe.model_validate(
        {
            **lease.datacenter.model_dump(exclude={"data", "nproc"}),
            "max_grad_norm": task.max_grad_norm,
            "unused_parameters": True,
            "averaged": None if task.averaged == ("*",) else task.averaged,
            "seed": (task.seed + lease.checkpoint.version) % 2**63,
        }
    )


def steps_between_saves(steps: int, wanted: int | None) -> int:
    """Steps between two saves in a round of ``steps``: ``wanted``, else a tenth of the round, MOST_BETWEEN_SAVES at
    most."""
    return wanted or max(1, min(MOST_BETWEEN_SAVES, steps // 10))


def examples_in(steps: int, batch: int, examples: int) -> int:
    """How many examples ``steps`` batches hold, repeats counted: an epoch's last batch holds the remaining ones."""
    epochs, rest = divmod(steps, -(-examples // batch))
    return epochs * examples + rest * batch
