"""Blocks that are computed again in the backward pass: the same bits, and less that is stored for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from client_sdk.learning import Learner, LearnerFailed
from client_sdk.learning.sync_sgd import blocks_of
from client_sdk.tensors import Tensors
from coordinator.datacenter.progress import plain_line
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import Report, train
from tests.coordinator.datacenter import models

pytestmark = pytest.mark.datacenter
WIDE, BATCH = 64, 40


def with_dropout() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Dropout(0.5)) for _ in range(4)]
    return nn.Sequential(nn.Linear(6, WIDE), *blocks, nn.Linear(WIDE, 3))


LEARNER = models.learner_of(with_dropout, blocks=("[1-4]",))


def trained(learner: Learner = LEARNER, **fields: Any) -> tuple[Tensors, Report]:
    recipe = Recipe(**{"steps": 5, "batch_size": BATCH, "seed": 3, **fields})
    return train(learner, learner.initial(1), models.examples(), recipe)


def test_recompute_gives_the_same_bits_with_dropout() -> None:
    plain, again = trained()[0], trained(recompute=True)[0]
    assert {name: array.tobytes() for name, array in again.items()} == {n: a.tobytes() for n, a in plain.items()}


def test_the_report_says_what_was_stored_for_the_backward_pass() -> None:
    plain, again = trained()[1], trained(recompute=True)[1]
    layer = BATCH * WIDE * 4
    assert 4 * 2 * layer < plain.saved_bytes < 4 * 4 * layer, "of each block: outputs of its layers, and a mask"
    assert 5 * layer <= again.saved_bytes < 5 * layer + 8_000, "of each block its input, and the output of the last"
    assert trained(accumulate=4)[1].saved_bytes < plain.saved_bytes / 3
    line = plain_line({"event": "done", "report": again.as_json()})
    assert line.endswith(f"s, with {again.saved_bytes / 1e6:.1f} MB kept for the backward pass.")
    assert (plain.peak_bytes, again.peak_bytes) == (None, None), "on a CPU"


def test_parameters_are_not_counted() -> None:
    huge = models.learner_of(lambda: nn.Sequential(nn.Linear(6, 2000), nn.Linear(2000, 2000), nn.Linear(2000, 3)))
    assert trained(huge, batch_size=1, steps=1)[1].saved_bytes < 100_000


def test_a_pattern_names_whole_blocks_and_no_parts_of_them() -> None:
    module = nn.ModuleDict({"layers": nn.ModuleList(with_dropout() for _ in range(2))})
    assert blocks_of(module, ["layers.*"]) == list(module["layers"])
    assert blocks_of(module, ["layers.0.1", "layers.0"]) == [module["layers"][0]]
    with pytest.raises(LearnerFailed, match=r"blocks name 'layers\.7'"):
        blocks_of(module, ["layers.7"])


def test_without_blocks_there_is_nothing_to_compute_again() -> None:
    with pytest.raises(LearnerFailed, match="recompute needs the learner's blocks"):
        trained(models.learner_of(with_dropout), recompute=True)


def test_a_tensor_that_several_layers_store_counts_once() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(1000, 1) for _ in range(9))
            self.first, self.last = nn.Linear(6, 1000), nn.Linear(9, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            found: torch.Tensor = self.last(torch.cat([layer(hidden) for layer in self.layers], 1))
            return found

    assert trained(models.learner_of(Same))[1].saved_bytes < 1.2 * BATCH * 1000 * 4
