"""Meshes of processes: products of data, tensor and pipeline parallelism give what one process gives, every schedule
does, and what cannot be divided is refused in a sentence before the first step."""

from __future__ import annotations

import os
import re
import tempfile
import time
from functools import cache, partial
from itertools import combinations, cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode

from client_sdk.learning import Learner
from client_sdk.learning import mesh as meshes
from client_sdk.learning.data import as_examples
from client_sdk.learning.mesh import SCHEDULES, MeshGradient
from client_sdk.protocol.workers import DatacenterTask, Mesh
from client_sdk.tensors import Tensors
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train
from tests.coordinator.datacenter import models
from tests.coordinator.datacenter.ranks import Group, attempt, together
from tests.rotating import on_day, taking_turns

pytestmark = [pytest.mark.datacenter]

TOLERANCE = 1e-9
BASE = {"steps": 20, "learning_rate": 0.05, "seed": 7, "batch_size": 12, "accumulate": 4}


class Attention(nn.Module):
    """Heads of two numbers; as many as the process has."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x).unflatten(-1, (-1, 2)).transpose(1, 2) for one in (self.q, self.k, self.v))
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o(found.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(8), Attention()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Tokens(nn.Module):
    """Three numbers make a token, of which each example has two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x.unflatten(-1, (2, 3)))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x).mean(1))


class Transformer(nn.Module):
    def __init__(self, blocks: int = 4, width: int = 12) -> None:
        super().__init__()
        self.tokens, self.head = Tokens(), Head()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Between(Transformer):
    """Does something between its modules."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + 1
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def transformer(**options: Any) -> nn.Module:
    return Transformer(**options).double()


def between() -> nn.Module:
    return Between().double()


def by_class(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A sum, and the sum of weights by which it is divided."""
    weights = torch.tensor([1.0, 2.0, 4.0], dtype=outputs.dtype)
    return nn.functional.cross_entropy(outputs, targets, weights, reduction="sum"), weights[targets].sum()


DIVIDED = {
    "*.attention": "input",
    "*.[qkv]": "column",
    "*.o": "row",
    "*.up": "column",
    "*.down": "row",
}
PARTS: dict[str, Any] = {"blocks": ("blocks.?",), "tensor": DIVIDED}
ADAM = Learner(model=transformer, loss=by_class, **PARTS, optimizer=torch.optim.Adam)
LEARNER = models.learner_of(transformer, **PARTS)

CASES: dict[str, tuple[Learner, dict[str, Any]]] = {
    "clipping": (LEARNER, {"max_grad_norm": 0.1, "optimizer": "sgd", "unused_parameters": True}),
    "adam": (ADAM, {"learning_rate": 0.01, "batch_size": 20}),
}
PRODUCTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "tensor": {"mesh": {"tensor": 2}},
        "data": {"mesh": {"data": 2}},
        "data, full": {"mesh": {"data": 2}, "shard": "full"},
        "gpipe": {"mesh": {"pipeline": 2}, "schedule": "gpipe", "accumulate": 1},
        "1f1b, recomputed": {"mesh": {"pipeline": 2}, "recompute": True},
        "interleaved": {"mesh": {"pipeline": 2}, "schedule": "interleaved"},
        "zb": {"mesh": {"pipeline": 2}, "schedule": "zb"},
        "dualpipev": {"mesh": {"pipeline": 2}, "schedule": "dualpipev"},
    },
    4: {
        "(2, 2, 1)": {"mesh": {"data": 2, "tensor": 2}},
        "(2, 2, 1) full": {"mesh": {"data": 2, "tensor": 2}, "shard": "full"},
        "(1, 2, 2)": {"mesh": {"tensor": 2, "pipeline": 2}, "recompute": True},
        "(2, 1, 2)": {"mesh": {"data": 2, "pipeline": 2}, "accumulate": 3},
        "(2, 1, 2) gradients": {"mesh": {"data": 2, "pipeline": 2}, "shard": "gradients", "schedule": "interleaved"},
        "(2, 1, 2) full": {"mesh": {"data": 2, "pipeline": 2}, "shard": "full", "recompute": True},
        "(1, 2, 2) dualpipev": {"mesh": {"tensor": 2, "pipeline": 2}, "schedule": "dualpipev"},
        "(1, 1, 4)": {"mesh": {"pipeline": 4}},
        "(2, 1, 2) zb": {"mesh": {"data": 2, "pipeline": 2}, "schedule": "zb"},
        "(2, 1, 2) dualpipev": {"mesh": {"replicas": 2, "pipeline": 2}, "schedule": "dualpipev"},
        "HSDP": {"mesh": {"replicas": 2, "data": 2}, "shard": "full", "accumulate": 2},
    },
    8: {
        "(2, 2, 2)": {"mesh": {"data": 2, "tensor": 2, "pipeline": 2}},
        "(2, 2, 2) full": {"mesh": {"data": 2, "tensor": 2, "pipeline": 2}, "shard": "full"},
        "HSDP and tensor": {
            "mesh": {"replicas": 2, "data": 2, "tensor": 2},
            "shard": "full",
            "accumulate": 2,
        },
    },
}


