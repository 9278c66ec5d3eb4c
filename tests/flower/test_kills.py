"""The ServerApp and the coordinator, each killed in the middle of a run and gone on: real processes, nothing lost,
nothing done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.coordinator.service.conftest import Server
from tests.flower.folders import write_app
from tests.forks import ANY, Forked
from tests.rotating import on_day

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = 8
DEVICES = 2
SERVER = """
import json, os
from pathlib import Path
from time import sleep
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    while len(nodes := sorted(grid.get_node_ids())) < 2:
        sleep(0.2)
    totals = []
    for number in range(context.run_config["rounds"]):
        records = RecordDict({"config": ConfigRecord({"step": number + 1})})
        replies = grid.send_and_receive([Message(records, node, "query", group_id=str(number)) for node in nodes])
        assert [reply.metadata.src_node_id for reply in replies] == nodes
        totals.append([reply.content["counted"]["total"] for reply in replies])
    Path(os.environ["NUMBERS"]).write_text(json.dumps(totals))
"""
CLIENT = """
import os
from time import sleep
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def count(message: Message, context: Context) -> Message:
    before = context.state["count"]["total"] if "count" in context.state else 0
    context.state["count"] = MetricRecord({"total": before + message.content["config"]["step"]})
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(f"{message.metadata.message_id}\\n")
    sleep(0.2)
    return Message(RecordDict({"counted": context.state["count"]}), reply_to=message)
"""
EXPECTED = [[sum(range(1, number + 2))] * DEVICES for number in range(ROUNDS)]


class Command:
    """``quorate flower run --json`` as a process; its lines are read while it runs."""

    def __init__(self, app: Path, server: Server, folder: Path, *, wait_s: float = 300) -> None:
        command = ["flower", "run", str(app), "--run", "trial", "--json"]
        command += ["--coordinator", server.url, "--key-file", str(folder / "key")]
        (folder / "key").write_text(server.key)
        environment = {**os.environ, "NUMBERS": str(folder / "numbers.json")}
        self.process = Forked(command, ANY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        self._wait_s = wait_s
        self.lines: list[dict[str, Any]] = []
        self.errors = ""
        self._grown = threading.Condition()
        self._threads = [threading.Thread(target=run) for run in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self.lines.append(json.loads(line))
                self._grown.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def until_round(self, group: str) -> None:
        """Wait until the ServerApp has gone on from this round."""
        with self._grown:
            there = self._grown.wait_for(lambda: any(line.get("group") == group for line in self.lines), timeout=240)
        assert there, (self.lines, self.errors)

    def end(self) -> int:
        code = self.process.wait(self._wait_s)
        for thread in self._threads:
            thread.join()
        return code

    @property
    def remarks(self) -> list[str]:
        return [line["text"] for line in self.lines if line.get("event") == "remark"]


@contextmanager
def devices(app: Path, server: Server, folder: Path, count: int = DEVICES) -> Iterator[list[Forked]]:
    """Real devices, which write down each call of their ClientApp."""
    started = []
    for number in range(count):
        command = ["device", "--flower", str(app)]
        command += ["--coordinator", server.url, "--folder", str(folder / f"device-{number}")]
        command += ["--token-file", server.token_file]
        log = (folder / f"device-{number}.log").open("w")
        environment = {**os.environ, "CALLS": str(folder / f"calls-{number}")}
        started.append(Forked(command, ANY, stdout=log, stderr=subprocess.STDOUT, env=environment))
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


def calls(folder: Path) -> list[str]:
    """Return the messages for which a ClientApp was called, of all devices."""
    return [line for number in range(DEVICES) for line in (folder / f"calls-{number}").read_text().splitlines()]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_app(tmp_path / "app", server=SERVER, client=CLIENT, config={"rounds": ROUNDS})


@on_day(0, of=2)
def test_coordinator_killed_in_the_middle(app: Path, tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    try:
        with devices(app, server, tmp_path):
            command = Command(app, server, tmp_path)
            command.until_round("2")
            server.stop(signal.SIGKILL)
            port = int(server.url.rpartition(":")[2])
            server = Server.start(tmp_path / "data", port=port)
            assert command.end() == 0, command.errors
    finally:
        server.stop(signal.SIGKILL)
    assert json.loads((tmp_path / "numbers.json").read_text()) == EXPECTED
    assert len(calls(tmp_path)) == len(set(calls(tmp_path))) == ROUNDS * DEVICES, "each message was worked on once"
    assert command.lines[-1].keys() == {"rounds", "replies", "errors", "seconds"}
    assert command.lines[-1]["replies"] == ROUNDS * DEVICES
    assert [text.partition(":")[0] for text in command.remarks[-2:]] == [
        "The coordinator does not answer now",
        "The coordinator answers again.",
    ]


@on_day(1, of=2)
def test_server_app_killed_in_the_middle(app: Path, tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    try:
        with devices(app, server, tmp_path):
            first = Command(app, server, tmp_path)
            first.until_round("2")
            [child] = psutil.Process(first.process.pid).children()
            child.kill()
            assert first.end() == 1
            assert not (tmp_path / "numbers.json").exists()
            said = json.loads(first.errors.splitlines()[-1])["text"]
            assert said == (
                "The ServerApp's process was killed by SIGKILL. Its messages and replies are kept: the same command "
                "with --run trial starts it again and goes on."
            )
            again = Command(app, server, tmp_path)
            assert again.end() == 0, again.errors
    finally:
        server.stop(signal.SIGKILL)
    assert json.loads((tmp_path / "numbers.json").read_text()) == EXPECTED
    assert len(calls(tmp_path)) == len(set(calls(tmp_path))) == ROUNDS * DEVICES, "nobody has trained twice"
    assert again.remarks[0].startswith("The run trial was started before and has ")
    assert "replies were served: the run goes on from there." in again.remarks[1]
