"""Flower runs over HTTP: a ServerApp's requests by an operator's key, devices' by their signatures."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client_sdk.flower.work import node_id
from client_sdk.http.flower import FlowerOperator
from client_sdk.http.operator_transport import OperatorTransport
from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.flower import (
    CreateFlowerRun,
    EndFlowerRun,
    FlowerApp,
    FlowerMessage,
    FlowerPoll,
    PullReplies,
    PushMessages,
)
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device
from tests.coordinator.service.test_edge import refused

APP = FlowerApp(name="acme/http", version="1.0.0", digest="d" * 64)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Content:
    """Bytes as a content, in two parts."""

    def __init__(self, whole: bytes) -> None:
        self._whole, self.digest, self.length = whole, digest_of(whole), len(whole)

    def parts(self) -> Iterator[memoryview]:
        half = self.length // 2
        yield from (memoryview(self._whole)[:half], memoryview(self._whole)[half:])


class App:
    """A scripted ServerApp of one run, and its devices."""

    def __init__(self, server: Server, run: str) -> None:
        self.server, self.run = server, run
        self.app = APP.model_copy(update={"name": f"acme/{run}"})
        self.operator = FlowerOperator(OperatorTransport(server.url, key=server.key, key_file=None, http=None))
        self.operator.create(CreateFlowerRun(run=run, app=self.app))
        self.devices = [Device(server.http, server.token, run) for _ in range(2)]
        for device in self.devices:
            assert "no message" in self.poll(device).json()["reason"]

    def upload(self, content: bytes) -> str:
        self.operator.upload(self.run, Content(content))
        return digest_of(content)

    def message(self, number: int, content: str, **fields: Any) -> FlowerMessage:
        name = digest_of(f"{self.run} {number} {content} {fields}".encode())
        given = {"kind": "train", "group": "1", "ttl_s": 60.0} | fields
        return FlowerMessage(message=name, node=node_id(self.devices[number].id), content=content, **given)

    def push(self, *messages: FlowerMessage) -> None:
        self.operator.push(self.run, PushMessages(messages=messages))

    def poll(self, device: Device, hold_s: float = 0, **fields: Any) -> httpx2.Response:
        message = FlowerPoll(apps=(self.app,), hold_s=hold_s, **fields)
        return device.send("POST", Route.FLOWER_TASKS, content=message.model_dump_json())

    def reply(self, device: Device, message: FlowerMessage, body: bytes) -> httpx2.Response:
        return device.send("PUT", Route.FLOWER_REPLY.format(run=self.run, message=message.message), content=body)

    def content(self, digest: str) -> str:
        return Route.FLOWER_CONTENT.format(run=self.run, digest=digest)


@pytest.fixture
def made(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    app = App(server, name)
    yield app
    app.operator.end(app.run, EndFlowerRun(status="finished"))


def test_a_message_and_its_reply_travel(made: App) -> None:
    model = bytes(range(256)) * 8192
    message = made.message(0, made.upload(model))
    device, other = made.devices
    answers: list[httpx2.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(made.poll(device, hold_s=20)))
    waiting.start()
    made.push(message)
    waiting.join(10)
    task = answers[0].json()
    assert (task["message"], task["bytes"], task["run"]) == (message.message, len(model), made.run)
    assert device.send("GET", made.content(task["content"])).content == model
    part = device.send("GET", made.content(task["content"]), headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, model[10:20])
    assert other.send("GET", made.content(task["content"])).status_code == 404
    replies: list[Any] = []
    pull = PullReplies(messages=(message.message,), hold_s=20)
    pulling = threading.Thread(target=lambda: replies.append(made.operator.pull(made.run, pull)))
    pulling.start()
    receipt = made.reply(device, message, b"the update")
    assert receipt.json() == {"message": message.message, "digest": digest_of(b"the update")}
    pulling.join(10)
    assert [one.content for one in replies[0].replies] == [digest_of(b"the update")]
    assert made.operator.download(made.run, digest_of(b"the update")) == b"the update"
    assert made.operator.view(made.run).replies == 1
    assert {one.device for one in made.operator.nodes(made.run).nodes} == {one.id for one in made.devices}


def test_a_reply_that_is_too_long_is_refused_before_it_is_read(made: App) -> None:
    message = made.message(0, made.upload(b"small"))
    made.push(message)

    def never() -> Iterator[bytes]:
        yield b"x"
        raise AssertionError("the body was read")

    path = Route.FLOWER_REPLY.format(run=made.run, message=message.message)
    signed = made.devices[0].signed("PUT", path, b"")
    sent = {**made.devices[0].headers, **signed, "Content-Length": str(2**21)}
    with httpx2.Client(base_url=made.server.url) as http:
        refused(http.put(path, content=b"x" * 2**21, headers=sent), 413, "too-large")
    assert made.reply(made.devices[0], message, b"x" * 2**20).is_success


def test_errors_are_sentences(made: App) -> None:
    device, message = made.devices[0], made.message(0, "e" * 64)
    with pytest.raises(ProblemError, match="is not stored: send it before its messages"):
        made.push(message)
    refused(made.reply(device, message, b"x"), 403, "not-selected")
    refused(device.send("GET", made.content("e" * 64)), 404, "unknown-content")
    http = made.server.http
    refused(http.post(Route.RUN_ACTION.format(run=made.run, action="pause")), 409, "conflict")
    refused(http.get(Route.RUN_CHECKPOINTS.format(run=made.run)), 409, "conflict")
    refused(http.get(Route.FLOWER_RUN.format(run="nowhere")), 404, "unknown-run")
    body = made.server.http.put(made.content("a" * 64), content=b"other bytes")
    refused(body, 422, "digest-mismatch")


def test_repro_a_number_beyond_64_bits_is_refused_and_not_to_be_tried_again(made: App) -> None:
    """It was answered as a busy database: 503, retry after 2 s."""
    http = made.server.http
    app = made.app.model_dump(mode="json")
    refused(http.post(Route.FLOWER_RUNS, json={"run": "huge", "app": app, "max_reply": 2**63}), 422, "invalid-request")
    refused(http.get(Route.ROUND.format(run=made.run, round=2**63)), 404, "unknown-round")
    refused(http.get(Route.AUDIT, params={"after": 2**63}), 422, "invalid-request")


def test_a_key_without_the_run_in_its_scope_sees_nothing_of_it(made: App) -> None:
    digest = made.upload(b"the model")
    made.push(made.message(0, digest))
    request = CreateKey(role="operator", scope="elsewhere-*").model_dump(mode="json")
    key = made.server.http.post(Route.KEYS, json=request).json()["text"]
    with httpx2.Client(base_url=made.server.url, headers={"Authorization": f"Bearer {key}"}) as http:
        for method, route in (
            ("GET", Route.FLOWER_RUN), ("GET", Route.FLOWER_NODES), ("GET", Route.FLOWER_CONTENT),
            ("PUT", Route.FLOWER_CONTENT), ("POST", Route.FLOWER_MESSAGES), ("POST", Route.FLOWER_REPLIES),
            ("PUT", Route.FLOWER_STATE), ("POST", Route.FLOWER_END),
        ):  # fmt: skip
            answer = http.request(method, route.format(run=made.run, digest=digest), content=b"{}")
            refused(answer, 403, "not-permitted")
        create = CreateFlowerRun(run="another", app=APP).model_dump(mode="json")
        refused(http.post(Route.FLOWER_RUNS, json=create), 403, "not-permitted")
    audit = made.server.http.get(Route.AUDIT, params={"limit": 10_000}).json()
    assert ("flower.create done", made.run) in {(row["action"], row["run"]) for row in audit}
