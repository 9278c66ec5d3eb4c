"""A real server process for HTTP tests, on a free port, with a folder of its own."""

from __future__ import annotations

import json
import select
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import httpx2
import pytest

from client_sdk.protocol.names import Route
from tests.coordinator.service.devices import Device, model_bytes, plan
from tests.forks import Forked

READY_S = 120.0
NO_AUTHORITY = "--no-authority"
"""Among the options of ``Server.start``: a coordinator without any. It is no option of the command."""


@dataclass
class Server:
    """A running ``quorate serve``, with an authority inside unless its options say otherwise. ``http`` sends the
    owner's key, unless a request has credentials of its own."""

    process: subprocess.Popen[str]
    url: str
    token: str
    """With which a device enrols at the authority inside; empty where there is none."""
    worker_token: str
    folder: Path
    http: httpx2.Client
    key: str
    """The owner's API key."""

    @property
    def token_file(self) -> str:
        """The file with ``token``, for a command."""
        return str(self.folder / "authority" / "device-token")

    @property
    def worker_token_file(self) -> str:
        """The file with ``worker_token``, for a command."""
        return str(self.folder / "authority" / "worker-token")

    @property
    def key_line(self) -> str:
        """The header of a raw request with the owner's key."""
        return f"Authorization: Bearer {self.key}"

    @classmethod
    def start(
        cls, folder: Path, *options: str, port: int = 0, handles: int | None = None, tls: ssl.SSLContext | None = None
    ) -> Server:
        """``tls``: what the tests' own client trusts; the server's certificate is among the options."""
        if not {"--behind-proxy", "--authority", NO_AUTHORITY} & set(options):
            options = ("--dev-authority", *options)
        options = tuple(option for option in options if option != NO_AUTHORITY)
        process = launch(folder, *options, port=port, handles=handles)
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], READY_S)
        line = process.stdout.readline() if ready else ""
        if not line:
            process.kill()
            raise AssertionError(f"the server did not start: {process.communicate()[1]}")
        found = json.loads(line)
        key = Path(found["key_file"]).read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        http = httpx2.Client(base_url=found["url"], timeout=30, headers=headers, verify=tls or True)
        names = (found.get(f"{holder}_token_file") for holder in ("device", "worker"))
        device, worker = (Path(name).read_text().strip() if name else "" for name in names)
        return cls(process, found["url"], device, worker, folder, http, key)

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

    @cached_property
    def log(self) -> Log:
        assert self.process.stderr is not None
        return Log(self.process.stderr)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 15) -> int:
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def launch(folder: Path, *options: str, port: int = 0, handles: int | None = None) -> subprocess.Popen[str]:
    """``quorate serve`` as its own process, with pipes for what it says, and at most this many open files."""
    words = ["serve", "--json", "--data", str(folder), "--port", str(port), *options]
    if handles is None:
        return Forked(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    command = ["sh", "-c", f'ulimit -n {handles} && exec "$@"', "sh", sys.executable, "-m", "coordinator.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Log:
    """What a server writes to its standard error, read while it runs so that the pipe never fills."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: list[str] = []
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._grown:
                self._lines.append(line)
                self._grown.notify_all()

    def line(self, text: str, timeout: float = READY_S) -> str:
        """The first line with this text, as soon as there is one."""
        with self._grown:
            self._grown.wait_for(lambda: any(text in line for line in self._lines), timeout)
            return next((line for line in self._lines if text in line), "")

    def text(self) -> str:
        """All of it, once the server has stopped."""
        self._thread.join(READY_S)
        return "".join(self._lines)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests of this folder that a process runs: a test names its own runs and devices."""
    running = Server.start(tmp_path_factory.mktemp("coordinator") / "data")
    yield running
    running.stop()
