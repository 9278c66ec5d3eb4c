"""``quorate device --flower`` at a real coordinator: it serves, is killed at each step, and changes its state once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from client_sdk.device.storage import FileStorage
from client_sdk.flower.app import read_app
from client_sdk.flower.journal import NodeJournal
from client_sdk.protocol.flower import FlowerError
from client_sdk.secagg.memory import Memory
from tests.client_sdk.flower.apps import write_app
from tests.client_sdk.flower.real_runs import DeviceProcess, RealRun, node_id
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day, taking_turns

pytestmark = pytest.mark.slow

CLIENT = """
import random, time
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    done = list(context.state["done"]["messages"]) if "done" in context.state else []
    done.append(message.metadata.message_id)
    context.state["done"] = ConfigRecord({"messages": done})
    metrics = {"calls": len(done), "different": len(set(done)), "chance": random.random()}
    metrics["partition"] = context.node_config.get("partition-id", -1)
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

@app.train("slowly")
def slowly(message, context):
    time.sleep(3)
    return train(message, context)

@app.train("hangs")
def hangs(message, context):
    time.sleep(600)

@app.train("large")
def large(message, context):
    import numpy as np
    from flwr.app import ArrayRecord
    return Message(RecordDict({"arrays": ArrayRecord([np.zeros(1_000_000)])}), reply_to=message)
"""
DIES = {
    "after it has trained": "before(NodeJournal, 'keep')",
    "after the file": "after(NodeJournal, 'keep')",
    "after the send": "after(HttpFlowerPort, 'reply')",
}
PATCH = """
import os
from client_sdk.flower.http_port import HttpFlowerPort
from client_sdk.flower.journal import NodeJournal

def before(of, name):
    setattr(of, name, lambda *given: os._exit(137))

def after(of, name):
    true = getattr(of, name)
    setattr(of, name, lambda *given: (true(*given), os._exit(137)))

"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_app(tmp_path_factory.mktemp("apps") / "app", client=CLIENT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server.start(tmp_path_factory.mktemp("coordinator") / "data")
    yield running
    running.stop()


def begun(server: Server, app: Path, name: str, **more: object) -> RealRun:
    run = RealRun(server, name, read_app(app).app)
    run.create(**more)
    return run


def chances(folder: Path) -> list[bytes]:
    """The replies in a device's journal."""
    found = []
    for answer in NodeJournal(folder / "flower").unsent():
        with answer.open_reply() as file:
            found.append(file.read())
    return found


def test_it_serves_says_what_it_does_and_stops(server: Server, app: Path, tmp_path: Path) -> None:
    run = begun(server, app, "serves")
    with DeviceProcess(server, app, tmp_path / "d", "--node-config", "partition-id=2") as device:
        node = run.node(device)
        messages = [run.push(node), run.push(node)]
        found = [run.metrics(message) for message in messages]
        assert [(metrics["calls"], metrics["partition"]) for metrics in found] == [(1, 2), (2, 2)]
        said = device.until("message")
        assert (said["run"], said["group"], said["message"]) == ("serves", "1", messages[0])
        device.until("replied")
        began = time.monotonic()
        assert device.stop() == 0
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("when", taking_turns(*DIES))
def test_killed_at_any_step_a_message_changes_its_state_once(
    when: str, server: Server, app: Path, tmp_path: Path
) -> None:
    run = begun(server, app, when.replace(" ", "-"))
    folder = tmp_path / "d"
    with DeviceProcess(server, app, folder, patch=PATCH + DIES[when]) as device:
        node = run.node(device)
        first = run.push(node)
        assert device.ended() == 137
    stored = chances(folder)
    assert len(stored) == (0 if when == "after it has trained" else 1)
    second = run.push(node)
    with DeviceProcess(server, app, folder) as device:
        metrics = run.metrics(first)
        assert (metrics["calls"], metrics["different"]) == (1, 1)
        if stored:
            from client_sdk.flower import records

            assert dict(records.decode(stored[0])["metrics"]) == metrics
        metrics = run.metrics(second)
        assert (metrics["calls"], metrics["different"]) == (2, 2)
        device.until("replied")
        assert not [said for said in device.said if said["kind"] in ("refused", "error")]


@on_day(0, of=2)
def test_a_coordinator_that_is_killed_meanwhile_costs_only_time(app: Path, tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    run = begun(server, app, "killed")
    with DeviceProcess(server, app, tmp_path / "d") as device:
        node = run.node(device)
        first = run.push(node, "train.slowly")
        device.until("message")
        server.stop(signal.SIGKILL)
        time.sleep(4)
        run.server = again = Server.start(tmp_path / "data", port=urlsplit(server.url).port or 0)
        metrics = run.metrics(first)
        assert (metrics["calls"], metrics["different"]) == (1, 1)
        second = run.push(node)
        metrics = run.metrics(second)
        assert (metrics["calls"], metrics["different"]) == (2, 2)
        assert device.stop() == 0
    again.stop()


@on_day(1, of=2)
def test_what_goes_wrong_is_an_error_at_the_serverapp(server: Server, app: Path, tmp_path: Path) -> None:
    run = begun(server, app, "wrong", max_reply=10_000)
    with DeviceProcess(server, app, tmp_path / "d") as device:
        node = run.node(device)
        large, hanging, after = run.push(node, "train.large"), run.push(node, "train.hangs", ttl_s=6), run.push(node)
        error = run.reply(large)
        assert isinstance(error, FlowerError)
        assert error.reason.endswith("and this run accepts 10000: start the run with a larger --max-reply.")
        error = run.reply(hanging)
        assert isinstance(error, FlowerError)
        assert run.metrics(after)["calls"] == 1
        assert device.stop() == 0


@on_day(1, of=2)
def test_a_device_that_cannot_serve_says_why(server: Server, app: Path, tmp_path: Path) -> None:
    begun(server, app, "other")
    other = write_app(tmp_path / "app", client=CLIENT + "\n# changed\n")
    with DeviceProcess(server, other, tmp_path / "d") as device:
        waits = device.until("waiting")
        assert "the files of tests/counting 1.2.0 have the hash" in waits["text"]
    with DeviceProcess(server, app, tmp_path / "secure", "--secure-only") as device:
        waits = device.until("waiting")
        assert "secure only" in waits["text"]


@on_day(0, of=2)
def test_a_device_that_has_joined_secure_rounds_serves_no_flower_app_without_its_owners_word(
    server: Server, app: Path, tmp_path: Path
) -> None:
    """The app sees the same data, and its replies are in clear."""
    run, folder = begun(server, app, "plain"), tmp_path / "d"
    with FileStorage(folder) as storage:
        storage.keep(lambda _: Memory().masked_for("clinic:risk"))
    with DeviceProcess(server, app, folder) as device:
        node = node_id(device.until("enrolled")["text"].split()[2].rstrip(";"))
        assert "secure only" in device.until("waiting")["text"]
        assert node not in run.nodes()
        assert device.stop() == 0
    with FileStorage(folder) as storage:
        storage.keep(lambda newest: newest.plain_again("tests/counting"))
    with DeviceProcess(server, app, folder):
        assert run.metrics(run.push(node))["calls"] == 1