def cells(world: int) -> list[tuple[str, str]]:
    """Products with cases, which take turns."""
    return list(zip(PRODUCTS[world], cycle(CASES), strict=False))


def all_products(group: Group, world: int) -> dict[tuple[str, str], Any]:
    found = {}
    for name, case in cells(world):
        learner, fields = CASES[case]
        recipe = Recipe(**{**BASE, **fields, **PRODUCTS[world][name]})
        found[name, case] = attempt(train, learner, learner.initial(1), models.examples(), recipe, group=group)
    return found


@cache
def by_ranks(world: int) -> list[dict[tuple[str, str], Any]]:
    return together(world, all_products, world)


@cache
def alone(case: str) -> tuple[Tensors, float]:
    learner, fields = CASES[case]
    model, report = train(learner, learner.initial(1), models.examples(), Recipe(**{**BASE, **fields}))
    return model, report.loss


def require_equal(world: int, name: str, case: str) -> None:
    wanted, loss = alone(case)
    found = [rank[name, case] for rank in by_ranks(world)]
    for model, report in found:
        assert models.largest_difference(model, wanted) <= TOLERANCE
        assert report.loss == pytest.approx(loss, rel=1e-9)
    assert all(np.array_equal(found[0][0][one], model[one]) for model, _ in found for one in wanted)
    assert models.largest_difference(wanted, CASES[case][0].initial(1)) > 1e-3, "or nothing was trained"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), cells(2))
def test_two_processes_equal_one(name: str, case: str) -> None:
    require_equal(2, name, case)


@on_day(0, of=4)
@pytest.mark.parametrize(("name", "case"), cells(4))
def test_four_processes_equal_one(name: str, case: str) -> None:
    require_equal(4, name, case)


@on_day(2, of=4)
@pytest.mark.parametrize(("name", "case"), cells(8))
def test_eight_processes_equal_one(name: str, case: str) -> None:
    require_equal(8, name, case)


# ------------------------------------------------------------ what goes wrong


