"""Each strategy of a datacenter gives what its row says (``strategies``), in each case."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
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
from coordinator.datacenter.training import GlobalOrder, Report, train
from scripts.strategy_table import PAGE, page
from tests.coordinator.datacenter import models
from tests.coordinator.datacenter.ranks import Group, attempt, together
from tests.coordinator.datacenter.strategies import ADAM, BASE, CASES, DEEP, LIVES, STRATEGIES, TOLERANCE, dying
from tests.rotating import in_parts, on_day, taking_turns

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

QUARTERS, TURNS = 4, 8
PLAIN = "uneven batch"


@dataclass(frozen=True)
class Play:
    """Cells that one group of so many ranks plays: one of ``turns`` parts, with each strategy and each case in it."""

    world: int
    turn: int
    turns: int = TURNS

    @property
    def cells(self) -> list[tuple[str, str]]:
        names = [name for name, one in STRATEGIES.items() if self.world in one.worlds]
        places = {(name, case): i + j for i, name in enumerate(names) for j, case in enumerate(CASES)}
        return [cell for cell, place in places.items() if place % self.turns == self.turn]


def quarters() -> list[Any]:
    """The cells of two ranks, with the part in which each is played: CI plays one on each day."""
    plays = [Play(2, turn, QUARTERS) for turn in range(QUARTERS)]
    return [
        pytest.param(*cell, play, id="-".join(cell), marks=on_day(play.turn, of=QUARTERS))
        for play in plays
        for cell in play.cells
    ]


def learner_of(strategy: str, case: str) -> Learner:
    return STRATEGIES[strategy].learners.get(case, CASES[case].learner)


def recipe_of(strategy: str, case: str, **more: Any) -> Recipe:
    return Recipe(**{**BASE, **CASES[case].fields, **STRATEGIES[strategy].fields, **more})


def cell(group: Group, strategy: str, case: str) -> Any:
    learner = learner_of(strategy, case)
    try:
        recipe = recipe_of(strategy, case)
    except ValueError as error:
        return ("ValueError", str(error).split("\n")[1])
    return attempt(train, learner, learner.initial(1), models.examples(), recipe, group=group)


def all_cells(group: Group, play: Play) -> dict[tuple[str, str], Any]:
    return {(strategy, case): cell(group, strategy, case) for strategy, case in play.cells}


@cache
def by_ranks(play: Play) -> list[dict[tuple[str, str], Any]]:
    assert play not in _begun, "this group did not come to its end"
    _begun.add(play)
    return together(play.world, all_cells, play)


_begun: set[Play] = set()


def alone(strategy: str, case: str) -> tuple[Tensors, Report]:
    """What one process gives, with the strategy's learner."""
    return _alone(strategy if case in STRATEGIES[strategy].learners else "none", case)


@cache
def _alone(strategy: str, case: str) -> tuple[Tensors, Report]:
    learner = learner_of(strategy, case)
    return train(learner, learner.initial(1), models.examples(), recipe_of("none", case))


def over_all(strategy: str, case: str, model: Tensors) -> float:
    learner = learner_of(strategy, case if case in CASES else PLAIN)
    return learner.evaluate(model, models.examples()).metrics["loss"]


def check(strategy: str, case: str, found: list[Any], wanted: tuple[Tensors, Report]) -> None:
    """The cell's ranks give what the table says of it."""
    row = STRATEGIES[strategy]
    if (words := row.refused.get(case)) is not None:
        kinds = [kind for kind, _ in found]
        assert kinds.count("RankFailed") == len(found) - 1 or set(kinds) == {"ValueError"}, "one rank, or the plan"
        assert all(words in sentence and "\n" not in sentence for _, sentence in found), found
        return
    model, report = wanted
    for own, said in found:
        assert all(np.array_equal(found[0][0][name], own[name]) for name in model), "ranks agree in all bits"
        difference = models.largest_difference(own, model)
        if case in row.near:
            assert difference > TOLERANCE, "or the table must say that it is equal"
            here, there = (over_all(strategy, case, one) for one in (own, model))
            assert here <= there * (1 + row.near[case])
        else:
            assert difference <= TOLERANCE
            assert said.loss == pytest.approx(report.loss, rel=1e-9)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("strategy", "case", "play"), quarters())
def test_a_strategy_gives_what_the_table_says(strategy: str, case: str, play: Play) -> None:
    found = [cells[strategy, case] for cells in by_ranks(play)]
    check(strategy, case, found, alone(strategy, case))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "play", taking_turns(*(Play(world, turn) for turn in range(TURNS) for world in (4, 8))), ids=str
)
def test_an_eighth_of_the_table_on_more_ranks(play: Play) -> None:
    for strategy, case in play.cells:
        found = [cells[strategy, case] for cells in by_ranks(play)]
        check(strategy, case, found, alone(strategy, case))


