"""A whole run as a platform engineer sets it up: coordinator, authority and 50 devices, each a program of its own.

::

    50 devices of the bare wheel --TLS--> nginx, under a path --> coordinator --TLS--> authority

While it trains, one device is revoked, one renews its certificate, the clock of one is two hours ahead, and the
authority is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.http.transport import open_http
from client_sdk.protocol.operators import RoundView
from client_sdk.tensors import from_bytes, to_bytes
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.nginx import nginx, nginx_program
from tests.coordinator.service.test_tls import Pair, issue
from tests.ports import free_port
from tests.rotating import on_day

PATH = "/fl"
DEVICES = 50
GOAL = 40
ROUNDS = 20
"""More than pass while a command revokes a device, on any machine."""
WAIT_S = 60.0
pytestmark = [
    pytest.mark.service,
    pytest.mark.slow,
    pytest.mark.skipif(nginx_program() is None, reason="no nginx here: scripts/debian.sh nginx"),
]

LEARNER = """
import time
import numpy as np
from client_sdk import Update

__version__ = "1.0"

def train(model, data, task):
    time.sleep(0.3)
    return Update({"w": np.ones_like(model["w"])}, examples=1)
"""
"""Every device adds one, so the model of version v is v."""

CROWD = """
import sys, threading
from pathlib import Path
from client_sdk import Catalogue, FileStorage, LearnerTrainer
from client_sdk.http.client import Client
from client_sdk.http.transport import open_http

assert not {"torch", "fastapi", "sqlalchemy", "flwr"} & set(sys.modules)
url, token, folder, count = sys.argv[1], sys.stdin.readline().strip(), Path(sys.argv[2]), int(sys.argv[3])
stop = threading.Event()

def device(number):
    trainer = LearnerTrainer(Catalogue(["clinic:train"]), range(1))
    with FileStorage(folder / str(number), durable=False) as storage, open_http(url) as http:
        with Client(url, storage, trainer, enrolment_token=token, http=http, hold_s=5) as client:
            client.run(stop=stop)

sys.path.insert(0, "")
threads = [threading.Thread(target=device, args=(number,), daemon=True) for number in range(count)]
for thread in threads:
    thread.start()
print("started", flush=True)
sys.stdin.readline()
stop.set()
for thread in threads:
    thread.join(20)
"""

CLOCK = """
import sys, time
off, real = float(sys.argv.pop(1)), time.time
time.time = lambda: real() + off
from client_sdk.cli import main
main()
"""
"""``quorate`` on a machine whose clock is off by so many seconds."""


@dataclass
class Programs:
    """Starts programs, and ends them with the test."""

    stack: ExitStack
    ca: Path

    def start(self, *command: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, "QUORATE_CA": str(self.ca), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.stack.callback(_end, process)
        return process


@dataclass
class AuthorityProgram:
    """``quorate authority`` in a process of its own, over TLS."""

    programs: Programs
    folder: Path
    pair: Pair
    port: int

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def serve(self, *, clock_s: float = 0.0) -> subprocess.Popen[str]:
        """Serves from now on. ``clock_s``: by how much the clock of its machine is off."""
        words = ("authority", "serve", "--data", self.folder, "--port", str(self.port), *self.pair.options, "--json")
        process = self.programs.start(sys.executable, "-c", CLOCK, str(clock_s), *words)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"] == self.url
        return process

    def says(self, *words: str) -> list[dict[str, Any]]:
        """What a command on the authority's machine prints."""
        command = [sys.executable, "-m", "client_sdk.cli", "authority", *words, "--data", self.folder, "--json"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, timeout=60)
        return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass
class DeviceProgram:
    """``quorate device`` of the bare wheel."""

    programs: Programs
    python: Path
    folder: Path
    work: Path
    url: str

    def run(self, token: str, *, clock_s: float = 0.0) -> subprocess.Popen[str]:
        words = ("device", "--data", "data.npz", "--learner", "clinic:train", "--folder", self.folder)
        command = (self.python, "-c", CLOCK, str(clock_s), *words, "--coordinator", self.url, "--json")
        return self.programs.start(*command, cwd=self.work, QUORATE_ENROLMENT_TOKEN=token)

    def says(self, *words: str) -> list[dict[str, Any]]:
        """What a command about this device prints."""
        command = [self.python.with_name("quorate"), "device", *words, "--folder", self.folder, "--json"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, timeout=60)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def show(self) -> dict[str, Any]:
        (shown,) = self.says("show")
        return shown


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the program. What it said is shown where the test fails."""
    if process.poll() is None:
        process.kill()
    said = process.communicate()[0]
    print(f"{process.args}\n{said[-2000:]}")


def _until(what: str, found: Callable[[], Any], within_s: float = WAIT_S) -> Any:
    """What ``found`` returns as soon as it is something."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        answer = found()
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"not within {within_s} s: {what}")


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with ExitStack() as stack:
        yield Programs(stack, tmp_path / "pair" / "ca.pem")


