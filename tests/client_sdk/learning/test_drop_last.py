"""``task.drop_last``: no batch of an epoch is smaller than the others, for models that cannot train on one example."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from client_sdk.learning import Learner, LearnerFailed, batch_order
from client_sdk.protocol.devices import Task

WHO = {"device": "d7", "round": 3}
NORMED = Learner(model=lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), loss=nn.functional.cross_entropy)


def test_repro_a_last_batch_of_one_example_ends_no_training(data, task):
    """21 examples by 4 leave one: BatchNorm refuses to train on it, and the client's error ended the run."""
    start = NORMED.initial(0)
    with pytest.raises(
        LearnerFailed, match=r"on a batch of 1 .task.drop_last = true .*: .*more than 1 value per channel"
    ):
        NORMED.train(start, data, task(batch_size=4), **WHO)
    work = NORMED.train(start, data, task(batch_size=4, drop_last=True, epochs=2), **WHO).work
    assert (work.steps, work.steps_planned, work.examples_seen, work.complete) == (10, 10, 40, True)


def test_a_device_with_one_example_is_for_the_plan_to_leave_out(data, task):
    one = tuple(part[:1] for part in data)
    for drop_last in (False, True):
        with pytest.raises(LearnerFailed, match=r"on a batch of 1 .cohort.min_examples = 2 "):
            NORMED.train(NORMED.initial(0), one, task(batch_size=4, drop_last=drop_last), **WHO)


def test_only_a_smaller_last_batch_is_left_out():
    orders = {n: batch_order(n, 8, seed=1, drop_last=True, **WHO) for n in (5, 16, 21)}
    sizes = {n: [len(batch) for batch in itertools.islice(order, 3)] for n, order in orders.items()}
    assert sizes == {5: [5, 5, 5], 16: [8, 8, 8], 21: [8, 8, 8]}
    kept, whole = batch_order(21, 8, seed=1, drop_last=True, **WHO), batch_order(21, 8, seed=1, **WHO)
    assert all(torch.equal(next(kept), next(whole)) for _ in range(2))
    assert len(next(whole)) == 5
    assert torch.equal(next(kept), next(whole)), "the next epoch is the same permutation"


@pytest.mark.parametrize("examples", [1, 5, 8, 15, 16, 21])
def test_planned_steps_are_the_batches_of_an_epoch(examples):
    order = batch_order(examples, 8, seed=1, drop_last=True, **WHO)
    task = Task(learner="a:b", batch_size=8, drop_last=True)
    sizes = [len(next(order)) for _ in range(task.planned_steps(examples))]
    assert sizes == [8] * (examples // 8) or sizes == [examples]
