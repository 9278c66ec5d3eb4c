"""A job in processes of its own: its messages, and the same result whichever process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from client_sdk.tensors import Tensors, digest, from_bytes
from coordinator.child_processes import with_environment
from coordinator.datacenter.job import ENV_JOB, launch
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import JobFailed, JobSpec, JobStopped, whole_steps
from coordinator.datacenter.training import train
from tests.coordinator.datacenter.models import examples, largest_difference, slow
from tests.coordinator.datacenter.models import steady as steady_learner
from tests.coordinator.datacenter.ranks import Group, together
from tests.rotating import on_day, taking_turns

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

RECIPE = Recipe(steps=30, batch_size=12, learning_rate=0.05, seed=3)
Message = dict[str, Any]


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    x, y = examples()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return JobSpec(
        learner="tests.coordinator.datacenter.models:slow",
        data=str(tmp_path / "data.npz"),
        recipe=RECIPE,
        out=tmp_path / "out" / "model.safetensors",
        checkpoints=tmp_path / "steps",
        checkpoint_every=5,
        nproc=2,
        device="cpu",
    )


def undisturbed(group: Group) -> Tensors:
    return train(slow(), slow().initial(RECIPE.seed), examples(), RECIPE, group=group)[0]


@pytest.fixture(scope="module")
def expected() -> Tensors:
    """What two ranks come to when nobody is killed."""
    found: Tensors = together(2, undisturbed)[0]
    return found


def workers(launcher: int | None = None) -> dict[int, psutil.Process]:
    """The processes of a job that this process, or ``launcher``, has started, by rank."""
    found = {}
    for process in psutil.Process(launcher).children(recursive=True):
        try:
            words = process.cmdline()
            if "coordinator.datacenter.rank" in words and "coordinator.datacenter.launcher" not in words:
                found[int(process.environ().get("RANK", "0"))] = process
        except psutil.Error:
            continue
    return found


def at_step(step: int, act: Callable[[], object]) -> tuple[list[Message], Callable[[Message], None]]:
    """A list of messages and its receiver, which calls ``act`` once, after ``step`` was saved the first time."""
    received: list[Message] = []
    done: list[bool] = []

    def hear(message: Message) -> None:
        received.append(message)
        if message["event"] == "saved" and message["step"] == step and not done:
            done.append(True)
            act()

    return received, hear


def bits(tensors: Tensors) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


def kill_and_look_away() -> None:
    """Kill rank 1, and read no message until its successor runs."""
    first = workers()[1]
    first.kill()
    deadline = time.monotonic() + 20
    while workers().get(1, first) == first and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize("shard", taking_turns("none", "optimizer", "gradients", "full"))
def test_a_killed_rank_ends_in_equal_weights(spec: JobSpec, expected: Tensors, shard: str) -> None:
    """Also where the launcher is slow to hear of it: it once took the next group for the broken one, and killed it; and
    the next group once read the dead one's addresses, and hung."""
    received, hear = at_step(10, kill_and_look_away)
    result = launch(spec.model_copy(update={"recipe": RECIPE.model_copy(update={"shard": shard})}), hear)
    content = (spec.out or Path()).read_bytes()
    assert largest_difference(from_bytes(content), expected) <= (0 if shard == "none" else 1e-9)
    assert (result.out, result.digest, result.restarts) == (spec.out, digest(content), 1)
    assert [m["step"] for m in received if m["event"] == "started"] in ([0, 10], [0, 15])
    assert [m["attempt"] for m in received if m["event"] == "restarted"] == [1]
    assert received[-1]["event"] == "done"
    assert result.report["steps"] == RECIPE.steps
    assert [m["step"] for m in received if m["event"] == "saved"][-1] == RECIPE.steps


@on_day(0, of=2)
def test_a_hung_rank_is_noticed_in_the_stated_time(spec: JobSpec, expected: Tensors) -> None:
    """Timed to the end of the hung one: how long the next start takes is a matter of how busy the machine is, and so is
    whether an honest process is silent for 5 s, hence many restarts."""
    noticed: list[float] = []
    timers: list[threading.Thread] = []

    def stop() -> None:
        hung, stopped_at = workers()[1], time.monotonic()
        hung.send_signal(signal.SIGSTOP)

        def wait_for_its_end() -> None:
            hung.wait(120)
            noticed.append(time.monotonic() - stopped_at)

        timers.append(threading.Thread(target=wait_for_its_end, daemon=True))
        timers[0].start()

    received, hear = at_step(10, stop)
    result = launch(spec.model_copy(update={"hang_s": 5.0, "max_restarts": 20}), hear)
    timers[0].join(120)
    assert bits(from_bytes((spec.out or Path()).read_bytes())) == bits(expected)
    assert result.restarts >= 1
    assert any("silent for 5 s" in m["reason"] for m in received if m["event"] == "restarted")
    assert noticed[0] < 30, "5 s to notice and 2 s to end it; torchrun alone takes over 35 s"


