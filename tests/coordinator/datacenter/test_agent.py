"""What an agent makes of a lease, and what its folder keeps: without a coordinator."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from client_sdk.data import names
from client_sdk.device.record import StorageError
from client_sdk.protocol.devices import CheckpointRef, Task
from client_sdk.protocol.workers import DatacenterTask, Lease
from client_sdk.tensors import to_bytes
from coordinator.datacenter.agent_folder import KEEP_JOBS, AgentFolder, end_leftovers
from coordinator.datacenter.job import ENV_JOB, launch
from coordinator.datacenter.recipe import Recipe, examples_in, recipe_of, steps_between_saves
from coordinator.datacenter.spec import JobSpec
from coordinator.datacenter.trainer import Halted, JobTrainer, Machine, TrainedCheckpoint, TrainingFailed, measures
from coordinator.datacenter.training import GlobalOrder, train
from coordinator.engine.plan import Plan
from tests.coordinator.datacenter.models import batchnorm, examples, learner_of, plain, slow
from tests.coordinator.test_blocks import flip
from tests.rotating import on_day

SLOW = "tests.coordinator.datacenter.models:slow"


def lease(work: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **more: Any) -> Lease:
    usual: dict[str, Any] = {
        "run": "marks",
        "round": 4,
        "attempt": 1,
        "fence": 3,
        "worker": "w" + "0" * 16,
        "checkpoint": CheckpointRef(version=2, digest="a" * 64, bytes=100),
        "plan_digest": "b" * 64,
        "task": Task(**{"learner": SLOW, "seed": 7, **(task or {})}),
        "datacenter": DatacenterTask(**{"data": "proxy", "steps": 30, "batch_size": 12, **(work or {})}),
        "lease_s": 60,
        "heartbeat_s": 15,
        "within_s": 600,
        "max_result_bytes": 1 << 20,
    }
    return Lease(**{**usual, **more})


# ------------------------------------------------------------ the plan's words


def test_a_recipe_says_what_the_plan_says() -> None:
    work = {
        "steps": 40,
        "batch_size": 512,
        "accumulate": 2,
        "learning_rate": 0.3,
        "optimizer": "lars",
        "momentum": 0.8,
        "weight_decay": 1e-4,
        "warmup_steps": 5,
        "precision": "bfloat16",
        "nproc": 4,
    }
    found = recipe_of(lease(work, {"max_grad_norm": 2.0, "averaged": ("body.*",)}))
    assert found == Recipe(
        steps=40,
        batch_size=512,
        accumulate=2,
        learning_rate=0.3,
        optimizer="lars",
        momentum=0.8,
        weight_decay=1e-4,
        warmup_steps=5,
        precision="bfloat16",
        max_grad_norm=2.0,
        averaged=("body.*",),
        unused_parameters=True,
        seed=9,
    )


def test_every_version_sees_the_data_in_another_order_and_a_round_begun_anew_in_the_same() -> None:
    def seed(version: int, **more: Any) -> int:
        return recipe_of(lease(checkpoint=CheckpointRef(version=version, digest="a" * 64, bytes=1), **more)).seed

    assert seed(3) == seed(3, round=9, attempt=2, fence=8)
    assert len({seed(version) for version in range(5)}) == 5
    assert recipe_of(lease(task={"seed": 2**63 - 1})).seed == 1, "seeds end below 2^63"


def test_how_often_a_round_is_saved() -> None:
    assert [steps_between_saves(steps, None) for steps in (1, 9, 40, 1000, 100_000)] == [1, 1, 4, 100, 100]
    assert steps_between_saves(1000, 7) == 7


@pytest.mark.parametrize(("batch", "steps"), [(12, 1), (12, 5), (12, 13), (10, 20), (50, 3)])
def test_examples_are_counted_as_they_are_drawn(batch: int, steps: int) -> None:
    order = GlobalOrder(50, batch, 3)
    assert examples_in(steps, batch, 50) == sum(len(order.at(step)) for step in range(steps))


def test_numbers_that_are_missing_or_not_finite_are_left_out() -> None:
    message = {"loss": float("nan"), "samples_per_s": 20, "communication_share": None, "learning_rate": 0.1}
    assert measures(message) == {"samples_per_s": 20.0}


def test_only_what_the_plan_averages_is_trained() -> None:
    first = plain().initial(1)
    recipe = Recipe(steps=3, batch_size=10, learning_rate=0.1, averaged=("3.*",))
    model, _ = train(plain(), first, examples(), recipe)
    moved = {name for name in first if not np.array_equal(first[name], model[name])}
    assert moved == {"3.weight", "3.bias"}


def test_repro_statistics_that_the_plan_does_not_average_stay_as_they_are() -> None:
    learner = learner_of(batchnorm)
    first = learner.initial(1)
    recipe = Recipe(steps=3, batch_size=10, learning_rate=0.1, averaged=("!*running_*",))
    model, _ = train(learner, first, examples(), recipe)
    moved = {name for name in first if not np.array_equal(first[name], model[name])}
    assert not {"1.running_mean", "1.running_var"} & moved
    assert {"0.weight", "1.weight", "2.weight"} <= moved


def test_momentum_is_the_first_decay_of_lamb() -> None:
    def end(momentum: float) -> bytes:
        recipe = Recipe(steps=3, batch_size=10, learning_rate=0.01, optimizer="lamb", momentum=momentum)
        return to_bytes(train(plain(), plain().initial(1), examples(), recipe)[0])

    assert end(0.9) == end(0.9) != end(0.5)


def test_the_example_plan_is_one_that_an_agent_can_train() -> None:
    plan = Plan.from_toml(Path(__file__).parents[3] / "examples" / "fallback.toml")
    assert plan.datacenter is not None
    found = recipe_of(lease(plan.datacenter.work.model_dump(), plan.task.model_dump()))
    assert (found.steps, found.batch_size, plan.datacenter.data in names()) == (300, 256, True)


# ------------------------------------------------------------ the folder


def test_a_folder_has_one_agent(tmp_path: Path) -> None:
    with AgentFolder(tmp_path / "worker"):
        assert (tmp_path / "worker").stat().st_mode & 0o777 == 0o700
        with pytest.raises(StorageError, match="in use by another device or worker"):
            AgentFolder(tmp_path / "worker")
    AgentFolder(tmp_path / "worker").close()


def test_a_job_is_found_again_by_run_and_checkpoint_and_older_ones_are_removed(tmp_path: Path) -> None:
    with AgentFolder(tmp_path) as folder:
        first = folder.job("marks", "a" * 64, "1" * 64)
        (first / "steps").mkdir()
        assert folder.job("marks", "a" * 64, "1" * 64) == first
        assert (first / "steps").is_dir()
        other = folder.job("marks-2", "a" * 64, "1" * 64)
        assert folder.job("marks", "b" * 64, "1" * 64) != first
        assert not first.exists(), "the run's line has gone on"
        assert other.exists(), "another run's stays"
        for number in range(KEEP_JOBS + 2):
            os.utime(folder.job(f"run-{number}", "a" * 64, "1" * 64), (number, number))
        assert len(list((tmp_path / "jobs").iterdir())) == KEEP_JOBS


def test_a_run_of_the_same_name_by_another_plan_begins_anew(tmp_path: Path) -> None:
    """A new coordinator, the old folder, name and first checkpoint, another plan: old steps do not count."""
    with AgentFolder(tmp_path) as folder:
        (folder.job("marks", "a" * 64, "1" * 64) / "steps").mkdir()
        assert not (folder.job("marks", "a" * 64, "2" * 64) / "steps").exists()


def test_what_an_earlier_agent_left_behind_is_ended_and_nothing_else(tmp_path: Path) -> None:
    def training(folder: Path) -> subprocess.Popen[bytes]:
        recipe = Recipe(steps=1)
        spec = JobSpec(learner="a:b", data="mnist", recipe=recipe, checkpoints=folder / "jobs" / "x" / "steps")
        env = {**os.environ, ENV_JOB: spec.model_dump_json()}
        return subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE)

    with (
        AgentFolder(tmp_path / "worker") as folder,
        training(folder.folder) as mine,
        training(tmp_path / "other") as other,
    ):
        try:
            assert end_leftovers(folder.folder, 1) == 0, "another machine's"
            assert end_leftovers(folder.folder) == 1
            assert not psutil.pid_exists(mine.pid)
            assert other.poll() is None
        finally:
            mine.kill()
            other.kill()


# ------------------------------------------------------------ training


class Work:
    """A lease trained by processes: what it noted, and what somebody did meanwhile."""

    def __init__(self, tmp_path: Path, **machine: Any) -> None:
        x, y = examples()
        np.savez(tmp_path / "data.npz", x=x, y=y)
        self.checkpoint = tmp_path / "first.safetensors"
        self.checkpoint.write_bytes(to_bytes(slow().initial(1)))
        self.folder = AgentFolder(tmp_path / "worker")
        self.machine = Machine(**{"device": "cpu", "checkpoint_every": 5, **machine})
        self.data = {"proxy": str(tmp_path / "data.npz")}
        self.noted: list[int] = []
        self.messages: list[dict[str, Any]] = []
        self.halted = threading.Event()

    def trainer(self, **act: Any) -> JobTrainer:
        """``act``: what to do once a message of this kind came."""

        def hear(lease: Lease, message: dict[str, Any]) -> None:
            assert lease.run == "marks"
            self.messages.append(message)
            if message["event"] in act:
                act.pop(message["event"])()

        return JobTrainer(self.folder, {SLOW: "1"}, self.data, self.machine, hear)

    def of(self, given: Lease) -> Lease:
        """The lease, of this checkpoint."""
        digest = hashlib.sha256(to_bytes(slow().initial(1))).hexdigest()
        return given.changed(checkpoint=given.checkpoint.changed(digest=digest))

    def note(self, step: int, metrics: dict[str, float]) -> None:
        self.noted.append(step)

    def train(self, given: Lease, **act: Any) -> TrainedCheckpoint:
        return self.trainer(**act).train(self.of(given), self.checkpoint, self.note, self.halted.is_set)

    def steps(self, event: str) -> list[int]:
        return [message["step"] for message in self.messages if message["event"] == event]


def ranks() -> list[psutil.Process]:
    """Processes of jobs that this process has started."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if "coordinator.datacenter.rank" in " ".join(process.cmdline())]


