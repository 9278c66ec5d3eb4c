"""The datacenter benchmark times what rounds run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.datacenter


def test_it_trains_with_the_recipe_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import _datacenter_ranks as ranks
    from client_sdk.learning.group import Group
    from coordinator.datacenter.recipe import recipe_of
    from tests.coordinator.datacenter.test_agent import lease

    trained: list[Any] = []

    def train(learner: Any, model: Any, data: Any, recipe: Any, **options: Any) -> tuple[None, SimpleNamespace]:
        trained.append(recipe)
        return None, SimpleNamespace(samples_per_s=1.0)

    monkeypatch.setattr(ranks, "train", train)
    ranks.ours(Group(), ranks.mlp(), None, 64, 5)
    of_a_round = recipe_of(lease({"steps": 5, "batch_size": 64}))
    assert trained == [of_a_round.model_copy(update={"seed": trained[0].seed})]
    assert of_a_round.unused_parameters, "which the benchmark once left out"