class Heads(Block):
    """Has as many heads in each process as in one."""

    def __init__(self) -> None:
        super().__init__()
        self.attention.forward = self.fixed  # type: ignore[method-assign]

    def fixed(self, x: torch.Tensor) -> torch.Tensor:
        one = self.attention
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (one.q, one.k, one.v))
        return one.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Scaled(Block):
    """A layer of weights between a column and its row, the same for all heads: each process sees a part of its
    gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.scale * torch.tanh(self.up(self.norm(x))))


class Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(), alpha=0.1)
        return x - self.mean


def chain(*parts: Any) -> nn.Module:
    return nn.Sequential(*(part() for part in parts)).double()


def tied() -> nn.Module:
    module = transformer()
    module.blocks[1].up.weight = module.blocks[2].up.weight
    return module


IN_A_CHAIN: dict[str, Any] = {"blocks": ("[12]",), "tensor": DIVIDED}
TENSOR, PIPELINE = {"mesh": {"tensor": 2}}, {"mesh": {"pipeline": 2}}
REFUSED: dict[str, tuple[Learner, dict[str, Any], str]] = {
    "places": (LEARNER, {"mesh": {"data": 2, "tensor": 2}}, "mesh has 4 places (data=2,tensor=2), and there are 2"),
    "no plan": (models.learner_of(transformer), TENSOR, "mesh.tensor needs the learner's tensor"),
    "no such layer": (
        models.learner_of(transformer, tensor={"left": "row"}),
        TENSOR,
        "The learner's tensor names 'lef",
    ),
    "no Linear": (models.learner_of(transformer, tensor={"*.norm": "row"}), TENSOR, "norm is a LayerNorm: column and"),
    "width": (models.learner_of(partial(transformer, width=5), **PARTS), TENSOR, "has 5 outputs, which do not split"),
    "half a pair": (models.learner_of(transformer, tensor={"*.up": "column"}), TENSOR, "the model fails ("),
    "heads": (models.learner_of(partial(chain, Tokens, Heads, Heads, Head), **IN_A_CHAIN), TENSOR, "computes is anoth"),
    "weights": (
        models.learner_of(partial(chain, Tokens, Scaled, Scaled, Head), **IN_A_CHAIN),
        TENSOR,
        "the gradient of",
    ),
    "tied": (models.learner_of(tied, **PARTS), PIPELINE, "is tied to blocks.1.up.weight: over tensor and pipeline"),
    "no blocks": (models.learner_of(transformer), PIPELINE, "The learner names 0 blocks, and schedule = '1f1b' over"),
    "few blocks": (
        models.learner_of(partial(transformer, blocks=3), **PARTS),
        {**PIPELINE, "schedule": "zb"},
        "The learner names 3 blocks, and schedule = 'zb' over pipeline = 2 has 4 stages, each of a block or more.",
    ),
    "no chain": (models.learner_of(between, **PARTS), PIPELINE, "and blocks.0 is given something else than the module"),
    "BatchNorm": (models.learner_of(models.batchnorm, blocks=("?",)), PIPELINE, "is a BatchNorm1d, which takes statis"),
    "sparse": (models.learner_of(models.Sparse), {"mesh": {"data": 2}}, "An embedding with sparse gradients cannot be"),
    "frozen": (
        models.learner_of(transformer, **PARTS, averaged=("head.*",)),
        {**PIPELINE, "averaged": ("head.*",)},
        "A stage has no trained tensor: take fewer stages.",
    ),
    "statistics": (
        models.learner_of(partial(chain, Tokens, Block, Block, Moving, Head), **IN_A_CHAIN),
        PIPELINE,
        "The model's buffer 3.mean takes statistics of its batch, of which no process of a mesh sees all",
    ),
}


def all_refused(group: Group, _: str) -> dict[str, Any]:
    found = {}
    for case, (learner, fields, _) in REFUSED.items():
        recipe = Recipe(**{**BASE, "optimizer": "sgd", **fields})
        found[case] = attempt(train, learner, learner.initial(1), models.examples(), recipe, group=group)
    return found


def failing(step: int, how: str) -> Learner:
    models.failing_loss.calls = 0  # type: ignore[attr-defined]
    return Learner(model=transformer, loss=partial(models.failing_loss, step=step, how=how), **PARTS)


def in_trouble(group: Group, fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def trying(case: str, learner: Learner, more: dict[str, Any] | None = None, **options: Any) -> None:
        recipe = Recipe(**{**BASE, "optimizer": "sgd", **fields, **(more or {})})
        found[case] = attempt(train, learner, learner.initial(1), models.examples(), recipe, group=group, **options)

    trying("not finite", failing(3, "nan"))
    trying("half", LEARNER, {"steps": 9}, checkpoints=folder, checkpoint_every=3)
    trying("on", LEARNER, {"steps": 14}, checkpoints=folder, resume=True)
    trying("at once", LEARNER, {"steps": 14})
    trying("learner", failing(2, "raise"))
    return found


@cache
def refusals() -> list[dict[str, Any]]:
    return together(2, all_refused, "")


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_divided_is_refused_by_one_rank_in_a_sentence(case: str) -> None:
    words = REFUSED[case][2]
    first, second = refusals()[0][case], refusals()[1][case]
    assert {first[0], second[0]} == {"LearnerFailed", "RankFailed"}
    assert all(words in text and "\n" not in text for _, text in (first, second))


TROUBLE: dict[str, dict[str, Any]] = {"tensor": TENSOR, "pipeline": PIPELINE}


@cache
def troubles(strategy: str) -> tuple[list[dict[str, Any]], Any, Any]:
    """What goes wrong on two ranks; and one process, and another mesh, that go on from what they saved."""
    with tempfile.TemporaryDirectory() as folder:
        found = together(2, in_trouble, TROUBLE[strategy], Path(folder))
        other = together(2, going_on, TROUBLE["pipeline" if strategy == "tensor" else "tensor"], Path(folder), 17)
        return found, other, going_on(Group(), {}, Path(folder), 20)


def going_on(group: Group, fields: dict[str, Any], folder: Path, steps: int) -> Any:
    recipe = Recipe(**{**BASE, "optimizer": "sgd", **fields, "steps": steps})
    options: dict[str, Any] = {"group": group, "checkpoints": folder, "resume": True}
    return attempt(train, LEARNER, LEARNER.initial(1), models.examples(), recipe, **options)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", taking_turns(*TROUBLE))
def test_one_rank_says_what_went_wrong_in_a_step(strategy: str) -> None:
    first, second = troubles(strategy)[0]
    assert first["not finite"][0] == "Diverged"
    assert "is not finite: try a smaller learning rate" in first["not finite"][1]
    assert second["learner"][0] == "LearnerFailed"
    assert "KeyError: 'label 7 is unknown'" in second["learner"][1]
    assert second["not finite"][0] == first["learner"][0] == "RankFailed"
    assert second["learner"][1] in first["learner"][1], "the other knows why too"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", taking_turns(*TROUBLE))
def test_saved_steps_go_on_with_any_mesh(strategy: str) -> None:
    wanted, _ = train(LEARNER, LEARNER.initial(1), models.examples(), Recipe(**{**BASE, "optimizer": "sgd"}))
    ranks, others, (model, report) = troubles(strategy)
    for rank in ranks:
        (again, later), (once, _) = rank["on"], rank["at once"]
        assert later.began == 9
        assert all(np.array_equal(again[name], once[name]) for name in wanted), "the same bits as without a stop"
    assert [later.began for _, later in others] == [14, 14]
    assert (report.began, report.world) == (17, 1)
    assert models.largest_difference(model, wanted) <= TOLERANCE


def hanging_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if os.environ.get("RANK") == "1":
        time.sleep(30)
    return nn.functional.cross_entropy(outputs, targets)


def hung(group: Group, fields: dict[str, Any]) -> Any:
    """What rank 0 hears, and after how long; rank 1 is silent for longer."""
    learner = Learner(model=transformer, loss=hanging_loss, **PARTS)
    recipe = Recipe(**{**BASE, "optimizer": "sgd", **fields})
    began = time.monotonic()
    found = attempt(train, learner, learner.initial(1), models.examples(), recipe, group=group)
    return found, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("strategy", taking_turns(*reversed(TROUBLE)))
def test_a_stage_that_hangs_is_noticed_after_the_time_of_the_group(strategy: str) -> None:
    (kind, text), after = together(2, hung, TROUBLE[strategy], hang_s=12)[0]
    assert kind == "GroupLost"
    assert "was silent for 12 s" in text
    assert after < 30


# ------------------------------------------------------------ what it costs


class Slept(torch.autograd.Function):
    """Takes time, and no processor: ranks overlap on any number of cores."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Sleeper(nn.Linear):
    def __init__(self, seconds: float) -> None:
        super().__init__(6, 6)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Slept.apply(super().forward(x), self.seconds)  # type: ignore[no-untyped-call,no-any-return]


