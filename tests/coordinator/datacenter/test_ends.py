"""How ranks end: in the middle of a save, which is a lost rank like any other, and after the job is done."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from client_sdk.tensors import Tensors, from_bytes
from coordinator.datacenter import job
from coordinator.datacenter.job import launch
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import JobSpec
from coordinator.datacenter.training import train
from tests.coordinator.datacenter.models import examples, slow
from tests.coordinator.datacenter.ranks import Group, together
from tests.rotating import on_day, taking_turns

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

RECIPE = Recipe(steps=20, batch_size=12, learning_rate=0.05, seed=3)
MORTAL = """
import os
import signal

from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from coordinator.datacenter import checkpoints
from tests.coordinator.datacenter.models import slow

DEATHS = {  # case: {restart: (rank, class, method, at which call, whether its work is done first)}
    "reading": {
        "0": ("1", HuggingFaceStorageWriter, "write_data", 2, False),
        "1": ("1", HuggingFaceStorageReader, "read_data", 1, False),
    },
    "finishing": {"0": ("0", checkpoints, "_write", 5, True)},
}[os.environ["MORTAL"]]


def die_in(owner, method, at, after):
    whole, calls = getattr(owner, method), []

    def mortal(*args, **options):
        calls.append(method)
        if len(calls) < at:
            return whole(*args, **options)
        if after:
            whole(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, method, mortal)


rank, *how = DEATHS.get(os.environ["TORCHELASTIC_RESTART_COUNT"], (None,))
if rank == os.environ["RANK"]:
    die_in(*how)
learner = slow()
"""
"""Rank 1 dies as it writes its part of step 10, and again as it reads step 5. Or rank 0 dies, with step 10 whole and
the others not told: the first file it writes is about.json, then two for each step."""


def undisturbed(group: Group) -> Tensors:
    return train(slow(), slow().initial(RECIPE.seed), examples(), RECIPE, group=group)[0]


def rank_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("RANK")
    except psutil.Error:
        return None


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x, y = examples()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return tmp_path / "data.npz"


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=on_day(3 * n, of=6)) for n, case in enumerate(("reading", "finishing"))]
)
def test_a_rank_killed_while_steps_are_saved_or_read_is_started_again_to_equal_weights(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """An error inside torch's own saving was once reported as a bug, which ends a job for good."""
    (tmp_path / "mortal.py").write_text(MORTAL)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MORTAL", case)
    spec = JobSpec(
        learner="mortal:learner",
        data=str(data),
        recipe=RECIPE,
        out=tmp_path / "model.safetensors",
        checkpoints=tmp_path / "steps",
        checkpoint_every=5,
        nproc=2,
        device="cpu",
        max_restarts=3,
    )
    received: list[dict[str, Any]] = []
    launch(spec, received.append)
    assert [message["step"] for message in received if message["event"] == "started"] == [
        0,
        5 if case == "reading" else 10,
    ]
    model = from_bytes((tmp_path / "model.safetensors").read_bytes())
    expected = together(2, undisturbed)[0]
    assert {name: array.tobytes() for name, array in model.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }


STANDSTILL = """
import os
import time
from dataclasses import replace

from tests.coordinator.datacenter.models import slow

calls = []


def standing(outputs, targets):
    calls.append(1)
    first = os.environ["QUORATE_ATTEMPT"] == "0" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    while first and len(calls) == 8:
        time.sleep(1)
    return slow().loss(outputs, targets)


learner = replace(slow(), loss=standing)
"""


@pytest.mark.parametrize("nproc", [pytest.param(n, marks=on_day(3 * n - 2, of=6)) for n in (1, 2)])
def test_where_all_processes_stand_still_the_launcher_notices(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, nproc: int
) -> None:
    """No rank waits for another then, so that none would ever break the group."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "standing.py").write_text(STANDSTILL)
    spec = JobSpec(
        learner="standing:learner",
        data=str(data),
        recipe=RECIPE,
        checkpoints=tmp_path / "steps",
        checkpoint_every=5,
        nproc=nproc,
        device="cpu",
        hang_s=5,
        max_restarts=5,
    )
    received: list[dict[str, Any]] = []
    began = time.monotonic()
    result = launch(spec, received.append)
    reasons = [message["reason"] for message in received if message["event"] == "restarted"]
    assert reasons[0] == "no process did anything for 10 s"
    assert (result.report["steps"], result.report["began"]) == (20, 5)
    assert time.monotonic() - began > 10


@on_day(2, of=3)
def test_a_torchrun_that_stands_still_while_a_rank_dies_does_not_keep_the_job(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would start the ranks again."""
    monkeypatch.setattr(job, "AGAIN_S", 5)
    spec = JobSpec(
        learner="tests.coordinator.datacenter.models:slow",
        data=str(data),
        recipe=RECIPE,
        checkpoints=tmp_path / "steps",
        checkpoint_every=5,
        nproc=2,
        device="cpu",
    )
    received: list[dict[str, Any]] = []

    def hear(message: dict[str, Any]) -> None:
        received.append(message)
        if message["event"] == "saved" and len([m for m in received if m["event"] == "saved"]) == 1:
            victim = next(one for one in psutil.Process().children(recursive=True) if rank_of(one) == "1")
            torchrun = victim.parent()
            assert torchrun is not None
            torchrun.suspend()
            victim.kill()

    result = launch(spec, hear)
    assert (result.report["steps"], result.restarts) == (20, 1)
    assert "a rank died" in next(message["reason"] for message in received if message["event"] == "restarted")


@pytest.mark.parametrize("batch", taking_turns("12", "999"))
def test_a_rank_by_hand_ends_with_its_job_and_without_a_shutdown_that_could_fail(
    tmp_path: Path, data: Path, batch: str
) -> None:
    """Python's shutdown beside Gloo's threads sometimes aborts: torchrun then takes a job that is done for a failed
    one, and the torchruns of other machines wait five minutes for it."""
    (tmp_path / "rude.py").write_text(
        "import atexit, os\nfrom tests.coordinator.datacenter.models import slow\natexit.register(os.abort)\n"
        "learner = slow()\n"
    )
    train = ["datacenter", "train", "rude:learner", "--data", str(data), "--steps", "3", "--batch", batch]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "client_sdk.cli", *train, "--device", "cpu", "--out", str(tmp_path / "m.safetensors")],
        env=env | {"RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    if batch == "12":
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.splitlines()[-1].startswith("Done: 3 steps"), "written out, also into a pipe"
        assert from_bytes((tmp_path / "m.safetensors").read_bytes())
    else:
        assert ended.returncode == 1
        assert "Error: A batch of 999 does not fit" in ended.stderr