def test_data_that_is_not_held_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="does not hold the data 'other'"):
        Work(tmp_path).train(lease({"data": "other"}))


def test_a_learner_that_the_worker_does_not_offer_is_not_imported_and_not_trained(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="may not train the learner quorate:mnist-mlp"):
        Work(tmp_path).train(lease(task={"learner": "quorate:mnist-mlp"}))


def test_a_plan_that_no_recipe_can_say_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"The plan cannot be trained here: .*nproc"):
        Work(tmp_path).train(lease({"nproc": 2000, "batch_size": 4000}))


@pytest.mark.slow
@pytest.mark.datacenter
def test_a_checkpoint_that_is_damaged_after_it_was_received_is_not_trained_from(tmp_path: Path) -> None:
    work = Work(tmp_path)
    flip(work.checkpoint, len(work.checkpoint.read_bytes()) - 1)
    with pytest.raises(TrainingFailed, match=r"first\.safetensors is damaged"):
        work.train(lease({"steps": 1}))


@on_day(1, of=2)
@pytest.mark.datacenter
def test_a_stopped_round_goes_on_from_its_saved_step_and_ends_as_if_it_had_not(tmp_path: Path) -> None:
    given, work = lease(), Work(tmp_path)
    with pytest.raises(Halted):
        work.train(given, saved=work.halted.set)
    assert ranks() == []
    work.halted.clear()
    saved = work.steps("saved")[-1]
    result = work.train(lease(attempt=2, fence=4))
    assert work.steps("started") == [0, saved]
    assert saved >= 5
    expected = train(slow(), slow().initial(1), examples(), recipe_of(given))[0]
    assert result.path.read_bytes() == to_bytes(expected)
    assert (result.steps, result.examples) == (30, examples_in(30, 12, 50))
    assert set(result.metrics) >= {"loss", "samples_per_s"}
    assert work.noted[-1] == 30


