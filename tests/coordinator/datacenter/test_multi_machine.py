"""Two machines that train together, each an agent of its own: here on one machine, over loopback, one rank each."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from client_sdk.data import load_data
from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.operators import RoundView
from client_sdk.tensors import Tensors, to_bytes
from coordinator.child_processes import kill_family
from coordinator.datacenter.job import interface_towards
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train
from tests.coordinator.datacenter.agents import (
    NAME,
    Command,
    agent,
    gone,
    hold_at,
    let_go,
    until,
    write_data,
    write_learner,
)
from tests.coordinator.datacenter.ranks import Group, together
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

STEPS = 40
WORK: dict[str, Any] = {"data": "proxy", "every": 1, "steps": STEPS, "batch_size": 14, "learning_rate": 0.05}
LOST_S = "12"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server.start(tmp_path_factory.mktemp("coordinator") / "data")
    yield running
    running.stop()


class Place:
    """A folder with a learner and data, a leader, a follower, and runs of one round."""

    def __init__(self, folder: Path, server: Server, learner: Any) -> None:
        self.folder, self.server, self.learner = folder, server, learner
        self.operator = OperatorClient(server.url)
        self.token = server.worker_token_file
        self.started: list[Command] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.endpoint = f"127.0.0.1:{probe.getsockname()[1]}"

    def leader(self, *more: str) -> Command:
        group = ["--nproc", "1", "--nnodes", "2", "--rdzv-endpoint", self.endpoint, "--lost-s", LOST_S]
        return self._started(agent(self.folder, self.server.url, self.token, *group, *more))

    def follower(self, *more: str) -> Command:
        options = ["--folder", "worker", "--node", "1", "--device", "cpu", "--lost-s", LOST_S, "--json"]
        options += ["--data", "proxy=proxy.npz", "--learner", NAME]
        return self._started(Command(self.folder, "datacenter", "follow", *options, *more))

    def run(self, name: str, nproc: int = 2, **more: Any) -> str:
        plan = {
            "name": name,
            "task": {"learner": NAME, "seed": 5},
            "datacenter": {**WORK, "nproc": nproc, "lease_s": 40, **more},
            "finish": {"rounds": 1},
        }
        init = self.operator.upload_checkpoint(to_bytes(self.learner.initial(5)))
        return self.operator.create_run(plan, init, "a test").run

    def ended(self, run: str) -> RoundView:
        """The run's first round, once it has ended."""
        until(lambda: self.operator.round(run, 1).status != "open")
        return self.operator.round(run, 1)

    def result(self, run: str) -> bytes:
        return self.operator.checkpoint(self.operator.checkpoints(run)[1].digest)

    def _started(self, command: Command) -> Command:
        self.started.append(command)
        return command


def undisturbed(group: Group, folder: Path) -> Tensors:
    """The steps of every test here, by the learner in ``folder``, which nobody holds or kills."""
    sys.path.insert(0, str(folder))
    from fallback_learner import learner  # type: ignore[import-not-found]

    recipe = Recipe(steps=STEPS, batch_size=14, learning_rate=0.05, optimizer="sgd", seed=5)
    return train(learner, learner.initial(5), load_data(str(folder / "proxy.npz")), recipe, group=group)[0]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint that one machine with two processes makes of a round."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_learner(folder)
    write_data(folder / "proxy.npz", 50, seed=1)
    return to_bytes(together(2, undisturbed, folder)[0])


