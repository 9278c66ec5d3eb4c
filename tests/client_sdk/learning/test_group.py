"""The group's exchanges between ranks that are threads, and followers that come after rank 0 has ended."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from client_sdk.data import Examples
from client_sdk.learners import Catalogue
from client_sdk.learning import Learner, LearnerFailed
from client_sdk.learning.group import Group
from client_sdk.learning.group_trainer import GroupTrainer, follow, train_together
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Manifest
from tests.client_sdk.device.scripted import ScriptedCoordinator
from tests.coordinator.datacenter.models import examples, network

pytestmark = pytest.mark.datacenter


@dataclass(eq=False)
class Threaded(Group):
    """A rank that is a thread."""

    meeting: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    texts: dict[int, str] = field(default_factory=dict)

    def gather(self, text: str) -> list[str]:
        self.texts[self.rank] = text
        self.meeting.wait(5)
        found = [self.texts[rank] for rank in range(self.world)]
        self.meeting.wait(5)
        return found


def by_two(work: Callable[[Group], object]) -> list[object]:
    """What ``work`` returns on each of two ranks, or the text of its error."""
    meeting, texts = threading.Barrier(2), {}

    def on(rank: int) -> object:
        try:
            return work(Threaded(rank, 2, meeting=meeting, texts=texts))
        except Exception as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(on, range(2)))


ZEROS = torch.zeros(2)


@pytest.mark.parametrize(
    ("first", "other", "found"),
    [
        ({"a": ZEROS, "b": ZEROS}, {"a": ZEROS, "b": ZEROS + 1}, "b has other values on rank 1 than on rank 0"),
        ({"a": ZEROS}, {"a": torch.zeros(3)}, "a is float32 [2] on rank 0 and float32 [3] on rank 1"),
        ({"a": ZEROS, "b": ZEROS}, {"a": ZEROS}, "b is on rank 0 and not on rank 1"),
        ({"a": ZEROS}, {"a": ZEROS, "b": ZEROS}, "b is on rank 1 and not on rank 0"),
        ({"a": ZEROS, "b": ZEROS}, {"b": ZEROS, "a": ZEROS}, "rank 1 lists its tensors in another order"),
    ],
)
def test_what_differs_between_ranks_is_named(first: dict[str, Any], other: dict[str, Any], found: str) -> None:
    mine, theirs = by_two(lambda group: group.same_everywhere((first, other)[group.rank]))
    assert found in str(mine)
    assert str(theirs).startswith("Rank 0 stopped: The ranks hold different models")


def test_the_first_tensor_that_is_unequal_is_the_answer_on_every_rank() -> None:
    assert by_two(lambda group: group.first_unequal({"a": ZEROS, "b": ZEROS})) == [None, None]
    assert by_two(lambda group: group.first_unequal({"a": ZEROS, "b": ZEROS + group.rank})) == ["b", "b"]


@dataclass(eq=False)
class Recorded(Group):
    """Rank 0, and after it a follower: what was handed out, and what was agreed upon."""

    handed: list[bytes] = field(default_factory=list)
    agreed: list[Exception | None] = field(default_factory=list)

    def hand_out(self, content: bytes | None) -> bytes:
        if content is not None:
            self.handed.append(content)
        return self.handed[-1]

    def agree(self, error: Exception | None) -> None:
        self.agreed.append(error)
        super().agree(error)


def test_a_follower_trains_each_assignment_until_rank_0_closes() -> None:
    losses: list[float] = []

    def noted(outputs: Any, targets: Any) -> torch.Tensor:
        loss = nn.functional.cross_entropy(outputs, targets)
        losses.append(loss.item())
        return loss

    learner, data = Learner(model=network, loss=noted), Examples(*examples())
    group, catalogue = Recorded(store=dist.HashStore()), Catalogue({"clinic:risk": learner}, installed=())
    trainer = GroupTrainer(group, catalogue, data)
    assert trainer.roles("clinic:risk", Manifest.of(learner.initial(1))) == learner.roles()
    coordinator = ScriptedCoordinator()
    for one in coordinator.rounds:
        trainer.train(coordinator.offered(), learner.initial(1), "d0", lambda: 60.0)
        one.open = False
    trainer.close()
    by_rank_0 = losses.copy()
    assert follow(group, catalogue, data) == 2
    assert losses == by_rank_0 * 2


def test_a_learner_that_fails_in_training_is_agreed_upon_once() -> None:
    """A second time would find no other rank there."""
    group, learner = Recorded(), Learner(model=network, loss=lambda outputs, targets: [][0])
    task = ScriptedCoordinator().task
    with pytest.raises(LearnerFailed, match="IndexError"):
        train_together(
            group,
            Catalogue({task.learner: learner}, installed=()),
            Examples(*examples()),
            task,
            learner.initial(1),
            round=1,
            device="d0",
        )
    assert len([error for error in group.agreed if error is not None]) == 1


@dataclass(eq=False)
class Unheard(Recorded):
    """A rank of two that hears nothing of the other."""

    @property
    def alone(self) -> bool:
        return True

    def decide(self, yes: bool) -> bool:
        return True


def test_the_generators_of_each_rank_are_seeded_around_its_training_and_restored() -> None:
    drawn: list[tuple[float, float, float]] = []

    def noted(outputs: Any, targets: Any) -> torch.Tensor:
        drawn.append((random.random(), np.random.random(), torch.rand(1).item()))
        if len(drawn) % 2 == 0:
            raise ZeroDivisionError
        return nn.functional.cross_entropy(outputs, targets)

    learner, data = Learner(model=network, loss=noted), Examples(*examples())
    catalogue, task = Catalogue({"clinic:risk": learner}, installed=()), Task(learner="clinic:risk", batch_size=25)
    random.seed(5), np.random.seed(5)
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    for rank, number in ((0, 1), (0, 1), (1, 1), (0, 2)):
        with pytest.raises(LearnerFailed):
            train_together(Unheard(rank, 2), catalogue, data, task, learner.initial(1), round=number, device="d")
    assert random.getstate() == states[0]
    assert str(np.random.get_state()) == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert drawn[:2] == drawn[2:4]
    assert all(len({one[place] for one in drawn}) == 6 for place in range(3)), "another rank and round draw others"
