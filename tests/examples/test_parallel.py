"""Divided models train as one process does, and asynchronous pipelines compute what they are said to compute."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from client_sdk.learning.group import Group
from examples.parallel import channel, embedding, experts, pipeline, spatial
from examples.parallel.embedding import Found
from tests.coordinator.datacenter.ranks import together
from tests.rotating import taking_turns

EXAMPLES = {
    "rows of images": spatial.difference,
    "channels": channel.difference,
    "rows of a table": lambda: embedding.compare().difference,
    "experts": experts.difference,
}


def divided(group: Group) -> tuple[dict[str, float], Found, list[str], dict[str, float]]:
    """Differences from one process; what became of the table; refusals; differences where something is left out."""
    torch.set_num_threads(1)
    found = {name: difference() for name, difference in EXAMPLES.items()}
    found["an odd height"] = spatial.difference(height=13)
    found["a batch that leaves ranks without examples"] = embedding.compare(batch=1).difference
    found["one token"] = experts.difference(tokens=1)
    found["one expert a token, one expert a rank"] = experts.difference(experts=group.world, k=1)
    refused = []
    for attempt in (
        lambda: spatial.difference(height=2 * group.world - 1),
        lambda: channel.difference(between=1),
        lambda: embedding.compare(rows=1),
        lambda: experts.difference(experts=1, k=1),
    ):
        with pytest.raises(ValueError, match=r"^.*ranks") as error:
            attempt()
        refused.append(str(error.value))
    return found, embedding.compare(rows=1000), refused, without_an_exchange()


def without_an_exchange() -> dict[str, float]:
    """How far each example is from one process if nobody adds up gradients, or halos, or terms."""
    found = {}
    for module, (name, difference) in zip((spatial, channel, embedding, experts), EXAMPLES.items(), strict=True):
        with patch.object(module, "sum_gradients", lambda parameters: None):
            found[f"{name}, gradients"] = difference()
    with patch.object(spatial, "all_to_all", lambda rows, *_: torch.zeros_like(rows)):
        found["halos"] = spatial.difference()
    with patch.object(channel, "all_reduce", lambda x: x):
        found["terms"] = channel.difference()
    return found


@pytest.mark.slow
@pytest.mark.datacenter
@pytest.mark.parametrize("world", taking_turns(2, 4))
def test_what_is_divided_trains_as_one_process_does(world: int) -> None:
    for differences, table, refused, broken in together(world, divided):
        assert {name: far for name, far in differences.items() if far > 1e-14} == {}
        assert table.difference < 1e-14
        assert not table.moved, "no row changes that no batch named"
        assert 0 < table.touched <= 5 * 9 * 3
        assert refused == [
            "A kernel reaches 2 rows further, and a rank has 1: use fewer ranks.",
            f"1 channels cannot be divided over {world} ranks: each needs one.",
            f"1 rows cannot be divided over {world} ranks: each needs one.",
            f"1 experts cannot be divided over {world} ranks: each needs one.",
        ]
        assert {name: far for name, far in broken.items() if far < 1e-5} == {}, "each exchange is needed"


# ---------------------------------------------------------------------------------------------------- pipelines

SIZE = {"stages": 4, "rate": 0.2, "momentum": 0.5, "batch": 16}


def weights(trained: pipeline.Trained) -> list[Tensor]:
    return [weight for stage in trained.stages for weight in stage.weights()]


def with_delay(steps: int, delayed: bool) -> list[Tensor]:
    """SGD with momentum, where each stage's gradient is at weights that are as many updates old as a pipeline makes
    them: the definition, without stages, ticks and queues."""
    modules, x, y = pipeline.problem(SIZE["stages"])
    order = torch.randint(len(x), (steps, SIZE["batch"]), generator=torch.Generator().manual_seed(1))
    now = [{name: weight.detach() for name, weight in module.named_parameters()} for module in modules]
    velocity = [{name: torch.zeros_like(weight) for name, weight in stage.items()} for stage in now]
    versions = [now]
    for step, rows in enumerate(order):
        lags = [SIZE["stages"] - 1 - s if delayed else 0 for s in range(len(modules))]
        used = [versions[max(0, step - lag)][s] for s, lag in enumerate(lags)]
        used = [{name: weight.clone().requires_grad_() for name, weight in stage.items()} for stage in used]
        out = x[rows]
        for module, stage in zip(modules, used, strict=True):
            out = functional_call(module, stage, out)
        mse_loss(out, y[rows]).backward()
        velocity = [
            {name: SIZE["momentum"] * old[name] + weight.grad for name, weight in stage.items()}
            for old, stage in zip(velocity, used, strict=True)
        ]
        now = [
            {name: weight - SIZE["rate"] * speed[name] for name, weight in stage.items()}
            for stage, speed in zip(now, velocity, strict=True)
        ]
        versions.append(now)
    return [weight for stage in now for weight in stage.values()]


def test_a_synchronous_pipeline_is_sgd_and_stashing_is_sgd_with_a_delay() -> None:
    for way, delayed in {"synchronous": False, "stashing": True}.items():
        found, expected = weights(pipeline.train(way, 12, **SIZE)), with_delay(12, delayed)
        assert all(torch.allclose(a, b, rtol=0, atol=1e-13) for a, b in zip(found, expected, strict=True)), way
    stale = weights(pipeline.train("stale", 12, **SIZE))
    assert max(float((a - b).abs().max()) for a, b in zip(stale, with_delay(12, True), strict=True)) > 1e-4


@pytest.mark.parametrize("way", pipeline.WAYS)
def test_a_pipeline_of_one_stage_is_sgd(way: str) -> None:
    modules, x, y = pipeline.problem(1)
    optimizer = torch.optim.SGD(modules[0].parameters(), lr=0.1, momentum=0.9)
    for rows in torch.randint(len(x), (6, 16), generator=torch.Generator().manual_seed(1)):
        optimizer.zero_grad()
        mse_loss(modules[0](x[rows]), y[rows]).backward()
        optimizer.step()
    found = weights(pipeline.train(way, 6, stages=1, rate=0.1, momentum=0.9, batch=16))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-14) for a, b in zip(found, modules[0].parameters(), strict=True))


def test_lags_and_ticks_are_those_of_the_schedule() -> None:
    for way in pipeline.WAYS:
        done = pipeline.train(way, 12, **SIZE)
        synchronous = way == "synchronous"
        assert done.ticks == (2 * 4 * 12 if synchronous else 2 * 12 + 2 * 3)
        for s, stage in enumerate(done.stages):
            assert stage.lags == [0 if synchronous else min(batch, 3 - s) for batch in range(len(stage.lags))]
            assert not stage.flying or s < 3


def test_weights_are_predicted_as_the_words_say() -> None:
    for way, again in (("momentum", False), ("linear", True)):
        stage = pipeline.Stage(nn.Linear(3, 2).double(), 3, way, rate=0.1, momentum=0.8)
        stage.forward(0, torch.ones(4, 3).double())
        stage.backward(0, torch.ones(4, 2).double())
        expected, speed = stage.weights(), stage.velocity
        for _ in range(3):
            speed = speed if again else [0.8 * part for part in speed]
            expected = [weight - 0.1 * part for weight, part in zip(expected, speed, strict=True)]
        assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(stage.predicted(), expected, strict=True)), way


@pytest.mark.slow
def test_prediction_and_stashing_lose_less_than_stale_weights() -> None:
    loss = {way: sum(pipeline.train(way, 200, every=25).losses[2:]) for way in pipeline.WAYS}
    assert loss["synchronous"] < 0.6 * min(loss["momentum"], loss["linear"], loss["stashing"])
    assert max(loss["momentum"], loss["linear"], loss["stashing"]) < 0.9 * loss["stale"]
