"""A group of processes as one device: its update is the one that a single process would have made."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache, partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassF1Score

from client_sdk.data import Data, Examples
from client_sdk.learners import Catalogue
from client_sdk.learning import Learner, accuracy
from client_sdk.learning.group import Group, GroupLost
from client_sdk.learning.group_trainer import GroupTrainer, follow, train_together
from client_sdk.protocol.devices import Assignment, CheckpointRef, Task
from client_sdk.tensors import Tensors, from_bytes
from client_sdk.update import Update
from tests.coordinator.datacenter.models import (
    CountedSGD,
    Half,
    IdleRows,
    Sometimes,
    Sparse,
    examples,
    failing_loss,
    learner_of,
    network,
)
from tests.coordinator.datacenter.ranks import attempt, together

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

WHO = {"device": "hospital-7", "round": 3}
TASK = {"batch_size": 12, "epochs": 2, "learning_rate": 0.05, "seed": 9}
# 50 examples in batches of 12: the last of an epoch has 2.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "proximal": {"mu": 0.5},
    "clipped": {"max_grad_norm": 0.2, "mu": 0.1},
    "held out": {"score_held_out": True, "steps": 7, "epochs": None},
    "momentum": {"learner": "tests:momentum"},
    "a part frozen": {"averaged": ("3.*",)},
    "a part unused": {"learner": "tests:half"},
    "a part sometimes unused": {"learner": "tests:sometimes", "batch_size": 4, "mu": 0.1},
    "a part sometimes unused, with momentum and decay": {"learner": "tests:sometimes-momentum", "batch_size": 4},
    "class weights, metrics of all examples": {"learner": "tests:weighted", "score_held_out": True},
    "sparse": {"learner": "tests:sparse"},
    "sparse rows never used": {"learner": "tests:idle-rows"},
}


SHARDED = ("gradients", "full")
SHARDED_CASES = (
    *("plain", "proximal", "clipped", "held out", "momentum", "a part frozen", "a part unused"),
    *("a part sometimes unused", "class weights, metrics of all examples", "sparse"),
)


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy with class weights: a rank's own mean, or a micro-batch's, would have another denominator."""
    weights = torch.tensor([1.0, 9.0, 0.5], dtype=outputs.dtype)
    return nn.functional.cross_entropy(outputs, targets, weight=weights, reduction="sum"), weights[targets].sum()


def of_all_examples() -> dict[str, Any]:
    def f1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found, true = outputs.argmax(1) == 1, targets == 1
        return 2 * (found & true).sum() / (found.sum() + true.sum()).clamp(min=1)

    return {"f1": f1, "macro": MulticlassF1Score(3), "accuracy": accuracy}


def learners() -> dict[str, Learner]:
    plain = partial(Learner, model=network, metrics={"accuracy": accuracy}, training_metrics=True)
    loss = nn.functional.cross_entropy
    return {
        "tests:plain": plain(loss=loss),
        "tests:weighted": Learner(model=network, loss=weighted, metrics=of_all_examples(), training_metrics=True),
        "tests:momentum": plain(loss=loss, optimizer=partial(torch.optim.SGD, momentum=0.9)),
        "tests:half": learner_of(Half),
        "tests:sometimes": learner_of(Sometimes),
        "tests:sometimes-momentum": learner_of(
            Sometimes, optimizer=partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1)
        ),
        "tests:sparse": learner_of(Sparse),
        "tests:idle-rows": learner_of(IdleRows),
        "tests:failing": plain(loss=partial(failing_loss, step=2, how="raise"), optimizer=CountedSGD),
        "tests:vanishing": plain(loss=vanishing_loss),
        "tests:infinite": plain(loss=partial(failing_loss, step=5, how="inf")),
    }


def data() -> Data:
    x, y = examples()
    held_x, held_y = examples(20)
    return Data(Examples(x, y), Examples(held_x, held_y))


def task(case: str) -> Task:
    return Task(**{"learner": "tests:plain", **TASK, **CASES[case]})


def assignment(wanted: Task) -> Assignment:
    return Assignment(
        run="run-1",
        round=3,
        device="hospital-7",
        checkpoint=CheckpointRef(digest="0" * 64, version=0, bytes=1),
        plan_digest="1" * 64,
        task=wanted,
        report_within_s=60,
        max_update_bytes=10**6,
    )


def seen(update: Update) -> dict[str, Any]:
    held_out = None if update.held_out is None else (update.held_out.examples, dict(update.held_out.metrics))
    return {
        "delta": update.delta,
        "examples": update.examples,
        "work": update.work,
        "metrics": update.metrics,
        "held_out": held_out,
    }