@on_day(1, of=2)
def test_a_torchrun_that_dies_while_a_rank_stands_still_does_not_keep_the_job(spec: JobSpec, expected: Tensors) -> None:
    """The stopped rank holds the pipe that is listened to, and does not notice that torchrun is gone."""
    stopped: list[psutil.Process] = []

    def stop_one_and_kill_torchrun() -> None:
        stopped.append(workers()[1])
        torchrun = stopped[0].parent()
        stopped[0].suspend()
        assert torchrun is not None
        torchrun.kill()

    received, hear = at_step(10, stop_one_and_kill_torchrun)
    result = launch(spec, hear)
    assert not stopped[0].is_running()
    assert result.restarts == 1
    assert [m["reason"] for m in received if m["event"] == "restarted"] == ["a process was killed by SIGKILL"]
    assert bits(from_bytes((spec.out or Path()).read_bytes())) == bits(expected)


@on_day(0, of=2)
def test_a_stopped_job_goes_on_from_the_last_whole_step_with_fewer_processes(spec: JobSpec) -> None:
    steady = spec.model_copy(update={"learner": "tests.coordinator.datacenter.models:steady"})
    stop = threading.Event()
    _, hear = at_step(15, stop.set)
    with pytest.raises(JobStopped):
        launch(steady, hear, stop)
    assert workers() == {}
    assert not (spec.out or Path()).exists()
    assert spec.checkpoints is not None
    assert whole_steps(spec.checkpoints)[-1] in (15, 20)
    (spec.checkpoints / "step-000000025").mkdir()
    (spec.checkpoints / "step-000000025" / "shard-00001-model-00001-of-00001.safetensors").write_bytes(
        b"half of what was to be written"
    )

    received: list[Message] = []
    launch(steady.model_copy(update={"nproc": 1}), received.append)
    assert received[0]["event"] == "started"
    assert received[0]["step"] in (15, 20)
    model = from_bytes((spec.out or Path()).read_bytes())
    undisturbed, _ = train(steady_learner(), steady_learner().initial(RECIPE.seed), examples(), RECIPE)
    assert largest_difference(model, undisturbed) <= 1e-10


@on_day(1, of=2)
def test_the_processes_end_with_their_launcher(spec: JobSpec, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    program = (
        "import sys, pathlib; from coordinator.datacenter.job import launch; "
        "from coordinator.datacenter.spec import JobSpec; "
        "launch(JobSpec.model_validate_json(pathlib.Path(sys.argv[1]).read_text()), lambda m: print(m, flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "spec.json")], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if "'saved'" in line)
        family = [*workers(launcher.pid).values(), *psutil.Process(launcher.pid).children(recursive=True)]
        launcher.kill()
    known, later = {process.pid for process in family}, set()
    while left := {process.pid for process in with_environment(lambda env: str(tmp_path) in env.get(ENV_JOB, ""))}:
        later |= left - known
    assert len(known) >= 3, "torchrun and two workers"
    assert later == set(), "torchrun took ranks that ended for ranks that failed, and started others"


@on_day(0, of=2)
def test_one_process_needs_no_group_and_is_started_again_too(spec: JobSpec, capsys: pytest.CaptureFixture[str]) -> None:
    single = spec.model_copy(update={"nproc": 1})
    received, hear = at_step(10, lambda: workers()[0].kill())
    result = launch(single, hear)
    assert bits(from_bytes((spec.out or Path()).read_bytes())) == bits(undisturbed(Group()))
    assert (result.restarts, result.report["world"]) == (1, 1)
    assert next(m["reason"] for m in received if m["event"] == "restarted") == "a process was killed by SIGKILL"
    assert capsys.readouterr().err.count("a word of the learner's\n") >= RECIPE.steps, "no message, and not lost"


@on_day(1, of=2)
def test_a_job_that_dies_too_often_says_of_what(spec: JobSpec) -> None:
    hopeless = spec.model_copy(update={"nproc": 1, "max_restarts": 0})
    _, hear = at_step(5, lambda: workers()[0].kill())
    with pytest.raises(
        JobFailed, match=r"The training broke off: a process was killed by SIGKILL. What was saved is in"
    ):
        launch(hopeless, hear)
