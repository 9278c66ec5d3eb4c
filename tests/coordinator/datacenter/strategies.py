"""The strategies of a datacenter against what can happen to a training: what each cell of the table must give.

A row is a strategy (``STRATEGIES``), a column a case (``CASES``), or what is done with saved steps (``LIVES``).
``test_strategies`` plays all cells, and ``scripts.strategy_table`` writes them into docs/datacenter.md.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from client_sdk.learning import Learner
from tests.coordinator.datacenter import models

TOLERANCE = 1e-9
BASE = {"steps": 20, "learning_rate": 0.05, "seed": 7, "batch_size": 12}
"""50 examples: the last batch of an epoch has 2, so that of three ranks and more some have none of it."""


class First(nn.Module):
    """The first layer, with what a model may have besides: ``part``, as in CASES."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part
        self.main = nn.Embedding(40, 8, sparse=True) if part == "sparse" else nn.Linear(6, 8)
        if part in ("never", "sometimes"):
            self.rest = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.part == "sparse":
            rows: torch.Tensor = self.main((x.abs() * 10).long().clamp(0, 39)).mean(1)
            return rows
        found: torch.Tensor = self.main(x)
        large = x[:, :1] > 2.5
        return found + self.rest(x) * large if self.part == "sometimes" and bool(large.any()) else found


def model(part: str = "") -> nn.Module:
    """Four blocks between two layers."""
    blocks = [
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.0)) for _ in range(4)
    ]
    return nn.Sequential(First(part), *blocks, nn.Linear(8, 3)).double()


def deep(part: str = "", **options: Any) -> Learner:
    tensor = {"[1-4].0": "column", "[1-4].2": "row"}
    return models.learner_of(partial(model, part), blocks=("[1-4]",), tensor=tensor, **options)


DEEP, ADAM = deep(), deep(optimizer=torch.optim.Adam)
SOME = ("5.*", "[12].*")


@dataclass(frozen=True)
class Case:
    """Something that a training may have: fields of its recipe, and its learner."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    learner: Learner = DEEP


UNUSED = {"unused_parameters": True, "optimizer": "sgd", "learning_rate": 0.02}
CASES: dict[str, Case] = {
    "even batch": Case({"batch_size": 10}),
    "uneven batch": Case(),
    "accumulation": Case({"accumulate": 3}),
    "clipping": Case({"max_grad_norm": 0.1}),
    "momentum": Case({"optimizer": "sgd", "learning_rate": 0.02, "weight_decay": 1e-3}),
    "Adam": Case({"learning_rate": 0.01}, ADAM),
    "LARS": Case({"optimizer": "lars", "trust_coefficient": 0.05}),
    "LAMB": Case({"optimizer": "lamb", "learning_rate": 0.02, "weight_decay": 1e-2}),
    "never used": Case(UNUSED, deep("never")),
    "sometimes unused": Case({**UNUSED, "batch_size": 8}, deep("sometimes")),
    "a part frozen": Case({"averaged": SOME}, deep(averaged=(*SOME, "0.*"))),
    "sparse rows": Case({}, deep("sparse")),
}
LIVES = ("another N", "a killed rank")
"""Saved steps that another number of processes goes on with, and one process killed at a step."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A row. A cell that is in neither ``near`` nor ``refused`` equals one process at the global batch, to TOLERANCE;
    after a kill, the bits without it in any case."""

    said: str
    """How the page calls it."""
    fields: Mapping[str, Any]
    """Of the recipe."""
    near: Mapping[str, float] = field(default_factory=dict)
    """By case: numbers differ, and the loss over all examples is above that of one process by this part at most."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By case: words of the sentence with which one rank refuses it."""
    learners: Mapping[str, Learner] = field(default_factory=dict)
    """By case: a learner other than the case's, for both sides."""
    worlds: tuple[int, ...] = (2, 4, 8)
    """Numbers of ranks. Cells take turns: a quarter of those of 2 is played each day."""
    again: tuple[int, Mapping[str, Any]] = (3, {})
    """With which number of ranks, and fields, the steps saved by two ranks go on. Played for rows of two ranks."""
    lives: bool = True
    """Whether LIVES are played. Those in which processes do not wait for each other have tests of their own: a death
    stops nobody, or the bits are others each time."""


def lossy(words: str, near_by: float, adam: float | None = None, **fields: Any) -> Strategy:
    """``adam``: of Adam, whose second moments few bits disturb most."""
    near = dict.fromkeys((*CASES, LIVES[0]), near_by) | {"Adam": adam or near_by}
    sparse = {"sparse rows": "An embedding with sparse gradients cannot be compressed"}
    fields = {"compress": words, **fields}
    return Strategy(said=f'compress = "{words}"', fields=fields, near=near, refused=sparse, worlds=(2, 4))


def mesh(words: str, axes: Mapping[str, int], world: int, **fields: Any) -> Strategy:
    sparse = {"sparse rows": "An embedding with sparse gradients cannot be divided over a mesh"}
    again: tuple[int, Mapping[str, Any]] = (3, {"mesh": {"data": 3}})
    return Strategy(said=words, fields={"mesh": axes, **fields}, refused=sparse, worlds=(world,), again=again)