def test_the_page_says_what_is_tested() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m scripts.strategy_table"


def test_training_moved_the_model() -> None:
    """Or all equalities would hold for a trainer that does nothing."""
    for case, one in CASES.items():
        assert models.largest_difference(alone("none", case)[0], one.learner.initial(1)) > 1e-3, case


# ------------------------------------------------------------ saved steps

KILLED_AT = {"pipeline": 24}
"""At which call of its loss rank 1 is killed; in step 7 or 8, with the calls before the first step."""
SAVING: dict[str, Any] = {"checkpoint_every": 3}


def saving(group: Group, folder: Path, names: list[str]) -> dict[str, Any]:
    """Of each strategy: the model of a training that nothing disturbs, and the saved steps of the first half."""
    found = {}
    for name in names:
        recipe = recipe_of(name, PLAIN)
        usual: dict[str, Any] = {"group": group, "checkpoints": folder / "half" / name, **SAVING}
        found[name] = train(DEEP, DEEP.initial(1), models.examples(), recipe, group=group)
        train(DEEP, DEEP.initial(1), models.examples(), recipe.model_copy(update={"steps": 10}), **usual)
    return found


def killed(group: Group, name: str, folder: Path) -> None:
    learner = replace(DEEP, loss=partial(dying, step=KILLED_AT.get(name, 8)))
    usual: dict[str, Any] = {"group": group, "checkpoints": folder / "killed" / name, **SAVING}
    train(learner, learner.initial(1), models.examples(), recipe_of(name, PLAIN), **usual)


def going_on(group: Group, folder: Path, names: list[str], **more: Any) -> dict[str, Any]:
    found = {}
    for name in names:
        recipe = recipe_of(name, PLAIN, **more)
        usual: dict[str, Any] = {"group": group, "checkpoints": folder / name, "resume": True, **SAVING}
        found[name] = attempt(train, DEEP, DEEP.initial(1), models.examples(), recipe, **usual)
    return found


def others(group: Group, folder: Path, names: list[str]) -> dict[str, Any]:
    return {
        name: one for key in names for name, one in going_on(group, folder, [key], **STRATEGIES[key].again[1]).items()
    }


def of_two() -> list[str]:
    return [name for name, one in STRATEGIES.items() if 2 in one.worlds and one.lives]


def in_thirds() -> list[Any]:
    """Each strategy, with the third in which it is played: CI plays one on each day."""
    return [pytest.param(name, n % 3, marks=on_day(n % 3, of=3)) for n, name in enumerate(of_two())]