def rounds(group: Group, first: Tensors) -> dict[str, Any]:
    """Rank 0 is given one assignment after the other; the other ranks follow. What rank 0 got, or how many rounds the
    others counted."""
    catalogue = Catalogue(learners(), installed=())
    last = Task(learner="tests:vanishing", **TASK)
    if group.rank != 0:
        counted = follow(group, catalogue, data())
        with suppress(SystemExit):  # what a killed process leaves: a group that is short of one
            train_together(group, catalogue, data(), last, from_bytes(group.hand_out(None)), **WHO)
        return {"rounds": counted}
    trainer = GroupTrainer(group, catalogue, data())
    found: dict[str, Any] = {"learners": trainer.learners, "examples": trainer.examples}

    def train(wanted: Task, deadline_s: float = 60.0, checkpoint: Tensors | None = None) -> Any:
        checkpoint = learners()[wanted.learner].initial(1) if checkpoint is None else checkpoint
        got = attempt(trainer.train, assignment(wanted), checkpoint, "hospital-7", lambda: deadline_s)
        return seen(got) if isinstance(got, Update) else got

    for case in CASES:
        found[case] = train(task(case))
    for trainer.shard in SHARDED:
        for case in SHARDED_CASES:
            found[f"{case}, {trainer.shard}"] = train(task(case))
    trainer.shard = "none"
    found["no time"] = train(task("plain"), 0.0)
    left = iter([60.0, 60.0, 60.0, 0.0])
    cut = trainer.train(assignment(task("plain")), first, "hospital-7", lambda: next(left))
    found["cut short"] = seen(cut)
    found["failing"] = train(Task(learner="tests:failing", **TASK))
    found["infinite"] = train(Task(learner="tests:infinite", **TASK))
    found["other model"] = train(task("plain"), checkpoint={"w": np.zeros(3, np.float32)})
    found["afterwards"] = train(task("plain"))
    found["broke"] = trainer.broke
    trainer.close()
    trainer = GroupTrainer(group, catalogue, data())
    message = train(last)
    found["vanished"] = (message, trainer.stop.is_set(), trainer.broke is not None)
    trainer.close()
    return found


@cache
def by_group() -> list[dict[str, Any]]:
    return together(2, rounds, learners()["tests:plain"].initial(1))


def by_one(wanted: Task) -> dict[str, Any]:
    held_out = data().test
    learner = learners()[wanted.learner]
    return seen(learner.train(learner.initial(1), data().train, wanted, held_out=held_out, **WHO))


@pytest.mark.parametrize("shard", SHARDED)
@pytest.mark.parametrize("case", SHARDED_CASES)
def test_so_does_that_of_a_model_that_is_divided_over_the_group(case: str, shard: str) -> None:
    found = by_group()[0][f"{case}, {shard}"]
    if case == "sparse":
        assert found[0] == "LearnerFailed"
        assert "An embedding with sparse gradients cannot be sharded" in found[1]
        return
    is_that_of_one(found, case)


@pytest.mark.parametrize("case", CASES)
def test_the_groups_update_equals_one_process(case: str) -> None:
    is_that_of_one(by_group()[0][case], case)


def is_that_of_one(group: dict[str, Any], case: str) -> None:
    one = by_one(task(case))
    assert group["delta"].keys() == one["delta"].keys()
    for name, delta in one["delta"].items():
        # The model is float64, the delta is rounded to float32 last: half a unit of that at most.
        np.testing.assert_allclose(group["delta"][name], delta, rtol=2e-7, atol=1e-12)
        assert np.abs(delta).max() > 1e-4 or name.startswith("unseen.")
    assert group["work"] == one["work"]
    assert group["examples"] == one["examples"] == 50
    assert group["held_out"] == one["held_out"]
    assert group["metrics"]["loss"] == pytest.approx(one["metrics"]["loss"], rel=1e-9)
    assert group["metrics"] == pytest.approx(one["metrics"], rel=1e-7), "accuracy gives float32"


def test_rank_0_looks_at_the_clock_for_all() -> None:
    found = by_group()[0]
    assert found["no time"] == ("OutOfTime", "The time ran out before one step of training could be done.")
    work = found["cut short"]["work"]
    assert (work.steps, work.steps_planned, work.complete) == (3, 10, False)
    steps = by_one(Task(learner="tests:plain", **{**TASK, "epochs": None}, steps=3))
    for name, delta in steps["delta"].items():
        np.testing.assert_allclose(found["cut short"]["delta"][name], delta, rtol=2e-7, atol=1e-12)


def test_a_failure_on_another_rank_is_reported_by_rank_0_and_breaks_nothing() -> None:
    found = by_group()[0]
    assert found["failing"][0] == "RankFailed"
    assert "Rank 1 stopped: The learner failed at step 2, on a batch of 6: KeyError: 'label 7" in found["failing"][1]
    assert found["infinite"][0] == "Diverged"
    assert found["other model"][0] == "CheckpointMismatch"
    assert found["broke"] is None
    for name, delta in by_one(task("plain"))["delta"].items():
        np.testing.assert_allclose(found["afterwards"]["delta"][name], delta, rtol=2e-7, atol=1e-12)


def test_followers_go_home_when_rank_0_closes() -> None:
    assert by_group()[1] == {"rounds": len(CASES) + len(SHARDED) * len(SHARDED_CASES) + 6}
    assert by_group()[0]["learners"]["tests:plain"] == "0"
    assert by_group()[0]["examples"] == 50


class LookedAt:
    """A store without ``wait``: at each of its timeouts torch's own writes two warnings on the terminal."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def check(self, keys: list[str]) -> bool:
        assert keys == ["work/1"]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    def get(self, key: str) -> bytes:
        return b"over"


def test_a_follower_looks_for_work_without_a_word_on_the_terminal() -> None:
    store = LookedAt(False, False, True)
    assert follow(Group(1, 2, store=cast("Any", store)), Catalogue({}, installed=()), data()) == 0
    assert store.answers == []
    gone = LookedAt(False, RuntimeError("Connection reset by peer"))
    with pytest.raises(GroupLost, match="rank 0 or the launcher died"):
        follow(Group(1, 2, store=cast("Any", gone)), Catalogue({}, installed=()), data())


def vanishing_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if os.environ["RANK"] == "1":
        raise SystemExit
    return nn.functional.cross_entropy(outputs, targets)


def test_a_broken_group_gives_up_without_a_word_to_the_coordinator() -> None:
    """The client's stop is set, so that it neither withdraws nor reports: the assignment waits for the next start."""
    (kind, _), stopped, broke = by_group()[0]["vanished"]
    assert kind == "GroupLost"
    assert stopped
    assert broke
