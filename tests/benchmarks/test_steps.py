"""The benchmark of local steps: it has a row for each way, and reports nothing of a way that trains something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks import steps
from simulation.engines.steps import Stepper


@pytest.fixture(autouse=True)
def one_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make, inputs, classes, _, _ = steps.MODELS["logistic"]
    ways = {"exact": None, "traced": None, "stacked-4": 0.15}
    monkeypatch.setattr(steps, "MODELS", {"logistic": (make, inputs, classes, 4, ways)})
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_each_way_has_its_rows() -> None:
    rows = {row.name: row for row in steps.measure(True)}
    assert [name for name in rows if not name.endswith("_ms_a_client")] == [
        "logistic_exact",
        "logistic_traced",
        "logistic_stacked-4",
    ]
    assert rows["logistic_stacked-4"].aim == 0.15
    for name, row in rows.items():
        assert row.value, name
        assert row.met is None, "a quick run claims nothing"


def test_another_update_is_never_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    other = steps.TASK.model_copy(update={"learning_rate": 0.2})
    alone = Stepper.all

    def doctored(self: Stepper, model: Any, clients: Any, task: Any, number: int) -> Any:
        return alone(self, model, clients, other if self.steps.kind == "traced" else task, number)

    monkeypatch.setattr(Stepper, "all", doctored)
    with pytest.raises(SystemExit, match="logistic: traced trains something else"):
        list(steps.measure(True))


def test_the_aims_are_those_of_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    aims = {f"{name}_{way}": aim for name, (*_, ways) in steps.MODELS.items() for way, aim in ways.items() if aim}
    assert aims == {
        "mlp_traced": 0.53,
        "cnn_channels_last": 0.88,
        "logistic_stacked-64": 0.15,
        "perceptron_stacked-16": 0.6,
        "lstm_exact": 1.0,
        "transformer_traced": 1.0,
        "resnet_traced": 1.0,
    }
