"""Saved steps: what comes back is all that was there, whatever the model and the optimizer; half of a step is none."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import CheckpointMismatch, Learner, LearnerFailed
from client_sdk.tensors import Tensors
from coordinator.datacenter import checkpoints, training
from coordinator.datacenter.progress import plain_line
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import whole_steps
from coordinator.datacenter.training import Report, train
from tests.coordinator.datacenter import models

pytestmark = pytest.mark.datacenter


class Tied(nn.Module):
    """Two layers with one weight, and a counter that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


def by_chance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As an augmentation that draws from the global generators."""
    return nn.functional.cross_entropy(outputs, targets) * (random.random() + np.random.random())


LEARNERS: dict[str, Learner] = {
    "chance of Python and numpy": Learner(model=models.network, loss=by_chance),
    "momentum and dropout": Learner(
        model=models.dropout, loss=nn.functional.cross_entropy, optimizer=partial(torch.optim.SGD, momentum=0.9)
    ),
    "Adam": models.plain(optimizer=torch.optim.Adam),
    "tied weights and a counter": Learner(model=Tied, loss=nn.functional.cross_entropy, optimizer=torch.optim.Adam),
    "batch norm's buffers": Learner(model=models.batchnorm, loss=nn.functional.cross_entropy),
    "a part frozen": Learner(
        model=models.network, loss=nn.functional.cross_entropy, optimizer=torch.optim.Adam, averaged=("3.*",)
    ),
    "a layer without use": Learner(model=models.Half, loss=nn.functional.cross_entropy, optimizer=torch.optim.Adam),
    "lars": models.plain(),
    "lamb": models.plain(),
}


def recipe(case: str, **more: Any) -> Recipe:
    named: dict[str, Any] = {"optimizer": case} if case in ("lars", "lamb") else {}
    if case == "a layer without use":
        named = {"unused_parameters": True}
    return Recipe(**{"steps": 12, "batch_size": 12, "learning_rate": 0.02, **named, **more})


def run(case: str, folder: Path | None = None, *, steps: int = 12, **options: Any) -> tuple[Tensors, Report]:
    learner = LEARNERS[case]
    first = learner.initial(2)
    plan = recipe(case, steps=steps)
    return train(learner, first, models.examples(), plan, name=case, checkpoints=folder, checkpoint_every=3, **options)


@pytest.mark.parametrize("case", LEARNERS)
def test_going_on_gives_the_bits_of_never_stopping(case: str, tmp_path: Path) -> None:
    whole, _ = run(case)
    half, report = run(case, tmp_path, steps=7)
    assert (report.began, report.steps) == (0, 7)
    assert whole_steps(tmp_path) == [6, 7]
    rest, report = run(case, tmp_path, resume=True)
    assert (report.began, report.steps) == (7, 12)
    assert {name: array.tobytes() for name, array in rest.items()} == {n: a.tobytes() for n, a in whole.items()}
    assert models.largest_difference(half, whole) > 0


def test_the_generators_are_restored_also_after_an_error() -> None:
    def fails(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        by_chance(outputs, targets)
        raise ZeroDivisionError

    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    wanted = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    learner = Learner(model=models.network, loss=fails)
    with pytest.raises(LearnerFailed):
        train(learner, learner.initial(1), models.examples(), recipe("chance of Python and numpy"))
    assert (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()) == wanted


def test_a_job_at_its_end_only_hands_out_its_model(tmp_path: Path) -> None:
    done, _ = run("Adam", tmp_path)
    found: list[dict[str, Any]] = []
    again, report = run("Adam", tmp_path, resume=True, on_message=found.append)
    assert models.largest_difference(again, done) == 0
    assert report.examples_seen == 0
    assert [message["event"] for message in found] == ["started"]
    done_line = plain_line({"event": "done", "report": report.as_json(), "out": None, "digest": ""})
    assert done_line.startswith("Done: 12 steps, in 0.")


def test_a_step_that_was_not_written_to_its_end_does_not_count(tmp_path: Path) -> None:
    whole, _ = run("Adam")
    run("Adam", tmp_path, steps=6)
    (tmp_path / "step-000000006" / "complete").unlink()
    assert whole_steps(tmp_path) == [3]
    rest, report = run("Adam", tmp_path, resume=True)
    assert report.began == 3
    assert models.largest_difference(rest, whole) == 0


def test_what_is_left_of_a_step_that_was_not_written_is_removed(tmp_path: Path) -> None:
    """Nothing else ever would: the next training may save other steps, and each crash would leave a model behind."""
    run("Adam", tmp_path, steps=3)
    left = tmp_path / "step-000000005"
    left.mkdir()
    (left / "shard-00001-model-00001-of-00001.safetensors").write_bytes(b"half of what was to be written")
    run("Adam", tmp_path, steps=6, resume=True)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000003", "step-000000006"]


def test_a_folder_without_steps_begins_anew(tmp_path: Path) -> None:
    assert run("Adam", tmp_path / "new", resume=True)[1].began == 0


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("lamb", "of another learner: Adam there, lamb here"),
        ("tied weights and a counter", "of another model: calls is absent there and I64 .. here"),
    ],
)
def test_another_jobs_steps_are_refused(case: str, words: str, tmp_path: Path) -> None:
    run("Adam", tmp_path, steps=3)
    with pytest.raises(CheckpointMismatch, match=words):
        run(case, tmp_path, resume=True)
    assert whole_steps(tmp_path) == [3], "and not touched"


def test_other_first_weights_data_or_records_are_refused(tmp_path: Path) -> None:
    run("Adam", tmp_path, steps=3)
    learner = LEARNERS["Adam"]
    usual: dict[str, Any] = {"name": "Adam", "checkpoints": tmp_path, "resume": True}
    with pytest.raises(CheckpointMismatch, match="it began from other weights"):
        train(learner, learner.initial(3), models.examples(), recipe("Adam"), **usual)
    with pytest.raises(CheckpointMismatch, match="50 examples there and 49 here"):
        train(learner, learner.initial(2), models.examples(49), recipe("Adam"), **usual)
    (tmp_path / "about.json").write_text("{}")
    with pytest.raises(CheckpointMismatch, match=r"about.json is missing or unreadable"):
        train(learner, learner.initial(2), models.examples(), recipe("Adam"), **usual)


def test_saved_steps_are_private(tmp_path: Path) -> None:
    run("Adam", tmp_path / "new", steps=3)
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


def test_numbers_that_are_no_longer_finite_are_no_result() -> None:
    learner = Learner(model=models.network, loss=lambda outputs, targets: (outputs**2).mean())
    huge = {name: array * 1e200 if array.ndim == 2 else array for name, array in learner.initial(0).items()}
    with np.errstate(over="ignore"), pytest.raises(Exception, match="not finite"):
        train(learner, huge, models.examples(), Recipe(steps=3, batch_size=10, learning_rate=100.0))


def test_scaled_losses_of_float16_end_near_full_precision_and_resume_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp16 is for GPUs; its code is run here on the CPU, with the CPU's scaler, which torch has for such tests."""
    scaler = torch.amp.GradScaler
    monkeypatch.setattr(training, "_check_fit", lambda *arguments: None)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: scaler("cpu", init_scale=1024.0, growth_interval=4))
    learner = Learner(model=partial(models.network, dtype=torch.float32), loss=nn.functional.cross_entropy)
    first, half = learner.initial(2), recipe("Adam", precision="float16", max_grad_norm=0.5)
    usual: dict[str, Any] = {"checkpoints": tmp_path, "checkpoint_every": 3}
    whole, report = train(learner, first, models.examples(), half)
    full, _ = train(learner, first, models.examples(), half.model_copy(update={"precision": "float32"}))
    assert 0 < models.largest_difference(whole, full) < 0.02
    assert 0 < report.loss < 5
    train(learner, first, models.examples(), half.model_copy(update={"steps": 7}), **usual)
    rest, _ = train(learner, first, models.examples(), half, resume=True, **usual)
    assert models.largest_difference(rest, whole) == 0