@pytest.mark.slow
@pytest.mark.datacenter
def test_a_round_that_cannot_be_trained_says_why(tmp_path: Path) -> None:
    work = Work(tmp_path)
    with pytest.raises(TrainingFailed, match="A batch of 200 does not fit: the training data has 50 examples"):
        work.train(lease({"batch_size": 200}))
    assert ranks() == []


@on_day(0, of=2)
@pytest.mark.datacenter
def test_a_killed_torchrun_takes_its_ranks_along_and_the_job_ends_equal(tmp_path: Path) -> None:
    work, left = Work(tmp_path), []

    def kill() -> None:
        children = psutil.Process().children()  # others' too: of a pool of an earlier test, say
        torchrun = next(child for child in children if "coordinator.datacenter.launcher" in child.cmdline())
        left.extend(torchrun.children(recursive=True))
        torchrun.kill()

    result = work.train(lease({"nproc": 2}), saved=kill)
    assert len(left) == 2
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in left)
    assert work.steps("started")[0] == 0
    assert work.steps("started")[1] >= 5
    reasons = [message["reason"] for message in work.messages if message["event"] == "restarted"]
    assert reasons == ["a process was killed by SIGKILL"]
    assert result.metrics["restarts"] == 1, "its heartbeats said so too"
    spec = work.trainer().job_of(work.of(lease({"nproc": 2})), work.checkpoint)
    undisturbed = launch(spec.model_copy(update={"checkpoints": None, "out": tmp_path / "again.safetensors"}))
    assert result.path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    assert undisturbed.restarts == 0