@on_day(1, of=2)
def test_fifty_devices_train_while_one_is_revoked_one_renews_one_is_late_and_the_authority_dies(
    programs: Programs, bare_device_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, front, back = issue(tmp_path / "pair"), free_port(), free_port()
    monkeypatch.setenv("QUORATE_CA", str(pair.ca))
    monkeypatch.setenv("QUORATE_REVOCATIONS_S", "0.5")
    url = f"https://localhost:{front}{PATH}"
    work = tmp_path / "devices"
    work.mkdir()
    (work / "clinic.py").write_text(LEARNER)
    np.savez(work / "data.npz", x=np.ones((1, 1), np.float32), y=np.ones(1, np.float32))

    def device(name: str) -> DeviceProgram:
        return DeviceProgram(programs, bare_device_python, tmp_path / name, work, url)

    # The authority certifies one device while its clock is 15 hours behind: half of a certificate's day is over then.
    authority = AuthorityProgram(programs, tmp_path / "authority", pair, free_port())
    authority.says("init", "--url", authority.url, "--certificate-days", "1")
    (made,) = authority.says("token", "--uses", str(DEVICES))
    token, (shown,) = made["token"], authority.says("show")
    serving, renewing = authority.serve(clock_s=-15 * 3600), device("renewing")
    early = renewing.run(token)
    first = _until("a stored certificate", lambda: _certified(renewing))
    _stop(early)
    serving.send_signal(signal.SIGKILL)
    serving = authority.serve()

    options = ("--behind-proxy", "127.0.0.1/32", "--public-url", url)
    trusts = ("--authority", authority.url, "--authority-key", shown["public_key"])
    server = Server.start(tmp_path / "data", *options, *trusts, port=back, tls=pair.tls)
    programs.stack.callback(server.stop)
    programs.stack.enter_context(
        nginx(tmp_path / "nginx", port=front, upstream=back, path=PATH, cert=pair.cert, key=pair.key)
    )
    operator = programs.stack.enter_context(OperatorClient(url, http=open_http(url, ca=pair.ca), key=server.key))

    revoked, late = device("revoked"), device("late")
    processes = {
        "renewing": renewing.run(token),
        "revoked": revoked.run(token),
        "late": late.run(token, clock_s=2 * 3600),
    }
    crowd = programs.start(bare_device_python, "-c", CROWD, url, str(tmp_path / "crowd"), str(DEVICES - 3), cwd=work)
    assert crowd.stdin is not None
    crowd.stdin.write(token + "\n")
    crowd.stdin.flush()
    _until("50 registered devices", lambda: len(operator.devices()) == DEVICES)

    plan = {
        "name": "whole",
        "task": {"learner": "clinic:train", "learner_version": "1.0"},
        "cohort": {"select": 44, "goal": GOAL, "select_s": 60, "collect_s": 60},
        "finish": {"rounds": ROUNDS},
    }
    digest = operator.upload_checkpoint(to_bytes({"w": np.zeros(3, np.float32)}))
    run = operator.create_run(plan, digest, "test").run

    _until("two rounds", lambda: operator.run(run).version >= 2)
    bad = revoked.show()["id"]
    authority.says("revoke", bad)
    assert processes["revoked"].wait(WAIT_S) != 0
    after = operator.run(run).version
    said = processes["revoked"].stdout.read()  # type: ignore[union-attr]
    assert "revoked" in said, said

    at_death = _until("a round under way", lambda: _collecting(operator, run))
    serving.send_signal(signal.SIGKILL)
    _until("the end", lambda: operator.run(run).status == "finished", 150.0)

    rounds = operator.rounds(run)
    assert [row.status for row in rounds] == ["committed"] * len(rounds)
    assert any(row.round == at_death for row in rounds)
    assert all(row.authority == "apart" for row in rounds)
    operator.download(operator.run(run).checkpoint, tmp_path / "model.safetensors")
    model = from_bytes((tmp_path / "model.safetensors").read_bytes())
    np.testing.assert_array_equal(model["w"], np.full(3, ROUNDS, np.float32))

    for name in ("renewing", "late"):
        _stop(processes[name])
    crowd.stdin.write("stop\n")
    crowd.stdin.flush()
    joined = {one.folder.name: one.says("history") for one in (renewing, revoked, late)}
    assert any(entry["result"] == "receipt" for entry in joined["late"])
    assert any(entry["result"] == "receipt" for entry in joined["renewing"])
    assert not any(entry["authority_inside"] for entries in joined.values() for entry in entries)
    assert all(entry["round"] <= after + 1 for entry in joined["revoked"] if entry["result"] == "receipt")
    again = renewing.show()
    assert again["id"] == first["id"]
    assert again["valid_until"] > first["valid_until"]


def _certified(device: DeviceProgram) -> dict[str, Any] | None:
    try:
        shown = device.show()
    except subprocess.CalledProcessError:
        return None
    return shown if shown["valid_until"] else None


def _collecting(operator: OperatorClient, run: str) -> int:
    last: RoundView = operator.rounds(run)[-1]
    return last.round if last.status == "open" else 0


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