class Hoarder(torch.optim.SGD):
    """An optimizer whose state has a value that is neither a tensor nor JSON."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["seen"] = {1, 2}


def test_what_could_only_be_pickled_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    learner = models.plain(optimizer=Hoarder)
    with pytest.raises(LearnerFailed, match=r"state cannot be saved without pickle: .* Type is <class 'set'>"):
        train(learner, learner.initial(2), models.examples(), recipe("Adam", steps=3), checkpoints=tmp_path)
    assert not list(tmp_path.glob("step-*"))


def test_no_file_of_a_step_is_a_pickle(tmp_path: Path) -> None:
    run("Adam", tmp_path, steps=3)
    (folder,) = tmp_path.glob("step-*")
    names = {path.name for path in folder.iterdir()}
    assert names == {"shard-00001-model-00001-of-00001.safetensors", "state.json", "complete"}
    assert json.loads((folder / "state.json").read_text())["values"]["optim.param_groups.0.bias.betas"] == [0.9, 0.999]


def test_a_step_that_the_disk_has_otherwise_is_none_and_the_older_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("Adam", tmp_path, steps=3)
    save = checkpoints.dcp.save

    def saves_noise(state: Any, **options: Any) -> Any:
        found = save(state, **options)
        (file,) = (tmp_path / "step-000000006").glob("shard-*")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        return found

    monkeypatch.setattr(checkpoints.dcp, "save", saves_noise)
    with pytest.raises(checkpoints.NotSaved, match=r"after step 6 cannot be saved in .* has other values on the disk"):
        run("Adam", tmp_path, steps=6, resume=True)
    assert whole_steps(tmp_path) == [3]
