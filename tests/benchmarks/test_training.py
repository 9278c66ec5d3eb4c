"""The benchmark of training: each model is the bare loop's, and another one ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks import training
from benchmarks.training import CASES, Case, beside_bare
from tests.rotating import taking_turns


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("case", taking_turns(*CASES), ids=lambda case: case.name)
def test_the_bare_loop_trains_the_same_model(case: Case) -> None:
    found = beside_bare(case, 1, 1)
    assert found.ratio.median > 0


def test_another_model_is_never_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "furthest", lambda model, world: 1e-3)
    with pytest.raises(SystemExit, match="the bare loop's logistic is another"):
        beside_bare(CASES[0], 1, 1)


def test_the_aims_are_those_of_the_specification() -> None:
    aims = {case.name: case.aim for case in CASES}
    assert aims == {"logistic": 0.15, "perceptron": 0.6, "mlp": 0.53, "lstm": 1.0, "transformer": 1.0, "resnet": 1.0}
