"""The datacenter benchmark times what rounds run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.coordinator.datacenter.ranks import together
from tests.rotating import on_day

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


def each_strategy(group: Any) -> list[dict[str, Any]]:
    from benchmarks._datacenter_strategies import turns

    return list(turns(group, 8, 2, 1))


@on_day(1, of=3)
def test_every_strategy_is_measured_beside_a_bare_loop() -> None:
    from benchmarks._datacenter_strategies import WAYS
    from client_sdk.protocol.workers import all_strategies

    first, second = together(2, each_strategy)
    assert [row["name"] for row in first] == list(WAYS)
    assert all(row["ours"][0] > 0 and row["bare"][0] > 0 for row in first)
    assert [row["ours"] for row in first] == [row["ours"] for row in second], "of all ranks together"
    asked = {word for way in WAYS.values() for word in (*way.options, *map(str, way.options.values()))}
    for name in all_strategies():
        key, _, value = name.partition("=")
        assert {key, value or key} <= asked or key == "precision", name


@on_day(1, of=2)
def test_one_gpu_is_measured_by_a_script_that_runs_on_a_cpu_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It must work at the first try on a machine that nobody has prepared."""
    from benchmarks import gpu

    out = tmp_path / "new" / "gpu.json"
    assert gpu.main(["--tiny", "--cpu", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [(row["model"], row["way"]) for row in found["rows"]] == [
        (model, way) for model in ("cnn", "transformer") for way in gpu.WAYS
    ]
    rows = {(row["model"], row["way"]): row for row in found["rows"]}
    assert all(row["step_s"] > 0 and row["ratio"] > 0 and row["turns"] == gpu.TURNS for row in found["rows"])
    for model in ("cnn", "transformer"):
        losses = [rows[model, way]["loss"] for way in gpu.WAYS if not way.startswith("bare")]
        assert max(losses) == pytest.approx(min(losses), rel=0.02), "all train the same"
        assert rows[model, "bare"]["loss"] == pytest.approx(losses[0], rel=0.2)
        assert rows[model, "DDP, bf16, recompute"]["bytes"] < rows[model, "DDP, bf16"]["bytes"]
    assert "transformer DDP, bf16, recompute" in capsys.readouterr().out


def test_a_way_that_fails_does_not_lose_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import gpu

    monkeypatch.setattr(gpu, "WAYS", {"bare": {}, "no such": {"shard": "no such"}, "DDP": {}})
    monkeypatch.setattr(gpu, "TINY", {"cnn": gpu.TINY["cnn"]})
    assert gpu.main(["--tiny", "--cpu", "--out", str(tmp_path / "gpu.json")]) == 1
    plain, failed, ours = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert failed["failed"].startswith("ValidationError: ")
    assert plain["turns"] == ours["turns"] == gpu.TURNS
