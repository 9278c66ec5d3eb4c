"""A real authority process for tests, apart from any coordinator, with the commands of its operator."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests import forks

READY_S = 120.0


@dataclass
class AuthorityProcess:
    """A running ``quorate authority serve`` on loopback."""

    process: subprocess.Popen[str]
    folder: Path
    url: str
    key: str
    """Its public key in hexadecimal."""

    @classmethod
    def start(cls, folder: Path) -> AuthorityProcess:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        made = json.loads(_command(folder, "init", "--url", f"http://127.0.0.1:{port}", "--json"))
        return cls(_serving(folder, port), folder, made["url"], made["public_key"])

    @property
    def options(self) -> tuple[str, ...]:
        """With which a coordinator takes its certificates."""
        return ("--authority", self.url, "--authority-key", self.key)

    def token(self, *options: str) -> str:
        """A new enrolment token for some devices; ``--worker``: for workers."""
        return str(json.loads(_command(self.folder, "token", "--uses", "20", "--json", *options))["token"])

    def revoke(self, id: str) -> None:
        _command(self.folder, "revoke", id)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(15)

    def start_again(self) -> None:
        self.process = _serving(self.folder, int(self.url.rsplit(":", 1)[1]))


def _serving(folder: Path, port: int) -> subprocess.Popen[str]:
    words = ["authority", "serve", "--data", str(folder), "--port", str(port), "--json"]
    process = forks.Forked(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], READY_S)
    if not (ready and process.stdout.readline()):
        process.kill()
        raise AssertionError("the authority did not start")
    return process


def _command(folder: Path, *words: str) -> str:
    """What ``quorate authority`` says."""
    found = forks.run(["authority", words[0], "--data", str(folder), *words[1:]], forks.COORDINATOR)
    assert found.returncode == 0, found.stderr
    return found.stdout