@cache
def lives(third: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, list[Any]]]:
    """By rank: undisturbed; after the kill. By strategy: what the ranks of another number give."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = of_two()[third::3]
        whole = together(2, saving, folder, names)
        for name in names:
            (survivor,) = together(2, killed, name, folder, lost=1)
            assert survivor[0] == "GroupLost", survivor
        after = together(2, going_on, folder / "killed", names)
        further: dict[str, list[Any]] = {}
        for world in sorted({STRATEGIES[name].again[0] for name in names}):
            some = [name for name in names if STRATEGIES[name].again[0] == world]
            answers = together(world, others, folder / "half", some)
            further |= {name: [one[name] for one in answers] for name in some}
        return whole, after, further


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("strategy", "third"), in_thirds())
def test_saved_steps_go_on_with_another_number_of_processes(strategy: str, third: int) -> None:
    found = lives(third)[2][strategy]
    check(strategy, LIVES[0], found, alone("none", PLAIN))
    if LIVES[0] not in STRATEGIES[strategy].refused:
        assert [report.began for _, report in found] == [10] * len(found)


@pytest.mark.parametrize(("strategy", "third"), in_thirds())
def test_a_killed_rank_changes_no_bit(strategy: str, third: int) -> None:
    for whole, after in zip(*lives(third)[:2], strict=True):
        (wanted, _), (found, report) = whole[strategy], after[strategy]
        # Some call the loss more than once a step. Models that are averaged after four steps are saved then.
        assert report.began in ((4,) if STRATEGIES[strategy].fields.get("sync_every") == 4 else (3, 6))
        assert all(np.array_equal(wanted[name], found[name]) for name in wanted)


# ------------------------------------------------------------ mixed precision


def smooth() -> nn.Module:
    """Of float32, without the jumps that a LayerNorm of few values makes."""
    blocks = [nn.Sequential(nn.Tanh(), nn.Linear(32, 32)) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, 32), *blocks, nn.Tanh(), nn.Linear(32, 3))


SINGLE = models.learner_of(smooth, blocks=("[12]",))
LONG = Recipe(**{**BASE, "steps": 200})


def in_bfloat16(group: Group) -> dict[str, float]:
    """By what is sharded: the loss over all examples after training."""
    data, found = models.examples(400), {}
    for shard in ("none", "gradients", "full"):
        recipe = LONG.model_copy(update={"precision": "bfloat16", "shard": shard})
        trained, _ = train(SINGLE, SINGLE.initial(1), data, recipe, group=group)
        found[shard] = SINGLE.evaluate(trained, data).metrics["loss"]
    return found


@on_day(1, of=2)
def test_bfloat16_ends_near_the_loss_of_float32() -> None:
    data = models.examples(400)
    first = SINGLE.evaluate(SINGLE.initial(1), data).metrics["loss"]
    wanted = SINGLE.evaluate(train(SINGLE, SINGLE.initial(1), data, LONG)[0], data).metrics["loss"]
    assert wanted < 0.6 * first, "it has learned"
    for losses in together(2, in_bfloat16):
        assert losses == pytest.approx(dict.fromkeys(losses, wanted), rel=0.02)
        assert wanted not in losses.values()


# ------------------------------------------------------------ what goes wrong


def failing(step: int, how: str) -> Learner:
    models.failing_loss.calls = 0  # type: ignore[attr-defined]
    return replace(DEEP, loss=partial(models.failing_loss, step=step, how=how))


def in_trouble(group: Group, shard: str) -> dict[str, Any]:
    """What goes wrong, and at last what ends the group."""
    found: dict[str, Any] = {}

    def trying(case: str, learner: Learner) -> None:
        recipe = Recipe(**{**BASE, "shard": shard, "optimizer": "sgd"})
        found[case] = attempt(train, learner, learner.initial(1), models.examples(), recipe, group=group)

    trying("not finite", failing(3, "nan"))
    trying("sparse", models.learner_of(models.Sparse))
    trying("few tensors", models.learner_of(lambda: nn.Linear(6, 3, bias=False).double()))
    trying("no such block", replace(DEEP, blocks=("7",)))
    trying("learner", failing(2, "raise"))
    return found


@cache
def troubles(shard: str) -> list[dict[str, Any]]:
    return together(2, in_trouble, shard)


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


@pytest.mark.parametrize("name", in_parts(LOCAL, of=2))
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


def in_machines(group: Group, folder: Path) -> dict[str, Any]:
    """Machines of two ranks, averaged after several steps."""
    found: dict[str, Any] = {}
    usual: dict[str, Any] = {"group": group, "checkpoint_every": 3, "checkpoints": folder}
    first, data = DEEP.initial(1), models.examples()
    recipe = Recipe(**{**BASE, **LOCAL["averaged"], "sync_within": 2, "steps": 21})
    found["whole"] = train(DEEP, first, data, recipe, group=group)
    train(DEEP, first, data, recipe.model_copy(update={"steps": 12}), **usual)
    found["again"] = train(DEEP, first, data, recipe, resume=True, **usual)
    raises = failing(2, "raise")
    found["raise"] = attempt(train, raises, first, data, recipe, group=group)
    own = recipe.model_copy(update={"sync_within": 3})
    found["does not divide"] = attempt(train, DEEP, first, data, own, group=group)
    found["still good"] = attempt(train, DEEP, first, data, recipe, group=group)
    return found


def test_ranks_of_a_machine_average_gradients_and_machines_their_models(tmp_path: Path) -> None:
    four = together(4, in_machines, tmp_path)
    wanted = by_hand(LOCAL["averaged"], DEEP, 21, 2)
    for ranks in four:
        model, report = ranks["whole"]
        assert models.largest_difference(model, wanted) <= TOLERANCE
        values = sum(array.size for array in model.values())
        assert report.gradient_bytes == (21 + 6) * 8 * values
        again, later = ranks["again"]
        assert later.began == 12
        assert all(np.array_equal(model[one], again[one]) for one in model)
        assert "sync_within = 3 does not divide the 4 processes" in ranks["does not divide"][1]
        assert ranks["still good"][1].steps == 21
    assert [ranks["raise"][0] for ranks in four] == ["RankFailed", "LearnerFailed", "RankFailed", "RankFailed"]
    assert all("KeyError: 'label 7 is unknown'" in ranks["raise"][1] for ranks in four)