def loose(words: str, near_by: float, lives: bool = False, **fields: Any) -> Strategy:
    """Processes that do not exchange every gradient before they move."""
    by_itself = bool({"server", "hogwild"} & fields.keys())
    refused = {LIVES[0]: "here are 3: with sync_every and hogwild a training goes on with as many"} if lives else {}
    if words != "server = {backup = 1}" and by_itself:
        refused["clipping"] = "max_grad_norm is of a whole batch's gradient, and processes that do not wait have none"
    near = dict.fromkeys(CASES, near_by)
    return Strategy(said=words, fields=fields, near=near, refused=refused, worlds=(2,), lives=lives)


NO_SPARSE = {"sparse rows": "An embedding with sparse gradients cannot be sharded: take shard = 'optimizer'"}
STRATEGIES: dict[str, Strategy] = {
    "none": Strategy(said='shard = "none"', fields={}),
    "optimizer": Strategy(said='shard = "optimizer"', fields={"shard": "optimizer"}),
    "gradients": Strategy(said='shard = "gradients"', fields={"shard": "gradients"}, refused=NO_SPARSE),
    "full": Strategy(said='shard = "full"', fields={"shard": "full"}, refused=NO_SPARSE),
    "recompute": Strategy(said="recompute = true", fields={"recompute": True}),
    "full and recompute": Strategy(
        said='shard = "full", recompute = true', fields={"shard": "full", "recompute": True}, refused=NO_SPARSE
    ),
    "models averaged at each step": Strategy(
        said="sync_every = 1",
        fields={"sync_every": 1},
        near=dict.fromkeys(("clipping", "Adam", "LARS", "LAMB"), 0.5),
        worlds=(2,),  # of more some have no example of the last batch, and momentum moves them all the same
        refused={"another N": "here are 3: with sync_every and hogwild a training goes on with as many"},
    ),
    "models of two averaged at each step": Strategy(
        said="sync_every = 1, sync_within = 2",
        fields={"sync_every": 1, "sync_within": 2},
        near=dict.fromkeys(("clipping", "Adam", "LARS", "LAMB"), 0.5),
        worlds=(4,),
    ),
    "models averaged after four steps": loose("sync_every = 4", 0.6, lives=True, sync_every=4),
    "DiLoCo": loose(
        "sync_every = 4, outer_learning_rate = 0.7, outer_momentum = 0.9",
        0.6,
        lives=True,
        sync_every=4,
        outer_learning_rate=0.7,
        outer_momentum=0.9,
    ),
    "a late server": loose("server = {staleness = 2}", 0.6, server={"staleness": 2}),
    "a spare worker": loose("server = {backup = 1}", 0.6, server={"backup": 1}),
    "hogwild": loose("hogwild = true", 0.6, hogwild=True),
    "one server": Strategy(said="server = {count = 1}", fields={"server": {"count": 1}}),
    "two servers": Strategy(said="server = {count = 2}", fields={"server": {"count": 2}}),
    "tensor": mesh("mesh = {tensor = 2}", {"tensor": 2}, 2),
    "pipeline": mesh("mesh = {pipeline = 2}, accumulate = 3", {"pipeline": 2}, 2, accumulate=3),
    "data and tensor": mesh("mesh = {data = 2, tensor = 2}", {"data": 2, "tensor": 2}, 4),
    "tensor and pipeline": mesh(
        'mesh = {tensor = 2, pipeline = 2}, schedule = "gpipe"', {"tensor": 2, "pipeline": 2}, 4, schedule="gpipe"
    ),
    "data and pipeline": mesh(
        'mesh = {data = 2, pipeline = 2}, shard = "full", accumulate = 2',
        {"data": 2, "pipeline": 2},
        4,
        shard="full",
        accumulate=2,
    ),
    "data and divided backward passes": mesh(
        'mesh = {data = 2, pipeline = 2}, schedule = "zb", accumulate = 2',
        {"data": 2, "pipeline": 2},
        4,
        schedule="zb",
        accumulate=2,
    ),
    "replicas": mesh('mesh = {replicas = 2, data = 2}, shard = "full"', {"replicas": 2, "data": 2}, 4, shard="full"),
    "all three": mesh(
        "mesh = {data = 2, tensor = 2, pipeline = 2}, accumulate = 2",
        {"data": 2, "tensor": 2, "pipeline": 2},
        8,
        accumulate=2,
    ),
    **{name: lossy(name, 0.01) for name in ("fp16", "bf16")},
    "powersgd": lossy("powersgd", 0.1, compress_rank=2),
    "topk": lossy("topk", 0.6, compress_density=0.2),
    "1bit": lossy("1bit", 0.3, adam=0.6),
    "2bit": lossy("2bit", 0.2, adam=0.6),
}


def mark(strategy: Strategy, case: str) -> str:
    """What the cell of the page says: equal, near, refused, or "-" where it is not played."""
    if case in LIVES and not (strategy.lives and 2 in strategy.worlds):
        return "-"
    if case in strategy.refused:
        return "refused"
    return "near" if case in strategy.near and case != LIVES[1] else "equal"


def dying(outputs: torch.Tensor, targets: torch.Tensor, step: int) -> torch.Tensor:
    """Cross-entropy, which kills rank 1 at its ``step``-th call."""
    if os.environ.get("RANK") == "1":
        dying.calls = getattr(dying, "calls", 0) + 1  # type: ignore[attr-defined]
        if dying.calls == step:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)
    return nn.functional.cross_entropy(outputs, targets)