def gradient_of(group: Group, module: nn.Module, learner: Learner, accumulate: int, **mesh: Any) -> MeshGradient:
    options = {"shard": "none", "schedule": "1f1b", "tensor": learner.tensor, "batch_size": 12, **mesh}
    return MeshGradient(
        module,
        list(module.parameters()),
        learner.loss,
        group,
        examples=as_examples(models.examples()),
        floating=torch.float64,
        accumulate=accumulate,
        precision="float32",
        blocks=learner.blocks,
        **options,
    )


STAGES, MICRO, SECONDS = 2, 4, 0.12


def idle_parts(group: Group, aims: dict[str, float]) -> dict[str, float]:
    """The part of a step in which a rank waits, for each schedule the least of some steps: the machine may be busy."""
    found = {}
    for schedule, aim in aims.items():
        stages = SCHEDULES[schedule][1]
        module = nn.Sequential(*(Sleeper(SECONDS / stages) for _ in range(STAGES * stages))).double()
        learner = models.learner_of(lambda: None, blocks=("?",))
        gradient = gradient_of(group, module.train(), learner, MICRO, mesh=Mesh(pipeline=STAGES), schedule=schedule)
        least = 1.0
        for step in range(20):
            dist.barrier()
            began = time.perf_counter()
            gradient.compute(as_examples(models.examples()), torch.arange(12), step)
            least = min(least, 1 - MICRO * 3 * SECONDS / (time.perf_counter() - began))
            if group.decide(least <= aim + 0.06):
                break
        found[schedule] = least
    return found


@on_day(1, of=2)
def test_stages_wait_as_long_as_the_formula_says() -> None:
    """(p - 1) / (v m + p - 1) of the time, with v stages a process, and what messages take."""
    aims = {name: (STAGES - 1) / (SCHEDULES[name][1] * MICRO + STAGES - 1) for name in ("gpipe", "1f1b", "interleaved")}
    found = together(STAGES, idle_parts, aims)[0]
    for name, aim in aims.items():
        assert aim <= found[name] <= aim + 0.06, name


