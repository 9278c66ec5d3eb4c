"""A real server process for HTTP tests, on a free port, with a folder of its own; one for each test module."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client_sdk.protocol.names import Route
from tests.coordinator.service.devices import Device, model_bytes, plan

READY_S = 30.0


@dataclass
class Server:
    """A running ``quorate serve``."""

    process: subprocess.Popen[str]
    url: str
    token: str
    folder: Path
    http: httpx2.Client

    @classmethod
    def start(cls, folder: Path, *options: str, port: int = 0) -> Server:
        process = launch(folder, *options, port=port)
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], READY_S)
        line = process.stdout.readline() if ready else ""
        if not line:
            process.kill()
            raise AssertionError(f"the server did not start: {process.communicate()[1]}")
        told = json.loads(line)
        http = httpx2.Client(base_url=told["url"], timeout=30)
        return cls(process, told["url"], told["enrolment_token"], folder, http)

    def device(self, run: str = "none", slot: int = 0) -> Device:
        """A device that has the learner of the run of this name, and no other."""
        return Device(self.http, self.token, run, slot=slot)

    def create_run(self, name: str, **more: Any) -> str:
        body, digest = model_bytes()
        self.http.put(Route.CHECKPOINT.format(digest=digest), content=body).raise_for_status()
        response = self.http.post(Route.RUNS, json={"plan": plan(name, **more), "init": digest, "origin": "a test"})
        assert response.status_code == 201, response.text
        return str(response.json()["run"])

    def meter(self, line: str) -> float:
        """The value of one line of ``/metrics``; 0 where there is none yet."""
        for found in self.http.get("/metrics").text.splitlines():
            if found.startswith(line + " "):
                return float(found.rsplit(" ", 1)[1])
        return 0.0

    def stop(self, number: int = signal.SIGTERM, timeout: float = 15) -> int:
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def launch(folder: Path, *options: str, port: int = 0) -> subprocess.Popen[str]:
    """``quorate serve`` as its own process, with pipes for what it says."""
    command = [sys.executable, "-m", "coordinator.cli", "serve", "--json", "--data", str(folder), "--port", str(port)]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server.start(tmp_path_factory.mktemp("coordinator") / "data")
    yield running
    running.stop()
