"""Each strategy of a datacenter gives what one process gives at the global batch: to 1e-9 after 20 steps in float64."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Learner
from client_sdk.tensors import Tensors
from coordinator.datacenter.optimizers import make_optimizer
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import GlobalOrder, train
from tests.coordinator.datacenter import models
from tests.coordinator.datacenter.ranks import Group, attempt, together

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

TOLERANCE = 1e-9
BASE = {"steps": 20, "learning_rate": 0.05, "seed": 7, "batch_size": 12}


def deep() -> nn.Module:
    blocks = [
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.0)) for _ in range(4)
    ]
    return nn.Sequential(nn.Linear(6, 8), *blocks, nn.Linear(8, 3)).double()


PARTS: dict[str, Any] = {"blocks": ("1", "2", "[34]"), "tensor": {"[1234].0": "column", "[1234].2": "row"}}
DEEP = models.learner_of(deep, **PARTS)
ADAM = models.learner_of(deep, **PARTS, optimizer=torch.optim.Adam)
STRATEGIES: dict[str, dict[str, Any]] = {
    "optimizer": {"shard": "optimizer"},
    "gradients": {"shard": "gradients"},
    "full": {"shard": "full"},
    "recompute": {"recompute": True},
    "full and recompute": {"shard": "full", "recompute": True},
    "models averaged at each step": {"sync_every": 1},
    "tensor": {"mesh": {"tensor": 2}},
    "pipeline": {"mesh": {"pipeline": 2}, "accumulate": 3},
}
CASES: dict[str, tuple[Learner, dict[str, Any]]] = {
    "plain": (DEEP, {"batch_size": 10}),
    "uneven batch": (DEEP, {}),
    "accumulation": (DEEP, {"accumulate": 3}),
    "clipping": (DEEP, {"max_grad_norm": 0.1}),
    "momentum": (DEEP, {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3}),
    "adam": (ADAM, {"learning_rate": 0.01}),
    "lars": (DEEP, {"optimizer": "lars", "trust_coefficient": 0.05}),
    "lamb": (DEEP, {"optimizer": "lamb", "learning_rate": 0.02, "weight_decay": 1e-2}),
    "never used": (models.learner_of(models.Half), {"unused_parameters": True, "optimizer": "sgd"}),
    "sometimes unused": (
        models.learner_of(models.Sometimes),
        {"unused_parameters": True, "batch_size": 4, "optimizer": "sgd"},
    ),
    "a part frozen": (models.learner_of(deep, **PARTS, averaged=("5.*", "1.*", "0.*")), {"averaged": ("5.*", "1.*")}),
}
OTHERWISE = {("models averaged at each step", case) for case in ("clipping", "adam", "lars", "lamb")}
"""A mean of models is not that of gradients, where a step is not linear in its gradient."""
REFUSED = {
    ("recompute", "never used"): "recompute needs the learner's blocks",
    ("recompute", "sometimes unused"): "recompute needs the learner's blocks",
    ("full and recompute", "never used"): "recompute needs the learner's blocks",
    ("full and recompute", "sometimes unused"): "recompute needs the learner's blocks",
    **{("tensor", case): "mesh.tensor needs the learner's tensor" for case in ("never used", "sometimes unused")},
    **{("pipeline", case): "The learner names 0 blocks" for case in ("never used", "sometimes unused")},
}


def cell(group: Group, strategy: str, case: str) -> Any:
    learner, fields = CASES[case]
    recipe = Recipe(**{**BASE, **fields, **STRATEGIES.get(strategy, {})})
    return attempt(train, learner, learner.initial(1), models.examples(), recipe, group=group)


def all_cells(group: Group, strategies: list[str]) -> dict[tuple[str, str], Any]:
    return {(strategy, case): cell(group, strategy, case) for strategy in strategies for case in CASES}


@cache
def by_ranks(world: int) -> list[dict[tuple[str, str], Any]]:
    return together(world, all_cells, list(STRATEGIES))


@cache
def alone(case: str) -> tuple[Tensors, float]:
    model, report = cell(Group(), "", case)
    return model, report.loss


def failing(step: int, how: str) -> Learner:
    models.failing_loss.calls = 0  # type: ignore[attr-defined]
    return Learner(model=deep, loss=partial(models.failing_loss, step=step, how=how), **PARTS)


def in_trouble(group: Group, shard: str, folder: Path) -> dict[str, Any]:
    """What goes wrong, and at last what ends the group."""
    found: dict[str, Any] = {}

    def trying(case: str, learner: Learner, fields: dict[str, Any] | None = None, **more: Any) -> None:
        recipe = Recipe(**{**BASE, "shard": shard, "optimizer": "sgd", **(fields or {})})
        found[case] = attempt(train, learner, learner.initial(1), models.examples(), recipe, group=group, **more)

    trying("not finite", failing(3, "nan"))
    trying("sparse", models.learner_of(models.Sparse))
    trying("few tensors", models.learner_of(lambda: nn.Linear(6, 3, bias=False).double()))
    trying("no such block", models.learner_of(deep, blocks=("7",)))
    trying("half", DEEP, {"steps": 9}, checkpoints=folder, checkpoint_every=3)
    trying("on", DEEP, {"steps": 14}, checkpoints=folder, resume=True)
    trying("learner", failing(2, "raise"))
    return found


@cache
def troubles(shard: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        answers = together(2, in_trouble, shard, Path(folder))
        rest = Recipe(**{**BASE, "shard": shard, "optimizer": "sgd"})
        options: dict[str, Any] = {"checkpoints": Path(folder), "resume": True}
        answers.append(train(DEEP, DEEP.initial(1), models.examples(), rest, **options))
        return answers


@pytest.mark.parametrize("shard", ["optimizer", "gradients", "full"])
@pytest.mark.parametrize(
    ("case", "rank", "kind", "words"),
    [
        ("not finite", 0, "Diverged", "The loss at step 3 is not finite"),
        ("learner", 1, "LearnerFailed", "at step 2, on a batch of 6: KeyError: 'label 7 is unknown'"),
        ("sparse", 0, "LearnerFailed", "An embedding with sparse gradients cannot be sharded"),
        ("few tensors", 0, "LearnerFailed", "gives each of 2 ranks a trained tensor, and there are 1"),
        ("no such block", 0, "LearnerFailed", "blocks name '7', and no part of the model has such a name"),
    ],
)
def test_one_rank_says_what_went_wrong(shard: str, case: str, rank: int, kind: str, words: str) -> None:
    speaker, other = troubles(shard)[rank][case], troubles(shard)[1 - rank][case]
    whole = {"sparse": ["optimizer"], "few tensors": ["gradients", "full"], "no such block": ["optimizer"]}
    if shard in whole.get(case, []):
        assert [report.steps for _, report in (speaker, other)] == [20, 20], "here it is none"
        return
    assert speaker[0] == kind
    assert words in speaker[1]
    assert other[0] == "RankFailed"
    assert words in other[1], "the other knows why too"


LOCAL: dict[str, dict[str, Any]] = {
    "averaged": {"sync_every": 4, "optimizer": "sgd"},
    "DiLoCo": {"sync_every": 4, "outer_learning_rate": 0.7, "outer_momentum": 0.9, "learning_rate": 0.01},
}


def by_hand(options: dict[str, Any], learner: Learner, steps: int, world: int) -> Tensors:
    """The models of so many ranks, one after the other in this process, averaged by a loop of its own."""
    recipe = Recipe(**{**BASE, **options, "steps": steps})
    x, y = (torch.from_numpy(array) for array in models.examples())
    order = GlobalOrder(len(x), recipe.batch_size, recipe.seed)
    ranks = [learner.load(learner.initial(1)) for _ in range(world)]
    inner = [make_optimizer(recipe, learner, list(module.parameters())) for module in ranks]
    before = [one.detach().clone() for one in ranks[0].parameters()]
    fast = [torch.zeros_like(one) for one in before]
    seen = [0] * world
    for step in range(steps):
        for rank, part in enumerate(order.at(step).tensor_split(world)):
            inner[rank].zero_grad()
            nn.functional.cross_entropy(ranks[rank](x[part]), y[part]).backward()
            inner[rank].step()
            seen[rank] += len(part)
        if (step + 1) % recipe.sync_every and step + 1 < steps:
            continue
        with torch.no_grad():
            for place, copies in enumerate(zip(*(module.parameters() for module in ranks), strict=True)):
                mean = sum(one * n for one, n in zip(copies, seen, strict=True)) / sum(seen)
                gradient = before[place] - mean
                fast[place] = recipe.outer_momentum * fast[place] + gradient
                before[place] -= recipe.outer_learning_rate * (gradient + recipe.outer_momentum * fast[place])
                for one in copies:
                    one.copy_(before[place])
        seen = [0] * world
    return learner.tensors(ranks[0])


def local(group: Group, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, fields in LOCAL.items():
        learner = ADAM if name == "DiLoCo" else DEEP
        usual: dict[str, Any] = {"group": group, "checkpoint_every": 3, "checkpoints": folder / name}
        first, data = learner.initial(1), models.examples()
        recipe = Recipe(**{**BASE, **fields, "steps": 21})
        found[name] = train(learner, first, data, recipe, group=group)
        part = recipe.model_copy(update={"steps": 12})
        train(learner, first, data, part, **usual)
        found[f"{name} again"] = train(learner, first, data, recipe, resume=True, **usual)
    own = {**BASE, **LOCAL["averaged"]}
    for case, learner in {"nan": failing(2, "nan"), "raise": failing(2, "raise")}.items():
        models.failing_loss.calls = 0  # type: ignore[attr-defined]
        found[case] = attempt(train, learner, learner.initial(1), data, Recipe(**own), group=group)
    moving = models.learner_of(models.RunningMean)
    found["statistics"] = attempt(train, moving, moving.initial(1), data, Recipe(**own), group=group)
    found["still good"] = attempt(train, DEEP, DEEP.initial(1), data, Recipe(**own), group=group)
    return found


@cache
def locals_() -> tuple[list[dict[str, Any]], Any]:
    with tempfile.TemporaryDirectory() as folder:
        two = together(2, local, Path(folder))
        rest = Recipe(**{**BASE, **LOCAL["averaged"], "steps": 24})
        options: dict[str, Any] = {"checkpoints": Path(folder) / "averaged", "resume": True}
        return two, together(3, more_of_it, rest, options)


def more_of_it(group: Group, rest: Recipe, options: dict[str, Any]) -> Any:
    return attempt(train, DEEP, DEEP.initial(1), models.examples(), rest, group=group, **options)


@pytest.mark.parametrize("name", LOCAL)
def test_models_are_averaged_after_so_many_steps(name: str) -> None:
    learner = ADAM if name == "DiLoCo" else DEEP
    wanted = by_hand(LOCAL[name], learner, 21, 2)
    for ranks in locals_()[0]:
        model, report = ranks[name]
        assert models.largest_difference(model, wanted) <= TOLERANCE
        assert report.gradient_bytes == 6 * 8 * sum(array.size for array in model.values())
        again, later = ranks[f"{name} again"]
        assert later.began == 12
        assert all(np.array_equal(model[one], again[one]) for one in model)


def test_what_goes_wrong_between_two_means_is_known_at_the_next() -> None:
    first, second = locals_()[0]
    assert second["nan"][0] == "Diverged"
    assert second["raise"][0] == "LearnerFailed"
    assert "at step 2, on a batch of 6: KeyError: 'label 7 is unknown'" in second["raise"][1]
    assert first["nan"][0] == first["raise"][0] == "RankFailed"
    assert "statistics of its batch" in first["statistics"][1]
    assert first["still good"][1].steps == 20


def test_optimizers_of_each_rank_go_on_with_as_many_ranks() -> None:
    assert "has an optimizer for each of 2 processes, and here are 3" in locals_()[1][0][1]


@pytest.mark.parametrize("shard", ["optimizer", "gradients", "full"])
def test_saved_steps_go_on_with_any_number_of_processes(shard: str) -> None:
    wanted, _ = train(DEEP, DEEP.initial(1), models.examples(), Recipe(**{**BASE, "optimizer": "sgd"}))
    first, second, (model, report) = troubles(shard)
    assert [found["on"][1].began for found in (first, second)] == [9, 9]
    assert (report.began, report.world) == (14, 1)
    assert models.largest_difference(model, wanted) <= TOLERANCE


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_equals_one_process_or_is_refused_in_a_sentence(strategy: str, case: str) -> None:
    found = [cells[strategy, case] for cells in by_ranks(2)]
    if (words := REFUSED.get((strategy, case))) is not None:
        assert sorted(kind for kind, _ in found) == ["LearnerFailed", "RankFailed"]
        assert all(words in sentence and "\n" not in sentence for _, sentence in found)
        return
    wanted, loss = alone(case)
    if (strategy, case) in OTHERWISE:
        assert 1e-6 < models.largest_difference(found[0][0], wanted) < 1
        assert found[0][1].loss == pytest.approx(loss, rel=0.3)
        return
    for model, report in found:
        assert models.largest_difference(model, wanted) <= TOLERANCE
        assert report.loss == pytest.approx(loss, rel=1e-9)
    assert all(np.array_equal(found[0][0][name], found[1][0][name]) for name in wanted)
    assert models.largest_difference(wanted, CASES[case][0].initial(1)) > 1e-3, "or nothing was trained"
