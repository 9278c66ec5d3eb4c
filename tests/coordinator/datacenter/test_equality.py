"""N ranks compute what one process computes at the global batch: to 1e-10 after 20 steps in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Learner
from client_sdk.tensors import Tensors
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import GlobalOrder, train
from tests.coordinator.datacenter.models import (
    Half,
    IdleRows,
    Sometimes,
    Sparse,
    examples,
    largest_difference,
    learner_of,
    plain,
    with_momentum,
)
from tests.coordinator.datacenter.ranks import Group, together
from tests.rotating import in_parts

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

STEPS = 20
TOLERANCE = 1e-10
BASE = {"steps": STEPS, "learning_rate": 0.05, "seed": 7}
# 50 examples: a batch of 12 leaves 2 for the last of an epoch, fewer than 4 ranks; 10 leaves nothing, and 4 ranks have
# 3, 3, 2 and 2 of it.
CASES: dict[str, dict[str, Any]] = {
    "even": {"batch_size": 10},
    "uneven": {"batch_size": 12},
    "accumulation": {"batch_size": 10, "accumulate": 2},
    "uneven with accumulation": {"batch_size": 12, "accumulate": 3},
    "momentum": {"batch_size": 12, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3},
    "clipping": {"batch_size": 12, "max_grad_norm": 0.3},
    "small buckets": {"batch_size": 12, "bucket_mb": 0.0001},
    "warm-up and decay": {"batch_size": 12, "linear_scaling": True, "warmup_steps": 5, "decay": "cosine"},
    "lars": {"batch_size": 12, "optimizer": "lars", "trust_coefficient": 0.05, "weight_decay": 1e-4},
    "lamb": {"batch_size": 12, "optimizer": "lamb", "learning_rate": 0.02, "weight_decay": 1e-2},
}


def recipe(case: str) -> Recipe:
    return Recipe(**{**BASE, **CASES[case]})


OWN = "the learner's own momentum"
LEARNERS: dict[str, tuple[Learner, dict[str, Any]]] = {
    OWN: (with_momentum(), {"batch_size": 12}),
    "sparse": (learner_of(Sparse), {"batch_size": 12}),
    "sparse with momentum and decay": (
        learner_of(Sparse),
        {"batch_size": 12, "optimizer": "sgd", "weight_decay": 1e-3},
    ),
    "sparse with lars": (learner_of(Sparse), {"batch_size": 12, "optimizer": "lars", "accumulate": 2}),
    "sparse with lamb": (learner_of(Sparse), {"batch_size": 12, "optimizer": "lamb", "max_grad_norm": 0.3}),
    "never used, with momentum and decay": (
        learner_of(Half),
        {"batch_size": 12, "optimizer": "sgd", "weight_decay": 1e-2, "unused_parameters": True},
    ),
    "sparse rows never used": (learner_of(IdleRows), {"batch_size": 12, "unused_parameters": True, "accumulate": 2}),
    "sometimes unused, with momentum and decay": (
        learner_of(Sometimes),
        {"batch_size": 4, "optimizer": "sgd", "weight_decay": 1e-2, "unused_parameters": True, "accumulate": 2},
    ),
    "sometimes unused": (learner_of(Sometimes), {"batch_size": 4, "unused_parameters": True}),
}
BY_WORLD = {2: [*CASES, *LEARNERS], 4: ["even", "uneven", "uneven with accumulation"]}


def many(group: Group, first: Tensors, cases: list[str]) -> dict[str, tuple[Tensors, float]]:
    """Many cases in one group, since starting one takes seconds."""
    found = {}
    for case in cases:
        if case in LEARNERS:
            learner, fields = LEARNERS[case]
            model, report = train(learner, learner.initial(1), examples(), Recipe(**{**BASE, **fields}), group=group)
            found[case] = (model, report.loss)
            continue
        model, report = train(plain(), first, examples(), recipe(case), group=group)
        assert (report.steps, report.world) == (STEPS, group.world)
        found[case] = (model, report.loss)
    return found


@cache
def by_ranks(world: int) -> list[dict[str, tuple[Tensors, float]]]:
    return together(world, many, plain().initial(1), BY_WORLD[world])


@cache
def alone() -> dict[str, tuple[Tensors, float]]:
    return many(Group(), plain().initial(1), [*CASES, *LEARNERS])


def bare(case: str) -> Tensors:
    """The case's checkpoint by a loop that knows nothing of this package but the order of the examples."""
    plan = recipe(case)
    x, y = (torch.from_numpy(array) for array in examples())
    module = plain().load(plain().initial(1))
    decay, momentum = (plan.weight_decay, plan.momentum) if plan.optimizer == "sgd" else (0.0, 0.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=plan.learning_rate, momentum=momentum, weight_decay=decay)
    order = GlobalOrder(len(x), plan.batch_size, plan.seed)
    for step in range(STEPS):
        batch = order.at(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()
    return plain().tensors(module)


@pytest.mark.parametrize("case", ["even", "uneven", "momentum", "accumulation"])
def test_one_process_equals_a_bare_loop(case: str) -> None:
    assert largest_difference(alone()[case][0], bare(case)) <= TOLERANCE


@pytest.mark.parametrize(
    ("world", "case"), in_parts(((n, case) for n, cases in BY_WORLD.items() for case in cases), of=2)
)
def test_ranks_equal_one_process_at_the_global_batch(world: int, case: str) -> None:
    one, loss = alone()[case]
    for rank, answers in enumerate(by_ranks(world)):
        assert isinstance(answers, dict), answers
        model, found = answers[case]
        assert largest_difference(model, one) <= TOLERANCE, rank
        assert found == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("world", [2, 4])
def test_all_ranks_hold_equal_bits(world: int) -> None:
    for case in BY_WORLD[world]:
        first = by_ranks(world)[0][case][0]
        for other in by_ranks(world)[1:]:
            assert all(np.array_equal(first[name], other[case][0][name]) for name in first)


def test_training_moved_the_model() -> None:
    """Or all equalities above would hold for a trainer that does nothing."""
    for case, (model, _) in alone().items():
        learner = LEARNERS[case][0] if case in LEARNERS else plain()
        assert largest_difference(model, learner.initial(1)) > 1e-3, case


def test_the_order_is_a_function_of_seed_and_step() -> None:
    there = GlobalOrder(50, 12, 7)
    forward = [there.at(step).tolist() for step in range(12)]
    assert [GlobalOrder(50, 12, 7).at(step).tolist() for step in reversed(range(12))] == forward[::-1]
    assert sorted(index for batch in forward[:5] for index in batch) == list(range(50))
    assert forward[:5] != forward[5:10]
    assert GlobalOrder(50, 12, 8).at(0).tolist() != forward[0]
    assert (there.smallest, GlobalOrder(50, 10, 7).smallest) == (2, 10)