def all_reduces(group: Group, plan: dict[str, str]) -> int:
    module = transformer().train()
    learner = models.learner_of(transformer, tensor=plan)
    gradient = gradient_of(group, module, learner, 1, mesh=Mesh(tensor=2))
    with CommDebugMode() as counted:
        gradient.compute(as_examples(models.examples()), torch.arange(12), 0)
    counts = counted.get_comm_counts()
    return sum(number for kind, number in counts.items() if "functional.all_reduce" in str(kind))


@on_day(0, of=2)
def test_a_layer_of_a_transformer_is_added_up_four_times() -> None:
    """As Megatron does: twice forward and twice backward; without *input* q, k and v are added up one by one."""
    assert together(2, all_reduces, DIVIDED)[0] == 4 * 4
    without = {name: style for name, style in DIVIDED.items() if style != "input"}
    assert together(2, all_reduces, without)[0] == 4 * 6


# ------------------------------------------------------------ without processes


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_stage_that_costs_most_costs_least(stages: int) -> None:
    drawn = np.random.default_rng(stages)
    for _ in range(30):
        costs = drawn.exponential(size=9).tolist()
        borders = [1, 2, 4, 5, 7]

        def worst(begins: tuple[int, ...], costs: list[float] = costs) -> float:
            return max(sum(costs[one:end]) for one, end in pairwise([0, *begins, len(costs)]))

        found = meshes.cuts(costs, borders, stages)
        assert set(found) <= set(borders[1:])
        assert worst(found) == pytest.approx(min(map(worst, combinations(borders[1:], stages - 1))))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nproc": 2}, "the mesh has 4 places (data=2,pipeline=2), and nproc is 2"),
        ({"batch_size": 7}, "batch_size (7) is below data times replicas of the mesh times accumulate (8)"),
        ({"accumulate": 1}, "schedule = '1f1b' over pipeline = 2 needs at least 2 micro-batches, and accumulate is 1"),
        (
            {"schedule": "dualpipev", "mesh": {"tensor": 2, "pipeline": 2}, "accumulate": 3},
            "needs at least 4 micro-batches, and accumulate is 3",
        ),
        ({"schedule": "interleaved", "accumulate": 5}, "accumulate = 5 is no multiple of pipeline = 2"),
        ({"schedule": "zb", "shard": "full"}, "'zb' divides backward passes, and shard = 'full' needs them whole"),
        ({"shard": "optimizer"}, "and with shard = 'none', 'gradients' or 'full'"),
        ({"compress": "fp16"}, "mesh goes with no sync_every"),
        ({"sync_every": 3}, "mesh goes with no sync_every"),
        ({"precision": "float16"}, "mesh goes with no sync_every"),
        ({"mesh": {"rows": 2}}, "Extra inputs are not permitted"),
    ],
)
def test_a_plan_says_what_does_not_go_together(fields: dict[str, Any], words: str) -> None:
    usual = {"data": "d", "nproc": 4, "mesh": {"data": 2, "pipeline": 2}, "accumulate": 4, "batch_size": 12}
    assert DatacenterTask.model_validate(usual).mesh == Mesh(data=2, pipeline=2)
    with pytest.raises(ValueError, match=re.escape(words)):
        DatacenterTask.model_validate(usual | fields)


# ------------------------------------------------------------ memory


def moves(group: Group, case: str) -> tuple[int, int]:
    """Numbers of the model, and the most that are moved to the group's device with one call."""
    sizes = []
    plain = nn.Module.to

    def noted(module: nn.Module, *place: Any) -> nn.Module:
        if place == (group.device,):
            sizes.append(sum(one.numel() for one in module.parameters()))
        return plain(module, *place)

    nn.Module.to = noted  # type: ignore[method-assign,assignment]
    try:
        recipe = Recipe(**{**BASE, "steps": 1, **PRODUCTS[2][case]})
        train(LEARNER, LEARNER.initial(1), models.examples(), recipe, group=group)
    finally:
        nn.Module.to = plain  # type: ignore[method-assign]
    return sum(one.size for one in LEARNER.initial(1).values()), max(sizes, default=0)


@on_day(0, of=2)
def test_a_gpu_never_gets_more_of_a_pipeline_than_its_stages() -> None:
    """Or a model that one GPU cannot hold could not begin."""
    for whole, most in together(2, moves, "interleaved"):
        assert 0 < most < 0.6 * whole
    assert [most for _, most in together(2, moves, "data, full")] == [0, 0], "fully_shard moves what it divides"
