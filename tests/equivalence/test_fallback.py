"""A run whose fleet dies goes on in the datacenter and comes back to its devices: one line of checkpoints.

Everything is a process: the coordinator, the devices, the worker's agent and the ranks that it starts. The agent is
killed in the middle of a round.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.operators import RoundView
from client_sdk.tensors import to_bytes
from simulation import History
from tests import forks
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
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

DEVICES = 2
STEPS = 40
WORK: dict[str, Any] = {"data": "proxy", "steps": STEPS, "batch_size": 14, "learning_rate": 0.05, "nproc": 2}
PLAN: dict[str, Any] = {
    "name": "fallback",
    "task": {"learner": NAME, "epochs": 1, "batch_size": 8, "learning_rate": 0.1, "seed": 5},
    "cohort": {"select": DEVICES, "goal": DEVICES, "quorum": 1.0, "select_s": 8, "collect_s": 240},
    "datacenter": {**WORK, "patience": 1, "lease_s": 120, "max_s": 600},
    "finish": {"rounds": 1000},
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("QUORATE_WAITING_S", "5")  # a killed device is soon known to be away
    monkeypatch.setenv("QUORATE_PACE_MIN_S", "0.2")
    monkeypatch.setenv("QUORATE_PACE_MAX_S", "0.5")
    running = Server.start(tmp_path / "coordinator")
    yield running
    running.stop()


def quorate(folder: Path, *arguments: str) -> str:
    """What a command says; it must succeed."""
    done = forks.run(list(arguments), cwd=folder, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "shard", [pytest.param("none", marks=on_day(2, of=4)), pytest.param("full", marks=on_day(3, of=4))]
)
def test_a_run_whose_fleet_dies_goes_on_in_the_datacenter_and_equals_its_training(
    shard: str, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_learner(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from fallback_learner import learner  # type: ignore[import-not-found]

    write_data(tmp_path / "proxy.npz", 50, seed=1)
    for number in range(DEVICES):
        write_data(tmp_path / f"{number}.npz", 20, seed=10 + number)
    started: list[Command] = []

    def start(command: Command) -> Command:
        started.append(command)
        return command

    def fleet() -> list[Command]:
        options = ["--coordinator", server.url, "--token-file", server.token_file, "--learner", NAME, "--json"]
        return [
            start(Command(tmp_path, "device", *options, "--data", f"{number}.npz", "--folder", f"device-{number}"))
            for number in range(DEVICES)
        ]

    try:
        with OperatorClient(server.url) as operator:
            token = server.worker_token_file
            devices = fleet()
            worker = start(agent(tmp_path, server.url, token))
            for device in devices:
                device.wait_for("waiting")
            plan = {**PLAN, "datacenter": {**PLAN["datacenter"], "shard": shard}}
            run = operator.create_run(plan, operator.upload_checkpoint(to_bytes(learner.initial(5))), "a test").run

            def committed(kind: str, after: int = 0) -> list[RoundView]:
                found = operator.rounds(run, after)
                return [view for view in found if view.kind == kind and view.status == "committed"]

            until(lambda: committed("federated"))
            operator.pause(run)  # whatever round is under way is finished: nobody waits for a dead device's report
            until(lambda: operator.run(run).phase == "idle")
            hold_at(tmp_path, STEPS // 2)  # from here on no round of the datacenter ends before its agent is killed
            for device in devices:
                device.kill()
            until(lambda: not any(view.state == "waiting" for view in operator.devices()))
            operator.resume(run)

            worker.wait_for("saved", step=STEPS // 4)
            ranks = worker.family()
            worker.kill()
            assert len(ranks) >= 3, "torchrun and two ranks"
            assert gone(ranks)
            let_go(tmp_path)

            worker = start(agent(tmp_path, server.url, token))
            resumed = worker.wait_for("started")
            assert STEPS // 4 <= resumed["step"] < STEPS, "from a saved step, not from the checkpoint"
            first = until(lambda: committed("datacenter"))[0]
            worker.wait_for("leased", round=first.round + 1)
            devices = fleet()
            until(lambda: committed("federated", after=first.round))
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(30) == 0
            operator.stop(run)
            until(lambda: operator.run(run).phase == "idle")
            views, line = operator.rounds(run), operator.checkpoints(run)
            answer = quorate(tmp_path, "rounds", run, "--coordinator", server.url)
            for version in (first.version - 1, first.version):
                content = operator.checkpoint(line[version].digest)
                (tmp_path / f"{version}.safetensors").write_bytes(content)
    finally:
        for command in started:
            command.end()
    server.stop()

    _hold_in_the_rounds(views, first)
    for view in views:
        row = next(row for row in answer.splitlines() if row.split()[:1] == [str(view.round)])
        assert row.split()[1:3] == [view.kind, view.status]
        assert view.because in row
    assert "(lease 2): step 40" in answer
    assert [checkpoint.version for checkpoint in line] == list(range(len(line)))
    assert [view.version for view in views if view.status == "committed"] == list(range(1, len(line)))
    assert "datacenter by w" in line[first.version].origin
    assert "1 run: the rows fit each other" in quorate(tmp_path, "verify", "coordinator")
    with History.open(tmp_path / "coordinator") as history:
        kinds = [(row.kind, row.because, row.status) for row in history.rounds]
    assert kinds == [(view.kind, view.because, view.status) for view in views]

    version = first.version - 1
    seed = PLAN["task"]["seed"] + version
    trained = ["--data", "proxy.npz", "--steps", str(STEPS), "--batch", "14", "--lr", "0.05", "--optimizer", "sgd"]
    trained += ["--seed", str(seed), "--init", f"{version}.safetensors", "--out", "trained.safetensors", "--nproc", "2"]
    trained += ["--shard", shard]
    quorate(tmp_path, "datacenter", "train", NAME, *trained)
    result = (tmp_path / f"{first.version}.safetensors").read_bytes()
    assert (tmp_path / "trained.safetensors").read_bytes() == result, "killed and resumed, and yet the same bits"


def _hold_in_the_rounds(views: list[RoundView], first: RoundView) -> None:
    """Fleet, abandoned, datacenter by two leases, datacenter, fleet; and every round says why."""
    before = [view for view in views if view.round < first.round]
    assert {view.kind for view in before} == {"federated"}
    assert before[0].status == "committed"
    assert before[-1].status == "abandoned"
    assert before[-1].reason
    assert first.because == "1 federated round in a row had to be abandoned"
    assert first.lease is not None
    assert (first.lease.attempt, first.lease.step) == (2, STEPS)
    assert set(first.metrics) >= {"loss", "samples_per_s"}
    later = next(view for view in views if view.round > first.round)
    assert (later.kind, later.status) == ("datacenter", "committed")
    assert later.because == f"too few devices wait: the run fell back to the datacenter in round {first.round}"
    assert later.lease is not None
    assert later.lease.fence == first.lease.fence + 1 == 3
    back = next(view for view in views if view.kind == "federated" and view.round > later.round)
    given_up = next((view for view in views if view.round == back.round - 1 and view.status == "abandoned"), None)
    if given_up is None:
        assert back.because == f"{DEVICES} eligible devices waited when the last round in the datacenter ended"
    else:
        assert "eligible devices wait, and no worker has the round" in given_up.reason
    assert any(view.kind == "federated" and view.status == "committed" for view in views if view.round > later.round)
