"""The rules of a group that need no second process: how ranks are weighted, and the terms of a group of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.data import Examples
from client_sdk.learners import Catalogue
from client_sdk.learning import Learner
from client_sdk.learning.group import Group, reach_all
from client_sdk.learning.group_trainer import train_together
from client_sdk.learning.sync_sgd import RankLoss
from client_sdk.protocol.devices import Task
from tests.coordinator.datacenter.models import examples, network

pytestmark = pytest.mark.datacenter


def batch(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = examples()
    return torch.from_numpy(x[rows]), torch.from_numpy(y[rows])


@pytest.mark.parametrize("shares", [(6, 6), (9, 3), (11, 1), (12, 0)])
def test_the_mean_of_the_ranks_gradients_is_that_of_the_whole_batch_however_it_is_shared(
    shares: tuple[int, int],
) -> None:
    """A mean of the ranks' means would count an example of a small share for more."""
    with torch.random.fork_rng(devices=[]):
        module = network()
    weights = list(module.parameters())
    x, y = batch(slice(12))
    whole = torch.autograd.grad(nn.functional.cross_entropy(module(x), y), weights)
    average = [torch.zeros_like(weight) for weight in weights]
    for rank, size in enumerate(shares):
        loss = RankLoss(module, nn.functional.cross_entropy, None, Group(rank, 2))
        rows = slice(0, size) if rank == 0 else slice(12 - max(size, 1), 12)
        objective = loss(lambda rows=rows: batch(rows), size, 12, "here")
        for mean, gradient in zip(average, torch.autograd.grad(objective, weights), strict=True):
            mean += gradient / 2
    for mean, gradient in zip(average, whole, strict=True):
        assert torch.allclose(mean, gradient, rtol=1e-12, atol=1e-15)


def test_a_mark_reaches_every_parameter_and_changes_no_number() -> None:
    used, unused, broken = (
        nn.Parameter(torch.tensor([value], dtype=torch.float64)) for value in (3.0, 2.0, float("inf"))
    )
    visited: list[str] = []
    nodes: list[Any] = []  # autograd forgets a node, and its hooks, where nobody holds it
    for name, weight in (("used", used), ("unused", unused), ("broken", broken)):
        nodes.append(weight.expand_as(weight).grad_fn.next_functions[0][0])  # type: ignore[union-attr]
        nodes[-1].register_hook(lambda *_, name=name: visited.append(name))
    objective = reach_all((used * 5).sum(), [used, unused, broken], frozenset())
    assert objective.item() == 15.0
    objective.backward()
    assert sorted(visited) == ["broken", "unused", "used"], "as the hooks of DistributedDataParallel"
    assert used.grad is not None
    assert (used.grad.item(), unused.grad, broken.grad) == (5.0, None, None)


def test_a_rank_whose_learner_failed_still_reaches_every_parameter() -> None:
    """DistributedDataParallel would wait for the missing ones, and the other ranks with it."""
    with torch.random.fork_rng(devices=[]):
        loss = RankLoss(network(), lambda outputs, targets: [][0], None, Group(0, 2))
    visited: list[str] = []
    nodes: list[Any] = []
    for name, weight in loss.module.named_parameters():
        nodes.append(weight.expand_as(weight).grad_fn.next_functions[0][0])  # type: ignore[union-attr]
        nodes[-1].register_hook(lambda *_, name=name: visited.append(name))
    loss(lambda: batch(slice(6)), 6, 12, "here").backward()
    assert "IndexError" in str(loss.error)
    assert sorted(visited) == sorted(name for name, _ in loss.module.named_parameters())


@pytest.mark.parametrize("terms", [{"mu": 0.5}, {"max_grad_norm": 0.2}, {"mu": 0.5, "max_grad_norm": 0.2}])
def test_a_group_of_one_minimizes_what_a_device_minimizes(terms: dict[str, Any]) -> None:
    learner = Learner(model=network, loss=nn.functional.cross_entropy)
    task = Task(learner="tests:plain", batch_size=12, epochs=3, learning_rate=0.2, seed=9, **terms)
    first, data = learner.initial(1), Examples(*examples())
    who = {"round": 3, "device": "hospital-7"}
    group = train_together(Group(), Catalogue({"tests:plain": learner}, installed=()), data, task, first, **who)  # type: ignore[arg-type]
    alone, plain = (
        learner.train(first, data, asked, **who)  # type: ignore[arg-type]
        for asked in (task, task.model_copy(update=dict.fromkeys(terms, 0.0) | {"max_grad_norm": None}))
    )
    for name, delta in alone.delta.items():
        np.testing.assert_allclose(group.delta[name], delta, rtol=2e-7, atol=1e-12)
    assert group.metrics == pytest.approx(alone.metrics)
    assert max(np.abs(alone.delta[name] - plain.delta[name]).max() for name in alone.delta) > 1e-3, "the terms show"
