"""A leased datacenter round as a training job: what the plan's words mean to whoever trains.

Knows the words of leases and those of jobs, and arithmetic. It has never heard of processes, folders or HTTP.
"""

from __future__ import annotations

from client_sdk.protocol.workers import Lease
from coordinator.datacenter.recipe import Recipe

MOST_BETWEEN_SAVES = 100
"""Steps between two that are saved, at most, where nobody says how many."""
_PRECISION = {"float32": "full", "bfloat16": "bf16", "float16": "fp16"}


def recipe_of(lease: Lease) -> Recipe:
    """What the round's plan asks for.

    The order of the data is drawn by the task's seed plus the version that training starts from: each round of a run
    sees the data in another order, and a round that is begun anew in the same one. Parameters may be left unused, as
    devices may leave them. ValueError where the plan cannot be trained.
    """
    work, task = lease.datacenter, lease.task
    return Recipe.model_validate(
        {
            "steps": work.steps,
            "batch": work.batch_size,
            "accumulate": work.accumulate,
            "learning_rate": work.learning_rate,
            "optimizer": work.optimizer,
            "momentum": work.momentum,
            "weight_decay": work.weight_decay,
            "warmup_steps": work.warmup_steps,
            "precision": _PRECISION[work.precision],
            "max_grad_norm": task.max_grad_norm,
            "unused_parameters": True,
            "averaged": None if task.averaged == ("*",) else task.averaged,
            "seed": (task.seed + lease.checkpoint.version) % 2**63,
        }
    )


def steps_between_saves(steps: int, asked: int | None) -> int:
    """How often a round of ``steps`` saves what it has: as asked, else ten times, and every MOST_BETWEEN_SAVES steps at
    least."""
    return asked or max(1, min(MOST_BETWEEN_SAVES, steps // 10))


def examples_in(steps: int, batch: int, examples: int) -> int:
    """How many examples ``steps`` batches hold, repeats counted: an epoch's last batch holds what is left."""
    epochs, rest = divmod(steps, -(-examples // batch))
    return epochs * examples + rest * batch