@pytest.fixture
def place(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    write_learner(tmp_path)
    write_data(tmp_path / "proxy.npz", 50, seed=1)
    monkeypatch.syspath_prepend(str(tmp_path))
    from fallback_learner import learner  # type: ignore[import-not-found]

    made = Place(tmp_path, server, learner)
    yield made
    for command in made.started:
        command.end()
    made.operator.close()


@on_day(0, of=4)
def test_two_machines_equal_one_with_as_many_processes_also_where_the_follower_is_killed(
    place: Place, expected: bytes
) -> None:
    hold_at(place.folder, STEPS // 2)
    follower = place.follower()
    leader = place.leader("--max-restarts", "1")
    assert leader.wait_for("group")["text"] == "Machine 1 is here (1 process)."
    run = place.run("together")
    leader.wait_for("saved", step=STEPS // 4)
    ranks = follower.family()
    assert len(ranks) >= 2, "torchrun and a rank"
    follower.kill()
    assert gone(ranks), "they end with their agent"
    let_go(place.folder)
    follower = place.follower()
    follower.wait_for("training")
    again = leader.wait_for("restarted")
    assert again["attempt"] == 1
    view = place.ended(run)
    assert (view.status, view.attempt, view.version) == ("committed", 1, 1), "the lease was kept all the while"
    started = [message["step"] for message in leader.messages if message["kind"] == "started"]
    assert (started[0], len(started)) == (0, 2)
    assert started[1] >= STEPS // 4, "from a saved step"
    assert [message["world"] for message in leader.messages if message["kind"] == "started"] == [2, 2]
    assert place.result(run) == expected
    for command in (leader, follower):
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(30) == 0
    assert not list((place.folder / "worker" / "machines").glob("*.json"))


@on_day(1, of=4)
def test_a_killed_leader_takes_its_round_up_again_with_the_follower(place: Place, expected: bytes) -> None:
    hold_at(place.folder, STEPS // 2)
    follower, leader = place.follower(), place.leader()
    leader.wait_for("group")
    run = place.run("led")
    leader.wait_for("saved", step=STEPS // 4)
    ranks = leader.family()
    leader.kill()
    assert gone(ranks)
    let_go(place.folder)
    leader = place.leader()
    leader.wait_for("leased")
    assert leader.wait_for("started")["step"] >= STEPS // 4
    view = place.ended(run)
    assert view.lease is not None
    assert (view.status, view.attempt, view.lease.fence) == ("committed", 2, 2), "another lease, of the same round"
    assert place.result(run) == expected
    assert follower.process.poll() is None, "it waits for the next round"


@pytest.mark.soak
def test_a_follower_that_stays_away_costs_the_lease_and_what_fits_the_rest_is_trained(place: Place) -> None:
    hold_at(place.folder, STEPS // 2)
    follower, leader = place.follower(), place.leader()
    leader.wait_for("group")
    run = place.run("left")
    leader.wait_for("saved", step=STEPS // 4)
    follower.kill()
    assert "no longer responds" in leader.wait_for("given-back")["text"]
    let_go(place.folder)
    until(lambda: place.operator.run(run).phase == "leasing")
    assert place.operator.round(run, 1).status == "open", "a worker with two processes may take it"
    alone = place.run("one", nproc=1)
    assert place.ended(alone).status == "committed"


@on_day(1, of=2)
def test_an_error_of_a_follower_alone_is_reported_and_ends_the_round(place: Place) -> None:
    """Its copy of the data has as many examples, and other labels: too many for the model."""
    write_data(place.folder / "other.npz", 50, seed=1, labels=9)
    follower, leader = place.follower("--data", "proxy2=other.npz"), place.leader("--data", "proxy2=proxy.npz")
    leader.wait_for("group")
    run = place.run("wrong", data="proxy2")
    view = place.ended(run)
    assert view.status == "abandoned"
    assert "could not train: The learner" in view.reason
    assert "Target" in view.reason
    assert follower.wait_for("broke-off")["text"].count("Target") == 1
    assert leader.process.poll() is None


@on_day(0, of=2)
def test_a_machine_that_does_not_fit_is_left_out_with_a_sentence(place: Place) -> None:
    """The other reasons: tests/coordinator/datacenter/test_machines.py."""
    write_data(place.folder / "more.npz", 60, seed=1)
    place.follower("--data", "proxy2=proxy.npz")
    found = place.leader("--data", "proxy2=more.npz").wait_for("group")["text"]
    assert found == "Machine 1 is left out: its 'proxy2' has 50 examples, and this machine's has 60."


@on_day(3, of=4)
def test_an_endpoint_that_another_program_has_is_named(place: Place) -> None:
    host, _, port = place.endpoint.rpartition(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()
        place.follower()
        place.leader("--max-restarts", "1").wait_for("group")
        view = place.ended(place.run("taken"))
    assert view.status == "abandoned"
    assert "failed to listen" in view.reason


@on_day(2, of=4)
@pytest.mark.timeout(600)
def test_two_torchruns_by_hand_start_again_together_where_a_rank_is_killed(place: Place, expected: bytes) -> None:
    """Only one of them counts that as a restart of its own; the ranks once waited for each other until their patience
    ended, and broke again. Killed as soon as a step is saved, which the others may still be telling each other: that
    was once taken for a bug instead of a lost rank. A machine that is busy has longer patience here than elsewhere."""
    hold_at(place.folder, STEPS // 2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", place.endpoint, "--rdzv-id", "j", "--max-restarts", "3"]
    torchrun += ["--local-addr", "127.0.0.1", "--monitor-interval", "0.1"]
    train = ["datacenter", "train", NAME, "--data", "proxy.npz", "--steps", str(STEPS), "--batch", "14"]
    train += ["--lr", "0.05", "--optimizer", "sgd", "--seed", "5", "--device", "cpu"]
    saving = ["--resume", "--checkpoints", "steps", "--checkpoint-every", "5", "--out", "by-hand.safetensors"]
    command = [*torchrun, "-m", "client_sdk.cli", *train, *saving]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface_towards("127.0.0.1:1") or ""}
    env |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    messages = [place.folder / f"said-{number}.txt" for number in range(2)]
    machines = []
    for path in messages:
        with path.open("w") as file:
            machines.append(
                subprocess.Popen(command, cwd=place.folder, env=env, stdout=file, stderr=subprocess.STDOUT, text=True)
            )
    try:
        until(lambda: (place.folder / "steps" / "step-000000010" / "complete").exists(), 240)
        rank_of(machines, "1").kill()
        let_go(place.folder)
        ends_at = time.monotonic() + 200
        for process in machines:
            process.wait(max(0.1, ends_at - time.monotonic()))
    except (AssertionError, subprocess.TimeoutExpired):
        for rank in ranks_of(machines):
            rank.send_signal(signal.SIGABRT)  # faulthandler then says where it stood
            rank.wait(10)
        raise AssertionError("They hang: " + "".join(path.read_text() for path in messages)) from None
    finally:
        for process in machines:
            kill_family(process.pid)
            process.wait()
    output = "".join(path.read_text() for path in messages)
    assert [process.returncode for process in machines] == [0, 0], output
    assert "A bug in quorate" not in output
    assert output.count("broke at rank") <= 1, "a torchrun may end its rank before it has said so"
    began = re.findall(r"2 processes on cpu( from step (\d+))? to step 40", output)
    assert [step for _, step in began] in (["", "10"], ["", "15"]), output
    assert (place.folder / "by-hand.safetensors").read_bytes() == expected


def ranks_of(machines: list[subprocess.Popen[str]]) -> list[psutil.Process]:
    return [rank for process in machines for rank in psutil.Process(process.pid).children(recursive=True)]


def rank_of(machines: list[subprocess.Popen[str]], number: str) -> psutil.Process:
    return next(rank for rank in ranks_of(machines) if rank.environ().get("RANK") == number)
