"""``quorate datacenter train``: one command for one process, for several, and under torchrun by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from client_sdk.tensors import to_bytes
from coordinator.datacenter.progress import ProgressThrottle
from coordinator.datacenter.rank import run
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import JobSpec
from coordinator.datacenter.training import train
from tests.coordinator.datacenter.models import examples, largest_difference, plain
from tests.rotating import on_day

pytestmark = [pytest.mark.whole, pytest.mark.datacenter]

LEARNER = "tests.coordinator.datacenter.models:plain"


@pytest.fixture
def data(tmp_path: Path) -> str:
    x, y = examples()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return str(tmp_path / "data.npz")


def quorate(*arguments: str, before: tuple[str, ...] = ("-m",)) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *before, "client_sdk.cli", "datacenter", "train", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


def messages(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_commands_are_listed_without_torch() -> None:
    code = (
        "import sys, coordinator.datacenter.cli, coordinator.datacenter.job; "
        "assert not {'torch', 'fastapi', 'sqlalchemy', 'numpy'} & {name.split('.')[0] for name in sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("nproc", ["1", "2"])
def test_without_torch_the_extra_of_this_room_is_named(
    nproc: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path.cwd())]))
    done = quorate(LEARNER, "--data", data, "--steps", "8", "--batch", "12", "--nproc", nproc)
    reason = "Error: Training here needs torch, which is not installed: pip install 'quorate[datacenter]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", reason)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--data", "none.npz"), "There is no file none.npz."),
        (("--data", "nosuch"), "There is no data 'nosuch'; "),
        (("--data", "DATA", "--init", "none.safetensors"), "There is no file none.safetensors."),
    ],
)
def test_what_is_missing_is_reported_before_a_process_starts(
    arguments: tuple[str, ...], sentence: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took as long as the import of torch in that process."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    done = quorate(LEARNER, *[data if word == "DATA" else word for word in arguments], "--steps", "8")
    assert done.returncode == 1
    assert f"Error: {sentence}" in done.stderr
    assert "| torch" not in done.stderr
    assert "coordinator.datacenter.rank" not in done.stderr


@on_day(1, of=2)
def test_one_process_trains_and_tells(data: str, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    done = quorate(LEARNER, "--data", data, "--steps", "8", "--batch", "12", "--lr", "0.05", "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("on 50 examples, 1 process on cpu to step 8.")
    assert lines[1].startswith("Step 8 of 8: loss ")
    assert lines[2].startswith("Done: 8 steps, loss ")
    expected, _ = train(plain(), plain().initial(0), examples(), Recipe(steps=8, batch_size=12, learning_rate=0.05))
    assert largest_difference(load_file(out), expected) == 0


@pytest.mark.slow
def test_in_a_log_a_training_says_only_now_and_then_how_far_it_is() -> None:
    now = 0.0
    throttle = ProgressThrottle(clock=lambda: now)
    found = []
    for step in range(1, 26):
        now += 1.0
        if throttle.allows({"event": "progress", "step": step, "steps": 25}):
            found.append(step)
        assert throttle.allows({"event": "saved", "step": step})
    assert found == [1, 11, 21, 25]


@on_day(0, of=2)
def test_under_torchrun_by_hand_rank_0_tells(data: str, tmp_path: Path) -> None:
    torchrun = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
        "-m",
    )
    out = tmp_path / "model.safetensors"
    init = tmp_path / "init.safetensors"
    init.write_bytes(to_bytes(plain().initial(5)))
    usual = (LEARNER, "--data", data, "--steps", "8", "--lr", "0.05", "--init", str(init), "--json", "--out", str(out))
    done = quorate(*usual, "--batch", "12", before=torchrun)
    assert done.returncode == 0, done.stderr
    found = messages(done)
    assert [message["event"] for message in found] == ["started", "progress", "done"]
    assert (found[0]["world"], found[1]["step"]) == (2, 8)
    assert 0 <= found[1]["communication_share"] <= 1
    assert found[1]["samples_per_s"] > 0
    expected, _ = train(plain(), plain().initial(5), examples(), Recipe(steps=8, batch_size=12, learning_rate=0.05))
    assert largest_difference(load_file(out), expected) <= 1e-10


@pytest.mark.slow
def test_what_cannot_be_done_is_one_sentence(data: str) -> None:
    done = quorate(LEARNER, "--data", data, "--steps", "2", "--batch", "12", "--device", "cuda")
    words = "Error: A GPU was asked for, and torch finds none on this machine: use --device cpu.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"init": "HERE/other.safetensors"}, "The checkpoint does not fit the learner's model: it lacks '0.bias'"),
        ({"init": "HERE/data.npz"}, "is no checkpoint, which is a safetensors file"),
        ({"init": "HERE/none"}, "No such file or directory"),
        ({"out": "HERE"}, "Is a directory"),
        ({"learner": "tests.nowhere:x"}, "needs the module tests.nowhere, which is not installed"),
        ({"learner": "tests.coordinator.datacenter.models:network"}, "only a torch Learner can"),
        ({"data": "HERE/none.npz"}, "There is no file"),
    ],
)
def test_a_process_says_what_hinders_it(fields: dict[str, str], words: str, data: str, tmp_path: Path) -> None:
    (tmp_path / "other.safetensors").write_bytes(to_bytes({"w": np.zeros(3, np.float32)}))
    filled = {name: value.replace("HERE", str(tmp_path)) for name, value in fields.items()}
    spec = {"learner": LEARNER, "data": data, "recipe": {"steps": 2, "batch_size": 12}, "device": "cpu", **filled}
    found: list[dict[str, Any]] = []
    assert run(JobSpec.model_validate(spec), found.append) == 1
    assert [message["event"] for message in found] == ["failed"]
    assert words in found[0]["reason"]
    assert "\n" not in found[0]["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--resume",), "Error: Name the folder to go on from with --checkpoints.\n"),
        (("--lr", "-1"), "Error: --learning-rate: Input should be greater than 0.\n"),
        (("--server", "spare=1"), "Error: --server: spare: Extra inputs are not permitted.\n"),
        (("--mesh", "data=0"), "Error: --mesh: data: Input should be greater than or equal to 1.\n"),
        (("--warmup-steps", "3"), "Error: The warm-up has 3 steps, and the whole training 2.\n"),
        (("--backend", "ucx"), "Error: --backend: Input should be 'auto', 'gloo', 'nccl', 'mpi' or 'ccl'.\n"),
        (("--device", "tpu"), "Error: --device: Input should be 'auto', 'cpu' or 'cuda'.\n"),
    ],
)
def test_what_contradicts_itself_starts_no_process(arguments: tuple[str, ...], words: str, data: str) -> None:
    done = quorate(LEARNER, "--data", data, "--steps", "2", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)
