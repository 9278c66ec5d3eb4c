"""Gradients in fewer bytes: how many, what they come to, and that nothing of it is lost on the way or in a crash."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from client_sdk.learning import Learner
from client_sdk.learning.compression import Bits, Compressor, Halves, PowerSGD, TopK
from client_sdk.protocol.workers import DatacenterTask
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train
from tests.coordinator.datacenter import models
from tests.coordinator.datacenter.ranks import Group, attempt, together
from tests.rotating import on_day

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

COMPRESSORS: dict[str, Callable[[Group], Compressor]] = {
    "fp16": lambda group: Halves(group, torch.float16),
    "bf16": lambda group: Halves(group, torch.bfloat16),
    "powersgd": lambda group: PowerSGD(group, 3, 7),
    "topk": lambda group: TopK(group, 0.1, 0.0),
    "1bit": lambda group: Bits(group, 1),
    "2bit": lambda group: Bits(group, 2),
}
SHAPES = {"weight": (20, 30), "kernel": (4, 3, 3), "bias": (7,)}
VALUES = 600 + 36 + 7
WIRE = {
    "fp16": 2 * VALUES,
    "bf16": 2 * VALUES,
    "powersgd": 8 * (3 * (20 + 30) + 3 * (4 + 9) + 7),
    "topk": (8 + 4) * (60 + 4 + 1),
    "1bit": 75 + 5 + 1 + (20 + 4 + 1) * 8,
    "2bit": 2 * (75 + 5 + 1) + (20 + 4 + 1) * 8,
}
"""Bytes of one exchange of the shapes, in float64."""
STEPS = 300


def of_rank(rank: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}


def exchanged(group: Group) -> dict[str, Any]:
    """The mean of what 300 steps of the same gradients came to, the bytes of a step, and whether ranks agree."""
    found = {}
    for name, make in COMPRESSORS.items():
        compressor, total = make(group), {one: torch.zeros(shape).double() for one, shape in SHAPES.items()}
        for _ in range(STEPS):
            gradients = of_rank(group.rank)
            compressor.mean(gradients)
            for one in total:
                total[one] += gradients[one]
        found[name] = {one: (value / STEPS).numpy() for one, value in total.items()}, compressor.sent / STEPS
    for bits in (1, 2):
        uneven = {"weight": of_rank(group.rank)["weight"] * torch.tensor([1.0, 1e-6]).repeat(10)[:, None]}
        Bits(group, bits).mean(uneven)
        found[f"rows in {bits}"] = uneven["weight"].abs().amax(1).numpy()
    return found


@cache
def means() -> list[dict[str, Any]]:
    return together(2, exchanged)


@on_day(0, of=2)
@pytest.mark.parametrize("bits", [1, 2])
def test_a_small_row_gets_no_step_as_long_as_a_large_one(bits: int) -> None:
    longest = means()[0][f"rows in {bits}"]
    assert longest[0::2].min() > 0.1
    assert longest[1::2].max() < 1e-5


@on_day(0, of=2)
@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_a_step_leaves_out_comes_with_the_next_ones(name: str) -> None:
    wanted = {one: (of_rank(0)[one] + of_rank(1)[one]).numpy() / 2 for one in SHAPES}
    for found, sent in (ranks[name] for ranks in means()):
        for one, value in wanted.items():
            assert np.linalg.norm(found[one] - value) < 0.1 * np.linalg.norm(value)
        assert sent == WIRE[name]
    first, second = (ranks[name][0] for ranks in means())
    assert all(np.array_equal(first[one], second[one]) for one in SHAPES)


@pytest.mark.parametrize("bits", [1, 2])
def test_an_error_is_never_longer_than_the_gradient(bits: int) -> None:
    """Also of a single large value, where a code that rounds to fixed levels would be further off than zero."""
    spike = torch.zeros(1000).double()
    spike[3] = 1.0
    for gradient in (spike, torch.randn(1000).double(), torch.ones(1000).double(), torch.zeros(10).double()):
        compressor = Bits(Group(), bits)
        compressor._gathered = lambda tensor: [tensor]  # type: ignore[method-assign]
        compressor.mean({"a": gradient.clone()})
        assert compressor.kept["a"].norm() <= gradient.norm()


def large(width: int = 32) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)).double()


LEARNER = models.learner_of(large)
NAMES = ["fp16", "bf16", "powersgd", "topk", "1bit", "2bit"]
BASE: dict[str, Any] = {"batch_size": 12, "seed": 7, "learning_rate": 0.05, "optimizer": "sgd", "momentum": 0.5}


def recipe(name: str, steps: int = 60) -> Recipe:
    return Recipe(**BASE, steps=steps, compress=name, compress_rank=2, compress_density=0.1)


def failing(step: int, how: str) -> Learner:
    models.failing_loss.calls = 0  # type: ignore[attr-defined]
    return Learner(model=large, loss=partial(models.failing_loss, step=step, how=how))


def trained(group: Group, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    usual: dict[str, Any] = {"group": group, "checkpoint_every": 20}
    first = LEARNER.initial(1)
    for name in NAMES:
        found[name] = train(LEARNER, first, models.examples(), recipe(name), group=group)
        place = folder / name
        train(LEARNER, first, models.examples(), recipe(name, 40), checkpoints=place, **usual)
        on = train(LEARNER, first, models.examples(), recipe(name), checkpoints=place, resume=True, **usual)
        found[f"{name} again"] = on
        data = models.examples()
        found[f"{name} nan"] = attempt(train, failing(3, "nan"), first, data, recipe(name), group=group)
        found[f"{name} raise"] = attempt(train, failing(2, "raise"), first, data, recipe(name), group=group)
    found["sparse"] = attempt(
        train, models.learner_of(models.Sparse), models.learner_of(models.Sparse).initial(1), models.examples(),
        recipe("1bit"), group=group,
    )  # fmt: skip
    return found


def gone_on(group: Group, folder: Path) -> list[str]:
    """What three ranks say of the steps that two have saved."""
    said: list[str] = []
    first = LEARNER.initial(1)
    for name in NAMES:
        heard: list[dict[str, Any]] = []
        options: dict[str, Any] = {"checkpoints": folder / name, "resume": True, "on_message": heard.append}
        train(LEARNER, first, models.examples(), recipe(name, 70), group=group, **options)
        said += [f"{name}: {message['reason']}" for message in heard if message["event"] == "shared_out"]
    dist.barrier()
    return said


@cache
def trainings() -> tuple[list[dict[str, Any]], list[list[str]]]:
    with tempfile.TemporaryDirectory() as folder:
        two = together(2, trained, Path(folder))
        return two, together(3, gone_on, Path(folder))


@cache
def plainly() -> float:
    return float(train(LEARNER, LEARNER.initial(1), models.examples(), recipe("none"))[1].loss)


@on_day(1, of=2)
@pytest.mark.parametrize("name", NAMES)
def test_training_comes_nearly_as_far_with_fewer_bytes(name: str) -> None:
    (model, report), (other, _) = (ranks[name] for ranks in trainings()[0])
    assert all(np.array_equal(model[one], other[one]) for one in model)
    assert report.loss < plainly() + 0.25
    values = sum(array.size for array in model.values())
    assert report.gradient_bytes < 0.6 * report.steps * values * 8


@on_day(1, of=2)
@pytest.mark.parametrize("name", NAMES)
def test_going_on_gives_the_bits_of_never_stopping(name: str) -> None:
    for ranks in trainings()[0]:
        (wanted, _), (found, report) = ranks[name], ranks[f"{name} again"]
        assert report.began == 40
        assert all(np.array_equal(wanted[one], found[one]) for one in wanted)


@on_day(1, of=2)
def test_another_number_of_processes_shares_out_what_was_not_sent_and_says_so() -> None:
    said = trainings()[1][0]
    assert said == [f"{name}: What 2 processes had not sent yet is shared out over 3." for name in NAMES]


@on_day(1, of=2)
@pytest.mark.parametrize("name", NAMES)
def test_what_ranks_tell_each_other_is_not_compressed(name: str) -> None:
    first, second = trainings()[0]
    assert first[f"{name} nan"][0] == "Diverged"
    assert "The loss at step 3 is not finite" in first[f"{name} nan"][1]
    assert second[f"{name} raise"][0] == "LearnerFailed"
    assert "at step 2, on a batch of 6: KeyError" in second[f"{name} raise"][1]
    assert first[f"{name} raise"][0] == second[f"{name} nan"][0] == "RankFailed"


@on_day(1, of=2)
def test_sparse_gradients_are_refused() -> None:
    assert trainings()[0][0]["sparse"][1].startswith("An embedding with sparse gradients cannot be compressed")


@pytest.mark.parametrize("kind", [Recipe, partial(DatacenterTask, data="public", nproc=2)])
def test_what_does_not_go_together_is_refused_before_training(kind: Any) -> None:
    with pytest.raises(ValueError, match="compress = '1bit' does not go with shard = 'full'"):
        kind(steps=3, compress="1bit", shard="full")
    with pytest.raises(ValueError, match="float16 scales losses by a whole gradient"):
        kind(steps=3, compress="1bit", precision="float16")
