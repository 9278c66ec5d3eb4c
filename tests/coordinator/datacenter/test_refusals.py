"""What a group refuses: one rank says one sentence, the others know of it, nobody's weights have moved."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.optim import LBFGS

from client_sdk.learning import Learner
from client_sdk.tensors import Tensors
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train
from tests.coordinator.datacenter import models
from tests.coordinator.datacenter.models import examples, largest_difference, learner_of, plain
from tests.coordinator.datacenter.ranks import Group, attempt, together

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

RECIPE = Recipe(steps=6, batch_size=12, learning_rate=0.05)
RankError = Any


def failing(step: int, how: str) -> Learner:
    loss = partial(models.failing_loss, step=step, how=how)
    return Learner(model=models.network, loss=loss, optimizer=models.CountedSGD)


def each_in_turn(group: Group, first: Tensors, folder: Path) -> dict[str, RankError]:
    """Every refusal by one and the same group, which goes on after each of them; last what breaks it."""
    found: dict[str, RankError] = {}

    def trying(name: str, learner: Learner, model: Tensors = first, recipe: Recipe = RECIPE, **more: Any) -> None:
        data = more.pop("data", examples())
        found[name] = attempt(train, learner, model, data, recipe, **{"group": group, **more})

    other = {name: array + (group.rank if name == "3.bias" else 0) for name, array in first.items()}
    trying("values", plain(), other)
    wide = Learner(model=models.by_rank, loss=nn.functional.cross_entropy)
    trying("shapes", wide, wide.initial(0))
    trying("data", plain(), data=examples(40 + group.rank))
    trying("no data on rank 1", plain(), data=examples(40) if group.rank == 0 else (np.empty((0, 6)), np.empty(0)))
    trying("batch", plain(), recipe=Recipe(steps=2, batch_size=1))
    trying("too large a batch", plain(), recipe=Recipe(steps=2, batch_size=51))
    trying("fp16", plain(), recipe=RECIPE.model_copy(update={"precision": "float16"}))
    batchnorm = Learner(model=models.batchnorm, loss=nn.functional.cross_entropy)
    trying("batch norm", batchnorm, batchnorm.initial(0))
    trying("not finite", failing(3, "nan"))
    found["steps taken"] = models.CountedSGD.taken
    models.failing_loss.calls = 0  # type: ignore[attr-defined]
    trying("learner", failing(2, "raise"))
    found["steps taken then"] = models.CountedSGD.taken
    trying("other model", plain(), checkpoints=folder, checkpoint_every=3)
    narrow = Learner(model=partial(models.network, width=4), loss=nn.functional.cross_entropy)
    trying("other model", narrow, narrow.initial(0), checkpoints=folder, resume=True)
    trying("other batch", plain(), recipe=RECIPE.model_copy(update={"batch_size": 10}), checkpoints=folder, resume=True)
    trying("not asked to resume", plain(), checkpoints=folder)
    trying("beyond", plain(), recipe=RECIPE.model_copy(update={"steps": 4}), checkpoints=folder, resume=True)
    group.agree(None)
    if group.rank == 0:
        for piece in (folder / "step-000000006").glob("shard-*.safetensors"):
            piece.write_bytes(b"noise")
    group.agree(None)
    longer = RECIPE.model_copy(update={"steps": 8})
    trying("damaged", plain(), recipe=longer, checkpoints=folder, resume=True)
    trying("still good", plain())
    own = learner_of(models.RunningMean, optimizer=models.CountedSGD)
    before = models.CountedSGD.taken
    trying("statistics of its own", own, own.initial(0))
    found["steps taken with statistics"] = models.CountedSGD.taken - before
    trying("optimizer", plain(optimizer=LBFGS))
    trying("optimizer, without a group", plain(optimizer=LBFGS), group=Group())
    half = Learner(model=models.Half, loss=nn.functional.cross_entropy)
    trying("unused allowed", half, half.initial(0), RECIPE.model_copy(update={"unused_parameters": True}))
    trying("unused", half, half.initial(0))
    return found


@cache
def printed() -> list[dict[str, RankError]]:
    with tempfile.TemporaryDirectory() as folder:
        return together(2, each_in_turn, plain().initial(1), Path(folder))


@pytest.mark.parametrize(
    ("case", "rank", "kind", "words"),
    [
        ("values", 0, "RanksDiffer", "the parameter 3.bias has other values on rank 1 than on rank 0"),
        ("shapes", 0, "RanksDiffer", "the parameter 0.weight is float64 [5, 6] on rank 0 and float64 [6, 6] on rank 1"),
        ("data", 0, "RanksDiffer", "rank 0 has 40 examples and rank 1 has 41"),
        ("no data on rank 1", 1, "NoExamples", "holds no example"),
        ("batch", 0, "DataError", "A batch of 1 cannot be split over 2 processes"),
        ("too large a batch", 0, "DataError", "A batch of 51 does not fit: the training data has 50 examples"),
        ("fp16", 0, "LearnerFailed", "float16 needs a GPU"),
        ("batch norm", 0, "LearnerFailed", "layer 1 is a BatchNorm1d, which takes statistics of its batch"),
        ("not finite", 0, "Diverged", "The loss at step 3 is not finite"),
        ("learner", 1, "LearnerFailed", "at step 2, on a batch of 6: KeyError: 'label 7 is unknown'"),
        ("other model", 0, "CheckpointMismatch", "of another model: 0.bias is F64 [5] there and F64 [4] here"),
        ("other batch", 0, "CheckpointMismatch", "of another training: batch_size is 12 there and 10 here"),
        ("not asked to resume", 0, "CheckpointMismatch", "holds a training that has reached step 6"),
        ("beyond", 0, "CheckpointMismatch", "holds a training that has reached step 6, and the recipe has 4"),
        ("damaged", 0, "CheckpointMismatch", "step-000000006 cannot be used"),
        ("statistics of its own", 0, "LearnerFailed", "buffer mean takes statistics of its batch, and each of the 2"),
        ("optimizer", 0, "LearnerFailed", "at step 1, where its optimizer moves the weights: TypeError: LBFGS.step()"),
    ],
)
def test_one_rank_says_why(case: str, rank: int, kind: str, words: str) -> None:
    speaker, other = printed()[rank][case], printed()[1 - rank][case]
    assert speaker[0] == kind
    assert words in speaker[1]
    assert "\n" not in speaker[1]
    assert other[0] == "RankFailed"
    assert words in other[1], "the other knows why too"


def test_all_ranks_stop_before_the_optimizer_moves() -> None:
    """Two steps were good; the third was not finite on rank 1 alone, and neither rank took it. Then one more."""
    assert [found["steps taken"] for found in printed()] == [2, 2]
    assert [found["steps taken then"] for found in printed()] == [3, 3]


def test_statistics_of_a_learners_own_layer_are_noticed_before_a_step() -> None:
    assert [found["steps taken with statistics"] for found in printed()] == [0, 0]


def test_an_optimizer_that_wants_a_closure_is_the_learners_fault_and_no_bug_of_ours() -> None:
    kind, words = printed()[0]["optimizer, without a group"]
    assert kind == "LearnerFailed"
    assert "LBFGS.step() missing 1 required positional argument: 'closure'" in words


def test_a_group_goes_on_after_a_refusal() -> None:
    one, _ = train(plain(), plain().initial(1), examples(), RECIPE)
    for found in printed():
        assert largest_difference(found["still good"][0], one) <= 1e-10


def test_a_parameter_that_no_loss_reaches_is_named_or_allowed() -> None:
    """DDP alone would leave the ranks with different weights and complain one step later."""
    assert sorted(found["unused"][0] for found in printed()) == ["LearnerFailed", "RankFailed"], "one rank tells"
    for found in printed():
        assert "does not depend on unseen.weight, unseen.bias" in found["unused"][1]
        assert "--unused-parameters" in found["unused"][1]
        model, _ = found["unused allowed"]
        first = Learner(model=models.Half, loss=nn.functional.cross_entropy).initial(0)
        assert np.array_equal(model["unseen.weight"], first["unseen.weight"])
        assert not np.array_equal(model["seen.weight"], first["seen.weight"])
