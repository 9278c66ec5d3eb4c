"""A Flower run at a real coordinator, as a ServerApp's Grid asks for it, and devices in processes of their own."""

from __future__ import annotations

import hashlib
import json
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from client_sdk.flower import records
from client_sdk.flower.work import node_id
from client_sdk.protocol.flower import FlowerApp, FlowerError
from client_sdk.protocol.names import Route
from tests import forks
from tests.coordinator.service.conftest import Server

PATIENCE_S = 90.0


@dataclass
class RealRun:
    """``server.http`` may be replaced where the coordinator is started again."""

    server: Server
    run: str
    app: FlowerApp
    pushed: int = 0

    def create(self, **more: Any) -> None:
        config = {"rate": 0.5}
        self._post(Route.FLOWER_RUNS, {"run": self.run, "app": self.app.model_dump(), "config": config, **more})

    def nodes(self) -> list[int]:
        """The nodes that are there and can serve the run."""
        answer = self.server.http.get(Route.FLOWER_NODES.format(run=self.run))
        return [node["node"] for node in answer.raise_for_status().json()["nodes"]]

    def node(self, device: DeviceProcess) -> int:
        """The node of a device that enrols now, once it is there."""
        node = node_id(device.until("enrolled")["text"].split()[2].rstrip(";"))
        until = time.monotonic() + PATIENCE_S
        while node not in self.nodes():
            assert time.monotonic() < until, device.said
            time.sleep(0.1)
        return node

    def push(self, node: int, kind: str = "train", ttl_s: float = 600.0, values: int = 4) -> str:
        """The id of a new message."""
        content = records.encode(RecordDict({"arrays": ArrayRecord([np.ones(values)])}))
        body = b"".join(content.parts())
        path = Route.FLOWER_CONTENT.format(run=self.run, digest=content.digest)
        self.server.http.put(path, content=body).raise_for_status()
        self.pushed += 1
        message = hashlib.sha256(f"{self.pushed}".encode()).hexdigest()
        wanted = {
            "message": message,
            "node": node,
            "kind": kind,
            "group": f"{self.pushed}",
            "ttl_s": ttl_s,
            "content": content.digest,
        }
        self._post(Route.FLOWER_MESSAGES, {"messages": [wanted]})
        return message

    def reply(self, message: str) -> RecordDict | FlowerError:
        """The reply to a message, once there is one."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            answer = self._post(Route.FLOWER_REPLIES, {"messages": [message], "hold_s": 5.0})
            for reply in answer["replies"]:
                if reply["error"] is not None:
                    return FlowerError.model_validate(reply["error"])
                path = Route.FLOWER_CONTENT.format(run=self.run, digest=reply["content"])
                return records.decode(self.server.http.get(path).raise_for_status().content)
        raise AssertionError(f"no reply to {message} in time")

    def metrics(self, message: str) -> dict[str, Any]:
        """The metrics of the reply to a message."""
        found = self.reply(message)
        assert isinstance(found, RecordDict), found
        return dict(found["metrics"])

    def _post(self, route: Route, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.server.http.post(route.format(run=self.run), json=body)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found


class DeviceProcess:
    """``quorate device --flower``. ``patch``: Python statements that run in its process first."""

    def __init__(self, server: Server, app: Path, folder: Path, *options: str, patch: str = "") -> None:
        command = ["device", "--flower", str(app), "--url", server.url, "--token-file", server.token_file]
        command += ["--folder", str(folder), "--json", *options]
        program = f"{patch}\nimport sys\nfrom client_sdk.cli import main\nmain(sys.argv[1:])"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = (
            subprocess.Popen([sys.executable, "-c", program, *command], **pipes)
            if patch
            else forks.Forked(command, forks.ANY, text=False, **pipes)
        )
        self.said: list[dict[str, Any]] = []
        self._rest = b""

    def until(self, kind: str) -> dict[str, Any]:
        """The next notice of this kind."""
        stream = self.process.stdout
        assert stream is not None
        until = time.monotonic() + PATIENCE_S
        while True:
            while b"\n" not in self._rest:
                ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
                found = stream.read1() if ready else b""  # type: ignore[attr-defined]
                assert found, (self.said, self.errors() if ready else "it said nothing in time")
                self._rest += found
            line, _, self._rest = self._rest.partition(b"\n")
            self.said.append(json.loads(line))
            if self.said[-1]["kind"] == kind:
                return self.said[-1]

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        """What it wrote to standard error; it is ended."""
        self.process.kill()
        return self.process.communicate()[1].decode()

    def stop(self) -> int:
        """Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode

    def __enter__(self) -> DeviceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
