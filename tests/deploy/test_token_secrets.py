"""No enrolment token is on a command line or in the output of the processes that use it: coordinator, device, fleet and
its children, worker, torchrun group, demo. Their folders and the coordinator's database are searched too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from client_sdk.http.operator import OperatorClient
from tests.coordinator.datacenter.agents import NAME, Command, agent, until, write_data, write_learner
from tests.coordinator.service.conftest import Server
from tests.deploy.planted import Places
from tests.deploy.test_secrets import of_token
from tests.rotating import on_day

DEVICES = 3


def everybody(folder: Path, server: Server) -> dict[str, Command]:
    """The commands that take a token, all of them running."""
    at = ("--coordinator", server.url, "--token-file", server.token_file, "--json")
    mine = ("--data", "proxy.npz", "--learner", NAME)
    fleet = ("--data", "proxy.npz", "--by", "iid", "--devices", str(DEVICES), "--processes", "2")
    return {
        "device": Command(folder, "device", *at, *mine),
        "fleet": Command(folder, "fleet", *at, *fleet, "--learner", NAME),
        "worker": agent(folder, server.url, server.worker_token_file),
    }


@on_day(1, of=2)
@pytest.mark.datacenter
def test_an_enrolment_token_is_in_its_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places, folder = Places(), tmp_path / "peers"
    folder.mkdir()
    write_learner(folder)
    write_data(folder / "proxy.npz", 50, seed=1)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    server = Server.start(tmp_path / "data")
    commands: dict[str, Command] = {}
    try:
        log = server.log
        commands = everybody(folder, server)
        with OperatorClient(server.url) as operator:
            until(lambda: len(operator.devices()) == 1 + DEVICES and operator.workers())
        commands["worker"].wait_for("ready")
        places.add_processes(psutil.Process(server.process.pid))
        for command in commands.values():
            places.add_processes(psutil.Process(command.process.pid))
        lines = [content.decode() for place, content in places.found if place == "command line"]
        assert sum("simulation.fleet.processes" in line for line in lines) == 2, "the fleet's children are looked at"
        assert sum("--token-file" in line for line in lines) == len(commands)
    finally:
        for name, command in commands.items():
            command.process.terminate()
            command.process.wait(60)
            places.add(f"what the {name} prints", "".join(command.lines))
        assert server.stop() == 0
    assert server.process.stdout is not None
    places.add("what serve prints", server.process.stdout.read())
    places.add("the log", log.text())
    places.add_folder(tmp_path / "data")
    places.add_folder(folder)
    secrets = [*of_token("device", server.token), *of_token("worker", server.worker_token)]
    assert places.leaks(secrets) == []
    names = {place for place, _ in places.found}
    assert {"file authority/device-token", "file quorate.sqlite3", "file quorate-device/record.json"} <= names


@on_day(0, of=2)
def test_nor_in_a_group_or_the_demo(tmp_path: Path) -> None:
    """The demo's commands are shown to its user as they run, so its output is searched too."""
    rng, places = np.random.default_rng(0), Places()
    y = rng.integers(0, 3, 120)
    x = (rng.normal(size=(120, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y, x_test=x, y_test=y)
    write_learner(tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "client_sdk.cli", "demo", "--folder", "demo", "--data", "data.npz", "--by", "iid"]
    command += ["--devices", "4", "--select", "2", "--goal", "2", "--rounds", "5000", "--learner", NAME]
    token_file = tmp_path / "demo" / "coordinator" / "authority" / "device-token"
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        group: subprocess.Popen[str] | None = None
        try:
            seen = psutil.Process(demo.pid)
            until(lambda: any("simulation.fleet.processes" in line for line in lines_of_children(seen)))
            places.add_processes(seen)
            url = json.loads((tmp_path / "demo" / "logs" / "serve.out").read_text().splitlines()[0])["url"]
            joining = ["--url", url, "--token-file", str(token_file), "--data", "data.npz", "--learner", NAME]
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
            group = subprocess.Popen(
                [sys.executable, *torchrun, "client_sdk.learning.collective", *joining, "--device", "cpu"],
                cwd=tmp_path,
                env={**environment, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert group.stdout is not None
            first = next(line for line in group.stdout if "This group of 2" in line or "Error" in line)
            assert "This group of 2" in first
            places.add_processes(psutil.Process(group.pid))
            places.add("what the group prints", first)
        finally:
            for process in (group, demo):
                if process is not None:
                    process.terminate()
                    places.add("what is printed", process.communicate(timeout=60)[0])
    token = token_file.read_text().strip()
    places.add_folder(tmp_path / "demo" / "logs")
    assert places.leaks(of_token("device", token)) == []
    printed = b"".join(content for place, content in places.found if place == "what is printed")
    assert b"--token-file" in printed
    lines = [content for place, content in places.found if place == "command line"]
    assert sum(b"client_sdk.learning.collective" in line for line in lines) == 3, "torchrun and its two processes"


def lines_of_children(process: psutil.Process) -> Iterator[str]:
    """The command lines of the process's children. One may end meanwhile."""
    time.sleep(0.05)
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield " ".join(child.cmdline())
