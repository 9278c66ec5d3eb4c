"""Processes that move the same weights in shared memory, without locks."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_sdk.learning import Learner
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train
from tests.coordinator.datacenter import models
from tests.coordinator.datacenter.ranks import Group, attempt, together

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

BASE: dict[str, Any] = {"steps": 60, "batch_size": 32, "learning_rate": 0.2, "optimizer": "sgd", "momentum": 0.0}
LONG: dict[str, Any] = {**BASE, "steps": 150, "decay": "linear"}
"""The rate falls to zero: else the last steps, of which a race has others, are most of the difference."""
RACES: dict[str, tuple[Learner, dict[str, Any]]] = {
    "dense": (models.learner_of(models.network), {"learning_rate": 0.1}),
    "momentum": (models.learner_of(models.network), {"momentum": 0.5, "learning_rate": 0.05}),
    "sparse": (models.learner_of(models.Sparse), {"learning_rate": 0.5}),
}
DENSE, SPARSE = models.learner_of(models.network), models.learner_of(models.Sparse)
DATA = models.examples(400)


def failing(step: int, how: str) -> Learner:
    models.failing_loss.calls = 0  # type: ignore[attr-defined]
    return Learner(model=models.network, loss=partial(models.failing_loss, step=step, how=how))


def no_file(path: Path, *arguments: Any) -> Any:
    raise FileNotFoundError(path)


def raced(group: Group, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def trying(name: str, learner: Learner, fields: dict[str, Any] | None = None, **more: Any) -> None:
        recipe = Recipe(**{**BASE, "hogwild": True, **(fields or {})})
        found[name] = attempt(train, learner, learner.initial(1), DATA, recipe, group=group, **more)

    for name, (learner, fields) in RACES.items():
        trying(name, learner, {**LONG, **fields})
    trying("every row", SPARSE, {"weight_decay": 0.1})
    trying("nan", failing(3, "nan"))
    trying("raise", failing(2, "raise"))
    trying("statistics", models.learner_of(models.RunningMean))
    trying("half", DENSE, {"steps": 20}, checkpoints=folder, checkpoint_every=7)
    trying("on", DENSE, checkpoints=folder, checkpoint_every=7, resume=True)
    if group.rank == 2:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", no_file)
            trying("another machine", DENSE)
    else:
        trying("another machine", DENSE)
    trying("still good", DENSE)
    return found


@cache
def ranks() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return together(4, raced, Path(folder))


def loss_of(learner: Learner, model: Any) -> float:
    return float(learner.evaluate(model, DATA).metrics["loss"])


@pytest.mark.parametrize("learner", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "more", [{}, {"momentum": 0.9}, {"optimizer": "lamb"}, {"accumulate": 2}, {"optimizer": "learner"}]
)
def test_one_process_gives_the_bits_of_the_plain_loop(learner: Learner, more: dict[str, Any]) -> None:
    recipe = Recipe(**{**BASE, **more})
    wanted, _ = train(learner, learner.initial(1), DATA, recipe)
    found = attempt(train, learner, learner.initial(1), DATA, recipe.model_copy(update={"hogwild": True}))
    if learner is SPARSE and (more.get("momentum") or more.get("optimizer") == "lamb"):
        assert "this optimizer moves all" in found[1]
        return
    assert all(np.array_equal(wanted[name], found[0][name]) for name in wanted)
    assert found[1].examples_seen == 4 * 400 + 256


@pytest.mark.parametrize("name", RACES)
def test_four_processes_come_as_far_with_as_many_examples(name: str) -> None:
    learner, fields = RACES[name]
    wanted, plain = train(learner, learner.initial(1), DATA, Recipe(**{**LONG, **fields}))
    for model, report in (found[name] for found in ranks()):
        assert loss_of(learner, model) == pytest.approx(loss_of(learner, wanted), rel=0.05)
        assert report.examples_seen == plain.examples_seen
    assert loss_of(learner, wanted) < 0.98 * loss_of(learner, learner.initial(1)), "or nothing was learned"


class Noting(torch.optim.SGD):
    """Notes the rows of sparse gradients that it gets."""

    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            if weight.grad is not None and weight.grad.is_sparse:
                touched.update(weight.grad.coalesce().indices()[0].tolist())
        return super().step(closure)


touched: set[int] = set()


def test_a_row_that_no_batch_has_used_is_not_moved() -> None:
    first = SPARSE.initial(1)
    data = DATA[0] * 0.2, DATA[1]
    touched.clear()
    learner = models.learner_of(models.Sparse, optimizer=Noting)
    model, _ = train(learner, first, data, Recipe(**{**BASE, "optimizer": "learner"}, hogwild=True))
    moved = set(np.nonzero((model["rows.weight"] != first["rows.weight"]).any(1))[0].tolist())
    assert moved <= touched
    assert 0 < len(touched) < 40


@pytest.mark.parametrize(
    ("case", "rank", "kind", "words"),
    [
        ("nan", 1, "Diverged", "The loss at step 3 is not finite"),
        ("raise", 1, "LearnerFailed", "at step 2, on a batch of 8: KeyError: 'label 7 is unknown'"),
        ("every row", 0, "LearnerFailed", "hogwild moves no row of an embedding with sparse gradients that a batch"),
        ("statistics", 0, "LearnerFailed", "buffer mean takes statistics of its batch"),
        ("another machine", 0, "LearnerFailed", "shares the memory of one machine, and rank 2 is on another"),
    ],
)
def test_one_rank_says_what_went_wrong(case: str, rank: int, kind: str, words: str) -> None:
    found = [one[case] for one in ranks()]
    assert [one[0] for one in found] == [kind if place == rank else "RankFailed" for place in range(4)]
    assert all(words in one[1] and "\n" not in one[1] for one in found)
    assert ranks()[rank]["still good"][1].steps == 60


def test_it_goes_on_from_a_saved_step_with_as_many_processes() -> None:
    wanted, _ = train(DENSE, DENSE.initial(1), DATA, Recipe(**BASE))
    for found in ranks():
        model, report = found["on"]
        assert (report.began, report.steps) == (20, 60)
        assert loss_of(DENSE, model) < 1.3 * loss_of(DENSE, wanted)
