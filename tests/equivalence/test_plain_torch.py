"""Checkpoints to and from plain torch, which names a tied weight under each of its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from client_sdk.learning import Learner
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from client_sdk.terminal import Failure
from coordinator.commands.initial_checkpoint import given
from coordinator.engine.plan import Plan
from simulation import simulate


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.words(x).mean(1))
        return found


LEARNER = Learner(model=Tied, loss=nn.functional.cross_entropy)
X = np.random.default_rng(0).integers(0, 7, size=(20, 3))
CLIENTS = [(X, X[:, 0])] * 2
PLAN: dict[str, Any] = {"cohort": {"select": 2, "goal": 2}, "finish": {"rounds": 1}}
NAMES = ["head.bias", "words.weight"]


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return Tied().state_dict()


def first(init: Any) -> Tensors:
    history = simulate(PLAN, LEARNER, CLIENTS, init=init, progress=False)
    assert sorted(history.checkpoint()) == NAMES
    assert not np.array_equal(history.checkpoint()["words.weight"], history.checkpoint(0)["words.weight"])
    return history.checkpoint(0)


def test_a_run_begins_from_the_state_dict_of_a_model_with_tied_weights(tmp_path: Path) -> None:
    whole = {name: value.numpy() for name, value in state().items()}
    wanted = {name: whole[name].tobytes() for name in NAMES}
    file, saved = tmp_path / "both.safetensors", tmp_path / "saved.safetensors"
    file.write_bytes(to_bytes(whole))
    model = Tied()
    model.load_state_dict(state())
    safetensors.torch.save_model(model, str(saved))
    assert sorted(from_bytes(saved.read_bytes())) == ["head.bias", "head.weight"], "it keeps the other name"
    for init in (state(), whole, file, saved):
        assert {name: value.tobytes() for name, value in first(init).items()} == wanted


def test_tied_names_with_different_values_are_refused() -> None:
    other = {**state(), "head.weight": torch.zeros(7, 5)}
    with pytest.raises(ValueError, match=r"head\.weight and words\.weight are one tensor .* different values"):
        simulate(PLAN, LEARNER, CLIENTS, init=other)


def test_a_file_for_a_deployed_run_is_sent_under_the_names_that_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the learner is installed. A file that has no further names is sent as it is."""
    (tmp_path / "tied.py").write_text("from tests.equivalence.test_plain_torch import LEARNER as learner")
    monkeypatch.chdir(tmp_path)
    plan = Plan.parse({"name": "tied", "task": {"learner": "tied:learner"}, **PLAN})
    whole = {name: value.numpy() for name, value in state().items()}
    for number, (tensors, sent) in enumerate(
        [
            (whole, {name: whole[name] for name in NAMES}),
            ({name: whole[name] for name in NAMES}, None),
            ({**whole, "head.weight": whole["words.weight"] + 1}, "have different values"),
        ]
    ):
        file = Path(f"{number}.safetensors")
        file.write_bytes(to_bytes(tensors))
        if isinstance(sent, str):
            with pytest.raises(Failure, match=sent):
                given(plan, file)
        else:
            assert given(plan, file)[0] == (file if sent is None else to_bytes(sent))
    elsewhere = Plan.parse({"name": "tied", "task": {"learner": "nowhere:learner"}, **PLAN})
    assert given(elsewhere, Path("0.safetensors"))[0] == Path("0.safetensors")


def test_a_checkpoint_loads_into_plain_torch(tmp_path: Path) -> None:
    """As the tutorial says: by the learner, and by safetensors without Quorate."""
    file = tmp_path / "model.safetensors"
    simulate(PLAN, LEARNER, CLIENTS, progress=False).save_checkpoint(file)
    stored = from_bytes(file.read_bytes())
    by_learner = Tied()
    by_learner.load_state_dict(LEARNER.load(stored).state_dict())
    by_safetensors = Tied()
    safetensors.torch.load_model(by_safetensors, str(file))
    for model in (by_learner, by_safetensors):
        assert model.head.weight is model.words.weight
        found = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
        assert found == {
            "words.weight": stored["words.weight"].tobytes(),
            "head.weight": stored["words.weight"].tobytes(),
            "head.bias": stored["head.bias"].tobytes(),
        }
